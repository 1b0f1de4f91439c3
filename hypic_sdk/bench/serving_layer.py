"""The first linear layer alone: what its pair costs, and how exact its composed state is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from hypic_sdk.bench.serving_model import LEADING_TOKENS, Bench
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.kernels.backend import picked_choices
from hypic_sdk.kernels.items import ColdRun, Item, ItemKind
from hypic_sdk.kernels.live_scan.op import live_scan
from hypic_sdk.kernels.segment_scan.op import segment_scan
from hypic_sdk.kernels.short_conv.op import short_conv

HEAD_TOKENS = 8
_WIDE_FIELDS = ("log_decay", "erase")
_FIELDS = ("query", "key", "value", *_WIDE_FIELDS)


@final
class _Capture:
    """A ForwardContext of one sequence that keeps what its linear layer would scan."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.num_rows = num_rows
        self.positions = torch.arange(num_rows, device=device)
        self.row_independent = False
        self.captured: Recurrence | None = None

    def short_conv(
        self,
        layer: int,
        inputs_LC: torch.Tensor,
        weight_CW: torch.Tensor,
        bias_C: torch.Tensor | None,
        *,
        activation: str | None,
    ) -> torch.Tensor:
        del layer
        return short_conv(
            inputs_LC,
            weight_CW,
            bias_C,
            activation=activation,
            items=(Item(ItemKind.LOAD), Item(ItemKind.RUN, 0, self.num_rows)),
            cold_runs=(),
            tails_SWC=inputs_LC.new_zeros(1, weight_CW.shape[1] - 1, weight_CW.shape[0]),
        )

    def linear_attention(self, layer: int, recurrence: Recurrence) -> torch.Tensor:
        del layer
        self.captured = recurrence
        return torch.zeros_like(recurrence.value, memory_format=torch.contiguous_format)

    def full_attention(self, *_: Any, **__: Any) -> torch.Tensor:
        raise AssertionError("the first layer is linear")


def first_recurrence(bench: Bench, token_ids: Sequence[int]) -> Recurrence:
    """What the model's first layer scans for these tokens."""
    layer = bench.model.layers[0]
    ids = torch.tensor(token_ids, device=bench.device)
    context = _Capture(len(token_ids), bench.device)
    layer.mixer(layer.mixer_norm(bench.model.embedding(ids)), context)
    assert context.captured is not None, "the first layer is linear"
    return context.captured


def cold_runs(lengths: Sequence[int], first_row: int = 0) -> tuple[ColdRun, ...]:
    """Whole segments behind each other."""
    runs, row = [], first_row
    for index, count in enumerate(lengths):
        runs.append(ColdRun(row, row + count, 0, count, HEAD_TOKENS, 0, index, index))
        row += count
    return tuple(runs)


@final
class _Slabs:
    """One layer's rows of both slabs."""

    def __init__(self, recurrence: Recurrence, rows: int, transition_dtype: torch.dtype) -> None:
        value = recurrence.value
        work = torch.promote_types(value.dtype, torch.float32)
        heads, K, V = value.shape[1], recurrence.key.shape[2], value.shape[2]
        self.states = torch.zeros(rows, heads, K, V, dtype=work, device=value.device)
        self.transitions = torch.zeros(
            rows, heads, K, K, dtype=transition_dtype, device=value.device
        )


@dataclass(frozen=True, slots=True)
class PairCosts:
    """Milliseconds over all linear layers that the pairs add to plain scans of the same rows."""

    extra_ms: tuple[float, ...]
    notes: dict[str, Any]


def pair_costs(bench: Bench, lengths: Sequence[int]) -> PairCosts:
    """Of segments packed into one forward, head seam 8, in one layer times the number of them."""
    recurrence = first_recurrence(bench, bench.tokens(4000, sum(lengths)))
    inputs, runs = recurrence.scan_inputs(), cold_runs(lengths)
    slabs = _Slabs(recurrence, len(lengths), torch.float16)
    out = torch.empty_like(recurrence.value, memory_format=torch.contiguous_format)
    items = tuple(
        item
        for run in runs
        for item in (Item(ItemKind.LOAD), Item(ItemKind.RUN, run.row_start, run.row_stop))
    )
    with picked_choices() as picked:
        with_pair = _times(
            bench,
            lambda: segment_scan(inputs, runs, slabs.states, slabs.transitions, out_LHV=out),
        )
        plain = _times(
            bench,
            lambda: live_scan(inputs, items, slabs.states, slabs.transitions, out_LHV=out),
        )
    layers = bench.model.spec.num_linear
    base = statistics.median(plain)
    notes = {
        "scan_ms_a_layer": statistics.median(with_pair),
        "plain_scan_ms_a_layer": base,
        **{op: choice.implementation for op, choice in picked.items()},
    }
    return PairCosts(tuple(layers * (ms - base) for ms in with_pair), notes)


def _times(bench: Bench, call: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(bench.sizes.num_runs + 2):
        bench.wait()
        start_s = time.perf_counter()
        call()
        bench.wait()
        found.append(1e3 * (time.perf_counter() - start_s))
    return found[2:]


def state_errors(bench: Bench) -> Iterator[tuple[str, float, float]]:
    """Name, relative error and target of each way to compose four segments behind a text."""
    lengths = [bench.sizes.tokens(1024)] * 4
    tokens = bench.tokens(4100, LEADING_TOKENS + sum(lengths))
    recurrence = first_recurrence(bench, tokens)
    want = _sequential(_cast(recurrence, torch.float64))
    for name, dtype, transition_dtype, target in (
        ("fp32 with fp32 T", torch.float32, torch.float32, 1e-5),
        ("fp32 with fp16 T", torch.float32, torch.float16, 3e-4),
        ("kernels in 16 bits", recurrence.value.dtype, torch.float16, 3e-3),
    ):
        got = _composed(_cast(recurrence, dtype), lengths, transition_dtype)
        yield name, float((got.double() - want).norm() / want.norm()), target


def _cast(recurrence: Recurrence, dtype: torch.dtype) -> Recurrence:
    """In another dtype; decays and strengths stay in fp32 at least."""
    wide = torch.promote_types(dtype, torch.float32)
    moved = {
        name: value.to(wide if name in _WIDE_FIELDS else dtype)
        for name in _FIELDS
        if (value := getattr(recurrence, name)) is not None
    }
    return replace(recurrence, **moved)


def _sequential(recurrence: Recurrence) -> torch.Tensor:
    slabs = _Slabs(recurrence, 1, torch.float64)
    run = Item(ItemKind.RUN, 0, recurrence.value.shape[0])
    items = (Item(ItemKind.LOAD), run, Item(ItemKind.SAVE, slot=0))
    live_scan(recurrence.scan_inputs(), items, slabs.states, slabs.transitions)
    return slabs.states[0]


def _composed(
    recurrence: Recurrence, lengths: Sequence[int], transition_dtype: torch.dtype
) -> torch.Tensor:
    """The state behind a text and cached segments, whose head seams are live."""
    slabs = _Slabs(recurrence, len(lengths) + 1, transition_dtype)
    inputs, runs = recurrence.scan_inputs(), cold_runs(lengths, LEADING_TOKENS)
    out = torch.empty_like(recurrence.value, memory_format=torch.contiguous_format)
    segment_scan(inputs, runs, slabs.states, slabs.transitions, out_LHV=out)
    items = [Item(ItemKind.LOAD), Item(ItemKind.RUN, 0, LEADING_TOKENS)]
    for run in runs:
        interior = run.num_tokens - HEAD_TOKENS
        items += [
            Item(ItemKind.RUN, run.row_start, run.row_start + HEAD_TOKENS),
            Item(ItemKind.GAP, 0, 0, run.state_slot, run.transition_slot, interior, run.row_start),
        ]
    items.append(Item(ItemKind.SAVE, slot=len(lengths)))
    live_scan(inputs, tuple(items), slabs.states, slabs.transitions)
    return slabs.states[len(lengths)]
