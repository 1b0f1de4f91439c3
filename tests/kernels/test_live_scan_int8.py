"""Gaps whose pairs are kept in 8 bits: the definition against fp64, the kernel against it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.algebra.rotary import rotate_state
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.kernels.items import ColdRun, Item
from hypic_sdk.kernels.segment_scan.op import segment_scan
from tests.closeness import assert_close
from tests.gpu.placed import moved as placed
from tests.kernels.test_live_scan import GAP, LAYER, LAYERS, LOAD, RUN, SAVE, Slabs, sequence
from tests.kernels.test_live_scan import walked as walked_by_kernel
from tests.strategies import BOUNDS, Shape, drawn, random_state, seeds, shapes

ROWS, NO_STATE = 5, 90  # an entry in 8 bits has no row of the state slab: its slot is a tail's


@dataclass
class Int8Slabs(Slabs):
    """State rows of requests, and pairs in 8 bits."""

    transitions: Int8Pairs

    @classmethod
    def of(cls, recurrence: Recurrence, *, compact: bool = False) -> Int8Slabs:
        inputs = recurrence.scan_inputs()
        state_shape = (inputs.num_heads, inputs.key_size, recurrence.value.shape[2])
        pairs = Int8Pairs.allocate(
            (ROWS, LAYERS),
            state_shape,
            inputs.transition_shapes()[0 if compact else -1],
            inputs.work_dtype,
            recurrence.value.device,
        )
        for slab in pairs.tensors():
            slab.fill_(77 if slab.dtype == torch.int8 else torch.nan)
        states = torch.full(
            (12, LAYERS, *state_shape),
            torch.nan,
            dtype=inputs.work_dtype,
            device=recurrence.value.device,
        )
        return cls(states[:, LAYER], pairs.layers()[LAYER])

    def record(self, alone: Recurrence, slot: int) -> Item:
        n = alone.num_tokens
        run = ColdRun(0, n, 0, n, 0, 0, NO_STATE + slot, slot)
        out = torch.empty_like(alone.value)
        finite = segment_scan(
            alone.scan_inputs(), [run], self.states, self.transitions, out_LHV=out
        )
        assert finite.tolist() == [True]
        return Item(GAP, slot=NO_STATE + slot, transition_slot=slot, num_tokens=n)


def moved(slabs: Int8Slabs, recurrence: Recurrence, gap: Item, state: torch.Tensor):
    """The oracle: T S + S0 in fp64 from what the row holds, by hand."""
    pairs, row, K = slabs.transitions, gap.transition_slot, recurrence.key.shape[2]
    end_state = pairs.states[row].double() * pairs.state_scales[row].double()[..., None]
    if recurrence.key_rotation is not None:
        end_state = rotate_state(end_state, recurrence.key_rotation, gap.start_position)
    if recurrence.erase is not None:
        matrix = pairs.transitions[row].double() * pairs.transition_scales[row].double()[..., None]
        assert not matrix.diagonal(dim1=-2, dim2=-1).any()
        matrix = matrix + torch.diag_embed(pairs.diagonals[row].double())
        return matrix @ state + end_state
    if recurrence.constant_log_decay is not None:
        log = recurrence.constant_log_decay.double() * gap.num_tokens
    else:
        log = pairs.transitions[row].double()
        if recurrence.rates is not None and log.ndim == 1:
            log = log[:, None] * recurrence.rates.double()
    factor = log.exp() if log.ndim == 2 else log.exp()[:, None].expand(-1, K)
    return factor[..., None] * state + end_state


@pytest.mark.parametrize(
    ("by_kernel", "dtype"),
    [(False, torch.float64), (False, torch.float32), (True, torch.float32)],
    ids=str,
)
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4)
@given(shape=shapes(), seed=seeds(), compact=st.booleans())
def test_gaps_are_composed_from_what_is_kept(family, dtype, by_kernel, shape, seed, compact):
    """Two gaps side by side, then the running state is kept."""
    tokens = sequence(family, 40, shape, seed, dtype)
    slabs = Int8Slabs.of(tokens.whole, compact=compact)
    start = random_state(shape, seed, dtype)
    slabs.states[10] = start
    gaps = [
        slabs.record(tokens.alone(0, 9), 3)._replace(start_position=5),
        slabs.record(tokens.alone(9, 40), 1)._replace(start_position=14),
    ]
    items = (Item(LOAD, slot=10), *gaps, Item(SAVE, slot=11))
    if by_kernel:
        walked_by_kernel(slabs, tokens.whole, items)
    else:
        slabs.walk(tokens.whole, items)
    want = start.double()
    for gap in gaps:
        want = moved(slabs, tokens.whole, gap, want)
    assert_close("state", slabs.states[11], want, rel_rms=BOUNDS[dtype])
    assert torch.equal(slabs.states[10], start)
    assert slabs.states[:10].isnan().all(), "nothing but SAVE writes"


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=3)
@given(shape=shapes(), seed=seeds(), long=st.booleans(), rotate=st.booleans())
def test_the_kernel_walks_as_the_definition_does(family, shape, seed, long, rotate):
    """Runs between the gaps, one of them perhaps too long to be walked."""
    tokens = sequence(family, 150, shape, seed, torch.float32)
    results = []
    for by_kernel in (False, True):
        slabs = Int8Slabs.of(tokens.whole)
        gaps = [slabs.record(tokens.alone(0, 20), 2), slabs.record(tokens.alone(20, 50), 0)]
        spans = (50, 120 if long else 60), (120, 140), (140, 140)
        first, second, none = (Item(RUN, *span) for span in spans)
        items = (
            *(Item(LOAD), gaps[0]._replace(start_position=0), first),
            *(gaps[1]._replace(start_position=30), gaps[0]._replace(start_position=77)),
            *(second, none, Item(SAVE, slot=4)),
        )
        if by_kernel:
            options = {} if rotate else {"gap_rotation": None}
            out = walked_by_kernel(slabs, tokens.whole, items, **options)
        else:
            out = slabs.walk(tokens.whole, list(items), rotate_gap=rotate)
        rows = [*range(*spans[0]), *range(*spans[1])]
        results.append((out[rows], slabs.states[4]))
    for got, want in zip(*reversed(results), strict=True):
        assert_close("walk", got, want, rel_rms=1e-5)


@pytest.mark.parametrize("by_kernel", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_without_transition_a_gap_only_adds(family, by_kernel):
    tokens = sequence(family, 9, Shape(2, 8, 13), 0, torch.float32)
    slabs = Int8Slabs.of(tokens.whole)
    slabs.states[10] = random_state(Shape(2, 8, 13), 1, torch.float32)
    items = [Item(LOAD, slot=10), slabs.record(tokens.alone(0, 9), 3), Item(SAVE, slot=11)]
    walk = walked_by_kernel if by_kernel else Int8Slabs.walk
    walk(slabs, tokens.whole, items, use_transition=False)
    want = slabs.states[10] + slabs.transitions.read_state(3, torch.float32)
    assert_close("state", slabs.states[11], want, rel_rms=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_memory_without_a_row_of_pairs_is_walked(family):
    """Of live checks, which see no gap: in 8 bits and in every other precision."""
    tokens = sequence(family, 9, Shape(2, 8, 13), 0, torch.float32)
    items, results = [Item(LOAD), Item(RUN, 0, 9), Item(SAVE, slot=4)], []
    slabs, wide = Int8Slabs.of(tokens.whole), Slabs.poisoned(tokens.whole)
    none = {
        field.name: None if (x := getattr(slabs.transitions, field.name)) is None else x[:0]
        for field in fields(Int8Pairs)
    }
    slabs.transitions = Int8Pairs(**none)
    wide.transitions = None if wide.transitions is None else wide.transitions[:0]
    for one in (slabs, wide):
        out = walked_by_kernel(one, tokens.whole, items)
        results.append((out, one.states[4].clone()))
        assert_close("walk", out, one.walk(tokens.whole, items), rel_rms=1e-5)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("family", ["gated_delta_rule", "kda"])
def test_what_8_bits_cost_is_what_is_published(family):
    """K = V = 64, eight gaps behind each other: docs/experiments.md says 1.1e-2, worst 1.7e-2."""
    shape = Shape(2, 64, 64)
    tokens = sequence(family, 8 * 60, shape, 0, torch.float64)
    slabs, wide = Int8Slabs.of(tokens.whole), Slabs.poisoned(tokens.whole)
    for one in (slabs, wide):
        gaps = [one.record(tokens.alone(60 * i, 60 * i + 60), i % 4) for i in range(4)]
        one.walk(tokens.whole, [Item(LOAD), *gaps, *gaps, Item(SAVE, slot=11)])
    error = (slabs.states[11] - wide.states[11]).norm() / wide.states[11].norm()
    assert 1e-4 < error < 1.7e-2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda shape: Shape(shape.H, shape.K, shape.V + 1), "8 bits"),
        (lambda shape: Shape(shape.H, shape.K + 1, shape.V), "8 bits"),
    ],
)
def test_pairs_of_other_shapes_are_refused(wrong, message):
    shape = Shape(2, 5, 3)
    tokens = sequence("gated_delta_rule", 9, shape, 0).whole
    slabs = Int8Slabs.of(tokens)
    slabs.transitions = Int8Slabs.of(
        sequence("gated_delta_rule", 9, wrong(shape), 0).whole
    ).transitions
    with pytest.raises(ValueError, match=message):
        slabs.walk(tokens, [Item(LOAD)])
    diagonal = Int8Slabs.of(sequence("gla", 9, shape, 0).whole)
    slabs.transitions = diagonal.transitions
    with pytest.raises(ValueError, match="transition slab"):
        slabs.walk(tokens, [Item(LOAD)])


def test_a_gap_needs_its_row_whatever_the_decay():
    tokens = sequence("retention", 9, Shape(2, 5, 3), 0).whole
    with pytest.raises(ValueError, match="without a transition"):
        Int8Slabs.of(tokens).walk(tokens, [Item(LOAD), Item(GAP, slot=NO_STATE)])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [Shape(2, 5, 3), Shape(2, 70, 130), Shape(4, 128, 128)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_device_gaps_are_composed_from_what_is_kept(device, family, dtype, shape):
    """Scanned, rounded and read there; the oracle by hand from the rows' bytes."""
    tokens = placed(drawn(family, 40, shape, 0, dtype), device)
    slabs = Int8Slabs.of(tokens)
    start = random_state(shape, 0, tokens.scan_inputs().work_dtype)
    slabs.states[10] = start.to(device)
    gaps = [
        slabs.record(tokens.rows(0, 9), 3)._replace(start_position=5),
        slabs.record(tokens.rows(9, 40), 1)._replace(start_position=14),
    ]
    slabs.walk(tokens, [Item(LOAD, slot=10), *gaps, Item(SAVE, slot=11)])
    kept = {
        field.name: None if (x := getattr(slabs.transitions, field.name)) is None else x.cpu()
        for field in fields(Int8Pairs)
    }
    there = Int8Slabs(slabs.states.cpu(), Int8Pairs(**kept))
    want, here = start.double(), placed(tokens, torch.device("cpu"))
    for gap in gaps:
        want = moved(there, here, gap, want)
    # fp16 products beside fp32 sums, where values are of 16 bits and tokens erase
    bound = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2e-3}[dtype]
    assert_close("state", there.states[11], want, rel_rms=bound)
