"""Ops on sequences, on a CUDA device: scans, conv, attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.items import ColdRun, Item, ItemKind
from hypic_sdk.kernels.live_attention.op import live_attention
from hypic_sdk.kernels.live_scan import kernel as live_scan_kernel
from hypic_sdk.kernels.live_scan.op import live_scan
from hypic_sdk.kernels.segment_scan.op import segment_scan
from hypic_sdk.kernels.short_conv import kernel as conv_kernel
from hypic_sdk.kernels.short_conv.op import short_conv
from tests.closeness import assert_close
from tests.gpu.placed import BOUNDS, moved, normal, same_places_written
from tests.kernels.test_segment_scan_kernel import OPERANDS
from tests.strategies import Shape, drawn, in_fp64

pytestmark = pytest.mark.gpu

LOAD, RUN, GAP, SAVE = ItemKind
LAYERS, LAYER = 3, 1  # an op gets one layer's view, which is not contiguous
DTYPES = list(BOUNDS)
LONG = 150  # of the segment that takes three forwards


@pytest.fixture(autouse=True)
def short_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of more than these rows go through in tiles."""
    monkeypatch.setattr(live_scan_kernel, "LONGEST_WALK", 64)


def poisoned(device: torch.device, dtype: torch.dtype, rows: int, *shape: int) -> torch.Tensor:
    return torch.full((rows, LAYERS, *shape), torch.nan, dtype=dtype, device=device)[:, LAYER]


@dataclass
class Walk:
    """Cold segments, then a live sequence over them and a decode row; all that was written."""

    recurrence: Recurrence
    states: torch.Tensor
    transitions: torch.Tensor | None
    outputs: list[torch.Tensor]

    @classmethod
    def over(cls, recurrence: Recurrence, transition_dtype: torch.dtype | None) -> Walk:
        inputs, device = recurrence.scan_inputs(), recurrence.value.device
        work, shape = inputs.work_dtype, inputs.transition_shapes()[0]
        size = (inputs.num_heads, inputs.key_size, recurrence.value.shape[2])
        states = poisoned(device, work, 6, *size)
        transitions = None
        if shape is not None:
            dense = recurrence.erase is not None and transition_dtype is not None
            transitions = poisoned(device, transition_dtype if dense else work, 6, *shape)
        walk = cls(recurrence, states, transitions, [])
        walk.cold(work, size, shape)
        walk.live()
        return walk

    def cold(self, work: torch.dtype, size: tuple[int, ...], shape: tuple[int, ...] | None) -> None:
        """Segment 0 in forwards of 64 tokens, its first with the whole of segment 1 beside it."""
        device = self.recurrence.value.device
        works = poisoned(device, work, 2, *size)
        work_transitions = None if shape is None else poisoned(device, work, 2, *shape)
        for offset in range(0, LONG, 64):
            stop = min(offset + 64, LONG)
            runs = [ColdRun(offset, stop, offset, LONG, 5, 3, 0, 0, 1)]
            if offset == 0:
                runs.append(ColdRun(LONG, LONG + 20, 0, 20, 4, 0, 1, 1))
            out = torch.full_like(self.recurrence.value, torch.nan)
            finite = segment_scan(
                *(self.recurrence.scan_inputs(), runs, self.states, self.transitions),
                *(works, work_transitions),
                out_LHV=out,
            )
            assert finite.all()
            self.outputs.append(out)

    def live(self) -> None:
        """Runs walked and in tiles, both gaps, a snapshot, a decode row from it."""
        gap = (Item(GAP, 0, 0, 0, 0, LONG - 8, 40), Item(GAP, 0, 0, 1, 1, 16, 200))
        items = [
            *(Item(LOAD), Item(RUN, 0, 7), gap[0], Item(RUN, 7, 47), Item(SAVE, slot=3), gap[1]),
            *(Item(RUN, 47, 48), Item(RUN, 48, 128), Item(SAVE, slot=4)),
            *(Item(LOAD, slot=3), Item(RUN, 130, 131), Item(SAVE, slot=3)),
        ]
        self.outputs.append(
            live_scan(
                self.recurrence.scan_inputs(),
                items,
                self.states,
                self.transitions,
                key_rotation=self.recurrence.key_rotation,
            )
        )

    def written(self) -> dict[str, torch.Tensor]:
        named = {f"output {i}": out for i, out in enumerate(self.outputs)}
        named["states"] = self.states
        if self.transitions is not None:
            named["transitions"] = self.transitions
        return named


def compare_walks(got: Walk, want: Walk, bounds: dict[str, float], otherwise: float) -> None:
    for name, x in want.written().items():
        mine = got.written()[name].cpu()
        same_places_written(name, mine, x)
        bound = bounds.get(name.split()[0], otherwise)
        assert_close(name, mine.nan_to_num(0.0), x.nan_to_num(0.0), rel_rms=bound)


@pytest.mark.parametrize("shape", [Shape(2, 5, 3), Shape(4, 17, 6), Shape(2, 70, 130)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_scans(device, family, dtype, shape):
    recurrence = drawn(family, LONG + 20, shape, 0, dtype)
    got = Walk.over(moved(recurrence, device), None)
    want = Walk.over(in_fp64(recurrence), None)
    # states are fp32 for bf16 values too
    states = transitions = 1e-11 if dtype == torch.float64 else 2e-5
    if dtype == torch.bfloat16 and recurrence.erase is not None:
        # a decay of each key row goes through fp32; with one of a head, or none, operands of
        # products are rounded to 11 bits
        is_tiled = recurrence.log_decay is None or recurrence.log_decay.ndim == 2
        states = OPERANDS if is_tiled else 1e-4
        # what is left of one after so many tokens is small against the identity that it began with
        transitions = 4 * states
    bounds = {"output": max(BOUNDS[dtype], states), "transitions": transitions}
    compare_walks(got, want, bounds, states)


@pytest.mark.parametrize("family", ["gated_delta_rule", "kda"])
def test_scans_with_transitions_kept_in_fp16(device, family):
    recurrence = drawn(family, LONG + 20, Shape(4, 17, 6), 0, torch.float32)
    got = Walk.over(moved(recurrence, device), torch.float16)
    compare_walks(got, Walk.over(in_fp64(recurrence), None), {}, 2e-3)


def test_scans_at_the_sizes_of_a_large_model(device):
    recurrence = drawn("gated_delta_rule", LONG + 20, Shape(32, 128, 128), 0, torch.bfloat16)
    got = Walk.over(moved(recurrence, device), torch.float16)
    compare_walks(got, Walk.over(in_fp64(recurrence), None), {"output": 2**-7}, 2e-3)


def far_apart(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """[2, *shape] of NaN whose rows lie more than 2^31 elements apart."""
    size = torch.Size(shape).numel()
    memory = torch.empty(2**31 + 64 + size, dtype=dtype, device=device)
    strides = torch.empty(shape, device="meta").stride()
    rows = memory.as_strided((2, *shape), (2**31 + 64, *strides))
    return rows.fill_(torch.nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_slabs_of_more_than_2_to_the_31_states(device, dtype):
    """A state moves through its own gap: T S + S; row by row, and by tiles in 16 bits."""
    H, K, V = 2, 33, 20
    inputs = moved(drawn("delta_rule", 1, Shape(H, K, V), 0, dtype), device).scan_inputs()
    states = far_apart(device, torch.float32, H, K, V)
    transitions = far_apart(device, torch.float16, H, K, K)
    state, transition = torch.randn(H, K, V), torch.randn(H, K, K).half()
    states[1], transitions[1] = state, transition
    gap = Item(GAP, slot=1, transition_slot=1, num_tokens=9)
    live_scan(inputs, [Item(LOAD, slot=1), gap, Item(SAVE, slot=0)], states, transitions)
    want = transition.double() @ state.double() + state.double()
    # tiles take the state of a product in fp16
    assert_close(
        "states", states[0].cpu(), want, rel_rms=1e-6 if dtype == torch.float32 else 2**-11
    )


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("sizes", [(1, 1), (33, 3), (96, 4), (8192, 4)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_short_conv(device, dtype, sizes, activation):
    channels, width = sizes
    inputs, weight = normal(device, dtype, 70, channels), normal(device, dtype, channels, width)
    bias, history = normal(device, dtype, channels), normal(device, dtype, width - 1, channels)
    items = [
        *(Item(LOAD, slot=4), Item(RUN, 40, 41), Item(SAVE, slot=4)),
        *(Item(LOAD), Item(RUN, 41, 43), Item(GAP, slot=0), Item(RUN, 43, 60), Item(SAVE, slot=5)),
    ]
    runs = [ColdRun(0, 20, 0, 36, 4, 5, 0, 0, 1), ColdRun(20, 40, 0, 20, 4, 4, 1, 1)]
    results = []
    for side in ("here", "wide"):
        x = getattr(inputs, side)
        tails, works = (poisoned(x.device, x.dtype, 6, width - 1, channels) for _ in range(2))
        tails[0], tails[4] = 0.25, getattr(history, side)
        out = short_conv(
            *(x, getattr(weight, side), getattr(bias, side)),
            activation=activation,
            items=items,
            cold_runs=runs,
            tails_SWC=tails,
            work_tails_XWC=works,
        )
        results.append({"outputs": out.cpu(), "tails": tails.cpu(), "work tails": works.cpu()})
    for name, want in results[1].items():
        if want.numel():
            same_places_written(name, results[0][name], want)
            got = results[0][name].nan_to_num(0.0)
            assert_close(name, got, want.nan_to_num(0.0), rel_rms=BOUNDS[dtype])


@pytest.mark.parametrize("width", [1, 4, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_short_conv_of_many_rows(device, dtype, width):
    """Long segments, one that goes on and one that began before, a live run, rows of nobody."""
    channels, rows = 1100, 2600
    # the first channels of wider rows
    inputs = normal(device, dtype, rows, channels + 4)
    weight, bias = normal(device, dtype, channels, width), normal(device, dtype, channels)
    history = normal(device, dtype, width - 1, channels)
    runs = [
        ColdRun(0, 1000, 0, 1000, 8, 3, 0, 0),
        ColdRun(1000, 1700, 300, 1000, 8, 0, 1, 1, 2),
        ColdRun(1700, 2301, 0, 900, 8, 0, 2, 2, 3),
    ]
    items = [Item(LOAD, slot=4), Item(RUN, 2310, 2590), Item(SAVE, slot=5)]
    results = []
    for side in ("here", "wide"):
        x = getattr(inputs, side)[:, :channels]
        tails, works = (poisoned(x.device, x.dtype, 6, width - 1, channels) for _ in range(2))
        tails[4], works[2] = getattr(history, side), getattr(history, side)
        out = short_conv(
            *(x, getattr(weight, side), getattr(bias, side)),
            activation="silu",
            items=items,
            cold_runs=runs,
            tails_SWC=tails,
            work_tails_XWC=works,
        )
        results.append({"outputs": out.cpu(), "tails": tails.cpu(), "work tails": works.cpu()})
    for name, want in results[1].items():
        if want.numel():
            same_places_written(name, results[0][name], want)
            got = results[0][name].nan_to_num(0.0)
            assert_close(name, got, want.nan_to_num(0.0), rel_rms=BOUNDS[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_rows_bits_in_the_conv_are_its_own(device, dtype, monkeypatch):
    """At once, in tiles and in stretches."""
    inputs, weight = normal(device, dtype, 60, 1100).here, normal(device, dtype, 1100, 4).here
    tails, works = (poisoned(device, dtype, 2, 3, 1100) for _ in range(2))
    items, runs = [Item(LOAD), Item(RUN, 0, 60)], [ColdRun(0, 60, 0, 60, 4, 4, 1, 1)]

    def conv(items: list[Item], runs: list[ColdRun]) -> torch.Tensor:
        return short_conv(
            inputs,
            weight,
            None,
            activation="silu",
            items=items,
            cold_runs=runs,
            tails_SWC=tails,
            work_tails_XWC=works if runs else None,
        )

    at_once, in_tiles = conv(items, []), conv([], runs)
    monkeypatch.setattr(conv_kernel, "FEWER_ROWS", -1)
    in_stretches = conv([], runs)
    assert torch.equal(at_once, in_tiles)
    assert torch.equal(in_stretches, in_tiles)


NUM_SLOTS = 3000


def attention_runs() -> tuple[list[AttentionRun], int]:
    """Decode rows and prefill runs, slots contiguous and scattered, rows of nobody between."""
    spans = (
        *((0, 1, 0), (1, 2, 299), (2, 3, 2500), (5, 38, 0), (38, 103, 200), (110, 126, 2000)),
        *((126, 134, 2900), (134, 142, 1016)),  # seams
    )
    runs = []
    for i, (start, stop, first) in enumerate(spans):
        keys = first + stop - start
        slots = torch.arange(100, 100 + keys) if i % 2 else torch.randperm(NUM_SLOTS)[:keys]
        runs.append(AttentionRun.over(start, stop, first, slots))
    return runs, 144


def attended(
    query: torch.Tensor,
    runs: Sequence[AttentionRun],
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """The definition, run by run in fp64."""
    out, ratio = torch.zeros_like(query), query.shape[1] // keys.shape[1]
    for run in runs:
        seen = run.slots[: run.num_keys]
        own, theirs = (x[seen].repeat_interleave(ratio, dim=1) for x in (keys, values))
        scores = scale * torch.einsum("lqe,pqe->lqp", query[run.row_start : run.row_stop], own)
        later = torch.ones(run.num_rows, run.num_keys).triu(run.first_position + 1).bool()
        weights = scores.masked_fill(later[:, None], -torch.inf).softmax(-1)
        out[run.row_start : run.row_stop] = torch.einsum("lqp,pqe->lqe", weights, theirs)
    return out


@pytest.mark.parametrize("sizes", [(1, 1, 3), (6, 3, 21), (6, 2, 64), (16, 2, 256)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_live_attention(device, dtype, sizes):
    Q, G, E = sizes
    runs, num_rows = attention_runs()
    query = normal(device, dtype, num_rows, Q, E)
    keys, values = (normal(device, dtype, NUM_SLOTS, G, E) for _ in range(2))
    here = [
        AttentionRun.over(run.row_start, run.row_stop, run.first_position, run.slots.to(device))
        for run in runs
    ]
    got = live_attention(query.here, here, keys.here, values.here, scale=E**-0.5)
    want = attended(query.wide, runs, keys.wide, values.wide, E**-0.5)
    assert_close("outputs", got.cpu(), want, rel_rms=BOUNDS[dtype])
    assert not got[103:110].any(), "rows of nobody are zero"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_runs_bits_in_attention_are_its_own(device, dtype):
    """Alone and among others, its slots here or there."""
    runs, num_rows = attention_runs()
    query = normal(device, dtype, num_rows, 16, 256).here
    keys, values = (normal(device, dtype, NUM_SLOTS, 2, 256).here for _ in range(2))
    moved_slots = torch.randperm(NUM_SLOTS, device=device)
    keys_there, values_there = torch.empty_like(keys), torch.empty_like(values)
    keys_there[moved_slots], values_there[moved_slots] = keys, values
    here, there = (
        [
            AttentionRun.over(
                run.row_start, run.row_stop, run.first_position, places[run.slots.to(device)]
            )
            for run in runs
        ]
        for places in (torch.arange(NUM_SLOTS, device=device), moved_slots)
    )
    together = live_attention(query, here, keys, values, scale=0.1)
    for run in there:
        alone = live_attention(query, [run], keys_there, values_there, scale=0.1)
        rows = slice(run.row_start, run.row_stop)
        assert torch.equal(alone[rows], together[rows])
