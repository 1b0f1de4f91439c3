"""The first linear layer alone: what it scans, and how exact its T and its composed state are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from hypic_sdk.bench.report import Spread
from hypic_sdk.bench.scores import relative_l2
from hypic_sdk.bench.serving_model import LEADING_TOKENS, Bench
from hypic_sdk.bench.serving_report import Absent, Row
from hypic_sdk.bench.serving_targets import TARGETS
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.kernels.items import ColdRun, Item, ItemKind
from hypic_sdk.kernels.live_scan.op import live_scan
from hypic_sdk.kernels.segment_scan import reference as segment_reference
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
        self.captured = recurrence.written_out()
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
class Slabs:
    """One layer's rows of both slabs."""

    def __init__(self, recurrence: Recurrence, rows: int, transition_dtype: torch.dtype) -> None:
        value = recurrence.value
        work = torch.promote_types(value.dtype, torch.float32)
        heads, K, V = value.shape[1], recurrence.key.shape[2], value.shape[2]
        self.states = torch.zeros(rows, heads, K, V, dtype=work, device=value.device)
        self.transitions = torch.zeros(
            rows, heads, K, K, dtype=transition_dtype, device=value.device
        )


def times(bench: Bench, call: Callable[[], object]) -> list[float]:
    """Milliseconds of each run, the device waited for before and after; two are not counted."""
    found = []
    for _ in range(bench.sizes.num_runs + 2):
        bench.wait()
        start_s = time.perf_counter()
        call()
        bench.wait()
        found.append(1e3 * (time.perf_counter() - start_s))
    return found[2:]


# name, dtype, dtype of T (int8: of a pair in 8 bits, with its end state)
STATE_WAYS = (
    ("fp32 with fp32 T", torch.float32, torch.float32),
    ("fp32 with fp16 T", torch.float32, torch.float16),
    ("kernels in 16 bits", None, torch.float16),  # none: as the model runs
    ("fp32 with an 8-bit pair", torch.float32, torch.int8),
)


def state_errors(bench: Bench) -> Iterator[Row | Absent]:
    """The state that four segments behind a text compose to, against the sequential one in fp64.

    Beside it: T of each segment against T in fp64, and how large that is.  Where T were nothing, a
    state's error would tell nothing of it.
    """
    lengths = [bench.sizes.tokens(1024)] * 4
    tokens = bench.tokens(4100, LEADING_TOKENS + sum(lengths))
    recurrence = first_recurrence(bench, tokens)
    want = _sequential(cast(recurrence, torch.float64))
    exact, _ = exact_pair(recurrence, cold_runs(lengths, LEADING_TOKENS))
    norms = norm_notes(exact)
    for way, dtype, transition_dtype in STATE_WAYS:
        name = f"layer-0 state error, {way}"
        if absent := bench.absent(name):
            yield absent
            continue
        inputs = cast(recurrence, dtype or recurrence.value.dtype)
        state, transitions = _composed(inputs, lengths, transition_dtype)
        notes = {"error_T": relative_l2(transitions, exact), **norms}
        found = Spread.of([relative_l2(state, want)])
        yield Row(name, "relative", found, target=TARGETS.get(name), notes=notes)


def norm_notes(transitions_NHKK: torch.Tensor) -> dict[str, float]:
    """The spectral norm of T, in the median and at most, over segments and heads."""
    norms = torch.linalg.matrix_norm(transitions_NHKK.double().cpu(), 2)
    return {"norm_T_median": float(norms.median()), "norm_T_max": float(norms.max())}


def exact_pair(
    recurrence: Recurrence, runs: tuple[ColdRun, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """T and S of every interior in fp64, by the definition."""
    wide = cast(recurrence, torch.float64)
    slabs = Slabs(wide, len(runs), torch.float64)
    out = torch.empty_like(wide.value, memory_format=torch.contiguous_format)
    segment_reference.segment_scan(
        *(wide.scan_inputs(), runs, slabs.states, slabs.transitions, None, None, out)
    )
    return slabs.transitions, slabs.states


def cast(recurrence: Recurrence, dtype: torch.dtype) -> Recurrence:
    """In another dtype; decays and strengths stay in fp32 at least."""
    wide = torch.promote_types(dtype, torch.float32)
    moved = {
        name: value.to(wide if name in _WIDE_FIELDS else dtype)
        for name in _FIELDS
        if (value := getattr(recurrence, name)) is not None
    }
    return replace(recurrence, **moved)


def _sequential(recurrence: Recurrence) -> torch.Tensor:
    slabs = Slabs(recurrence, 1, torch.float64)
    run = Item(ItemKind.RUN, 0, recurrence.value.shape[0])
    items = (Item(ItemKind.LOAD), run, Item(ItemKind.SAVE, slot=0))
    live_scan(recurrence.scan_inputs(), items, slabs.states, slabs.transitions)
    return slabs.states[0]


def _composed(
    recurrence: Recurrence, lengths: Sequence[int], transition_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state behind a text and cached segments, whose head seams are live; and T of each."""
    slabs = Slabs(recurrence, len(lengths) + 1, transition_dtype)
    inputs, runs = recurrence.scan_inputs(), cold_runs(lengths, LEADING_TOKENS)
    out = torch.empty_like(recurrence.value, memory_format=torch.contiguous_format)
    transitions: torch.Tensor | Int8Pairs = slabs.transitions
    if transition_dtype == torch.int8:
        (_, H, K, V), device = slabs.states.shape, out.device
        lead = (len(lengths),)
        transitions = Int8Pairs.allocate(lead, (H, K, V), (H, K, K), torch.float32, device)
    segment_scan(inputs, runs, slabs.states, transitions, out_LHV=out)
    items = [Item(ItemKind.LOAD), Item(ItemKind.RUN, 0, LEADING_TOKENS)]
    for run in runs:
        interior = run.num_tokens - HEAD_TOKENS
        items += [
            Item(ItemKind.RUN, run.row_start, run.row_start + HEAD_TOKENS),
            Item(ItemKind.GAP, 0, 0, run.state_slot, run.transition_slot, interior, run.row_start),
        ]
    items.append(Item(ItemKind.SAVE, slot=len(lengths)))
    live_scan(inputs, tuple(items), slabs.states, transitions)
    if isinstance(transitions, Int8Pairs):
        each = [transitions.read_transition(run.transition_slot, torch.float64) for run in runs]
        return slabs.states[len(lengths)], torch.stack(each)
    return slabs.states[len(lengths)], transitions[: len(lengths)]
