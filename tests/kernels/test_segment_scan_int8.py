"""Cold segments whose pairs are kept in 8 bits: those of the other formats, rounded once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.kernels.items import ColdRun
from hypic_sdk.kernels.segment_scan import kernel
from hypic_sdk.kernels.segment_scan.into_pairs import scan_into_pairs
from hypic_sdk.kernels.segment_scan.op import segment_scan
from tests.kernels.test_segment_scan import LAYER, LAYERS, ROWS_OF_SLABS, Slabs, joined
from tests.strategies import Shape, drawn, seeds, shapes

HEAD, TAIL, BEHIND = 5, 3, 50  # slots of entries without a state row


def poisoned(recurrence: Recurrence, *, compact: bool = False) -> Int8Pairs:
    inputs = recurrence.scan_inputs()
    pairs = Int8Pairs.allocate(
        (ROWS_OF_SLABS, LAYERS),
        (inputs.num_heads, inputs.key_size, recurrence.value.shape[2]),
        inputs.transition_shapes()[0 if compact else -1],
        inputs.work_dtype,
        torch.device("cpu"),
    )
    for slab in pairs.tensors():
        slab.fill_(77 if slab.dtype == torch.int8 else torch.nan)
    return pairs.layers()[LAYER]


def bits(pairs: Int8Pairs, row: int) -> list[list[float]]:
    return [slab[row].double().flatten().tolist() for slab in pairs.tensors()]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=6)
@given(
    cuts=st.sets(st.integers(1, 49), max_size=3),
    compact=st.booleans(),
    shape=shapes(),
    seed=seeds(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_rows_hold_the_pair_rounded_once(family, cuts, compact, shape, seed, dtype):
    """One segment in several forwards, another one beside it, which is whole."""
    whole = drawn(family, 70, shape, seed, dtype)
    exact, pairs = Slabs.poisoned(whole, dtype, compact=compact), poisoned(whole, compact=compact)
    states, heads = exact.states.clone(), torch.full_like(exact.work_states, torch.nan)
    work = torch.full_like(exact.work_states, torch.nan)
    work_transitions = None
    if exact.work_transitions is not None:
        work_transitions = torch.full_like(exact.work_transitions, torch.nan)
    for start, stop in pairwise([0, *sorted(cuts), 50]):
        runs = [ColdRun(start, stop, start, 50, HEAD, TAIL, 0, 0, 1)]
        if start == 0:
            runs.append(ColdRun(50, 70, 0, 20, 4, 0, 1, 1))
        outputs, found = [], []
        for slabs in (
            (exact.states, exact.transitions, exact.work_states, exact.work_transitions),
            (states, pairs, work, work_transitions, heads),
        ):
            out = torch.full_like(whole.value, torch.nan)
            found.append(segment_scan(whole.scan_inputs(), tuple(runs), *slabs, out_LHV=out))
            outputs.append(out.nan_to_num(7.0))
        assert torch.equal(*outputs)
        assert torch.equal(*found)
        assert bool(found[0].all())
    assert torch.equal(exact.work_states[1].nan_to_num(7.0), work[1].nan_to_num(7.0))
    assert states.isnan().all(), "nothing goes to the state slab"
    assert heads[[0, 2, 3]].isnan().all()
    want = poisoned(whole, compact=compact)
    kept = None if exact.transitions is None else exact.transitions[:2]
    want.write([0, 1], kept, exact.states[:2])
    for row in (0, 1):
        assert bits(pairs, row) == bits(want, row)
    for slab in pairs.tensors():
        others = slab[2:]
        assert bool((others == 77).all() if slab.dtype == torch.int8 else others.isnan().all())


@pytest.mark.parametrize("family", FAMILIES)
def test_bits_are_the_segments_own(family):
    """Alone and among others, at other rows of the batch and of the slabs."""
    shape = Shape(2, 8, 13)
    mine, other = (drawn(family, 30, shape, seed, torch.float32) for seed in (0, 1))
    seen = set()
    for before, slot in ((0, 0), (0, 3), (1, 2), (2, 1)):
        batch = joined([*[other] * before, mine])
        pairs = poisoned(mine)
        starts = range(0, 30 * (before + 1), 30)
        free = [row for row in range(ROWS_OF_SLABS) if row != slot]
        rows = [*free[:before], slot]
        runs = [
            ColdRun(start, start + 30, 0, 30, 4, 2, BEHIND + row, row)
            for start, row in zip(starts, rows, strict=True)
        ]
        out = torch.full_like(batch.value, torch.nan)
        states = torch.empty(0, *pairs.states.shape[1:])
        assert segment_scan(batch.scan_inputs(), runs, states, pairs, out_LHV=out).all()
        seen.add(str((out[starts[-1] :].tolist(), bits(pairs, slot))))
    assert len(seen) == 1


def test_the_kernel_hands_over_the_same_pairs(monkeypatch):
    """Tiles in interpreter mode; within rounding of the definition's, so a step apart at most."""
    monkeypatch.setattr(kernel, "_TILE", 16)
    recurrence = drawn("gated_delta_rule", 50, Shape(2, 8, 13), 0, torch.float32)
    results = []
    for scan in (kernel.segment_scan, None):
        pairs, heads = poisoned(recurrence), torch.full((2, 2, 8, 13), torch.nan)
        work = torch.full((2, 2, 8, 13), torch.nan), torch.full((2, 2, 8, 8), torch.nan), heads
        states = torch.empty(0, 2, 8, 13)
        for start, stop in ((0, 20), (20, 30), (30, 50)):
            runs = (ColdRun(start, stop, start, 50, HEAD, TAIL, BEHIND, 2, 1),)
            out, inputs = torch.full_like(recurrence.value, torch.nan), recurrence.scan_inputs()
            if scan is None:
                finite = segment_scan(inputs, runs, states, pairs, *work, out_LHV=out)
            else:
                finite = scan_into_pairs(scan, inputs, runs, pairs, work, out)
            assert finite.tolist() == [True]
        results.append(pairs)
    mine, definition = results
    for name in ("states", "transitions"):
        got, want = getattr(mine, name)[2].int(), getattr(definition, name)[2].int()
        assert int((got - want).abs().max()) <= 1
    torch.testing.assert_close(mine.state_scales[2], definition.state_scales[2])
    torch.testing.assert_close(mine.diagonals[2], definition.diagonals[2])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pair_that_is_not_finite_is_told(family):
    recurrence = drawn(family, 40, Shape(2, 5, 3), 0, torch.float32)
    recurrence.value[21] = torch.inf
    pairs, out = poisoned(recurrence), torch.full_like(recurrence.value, torch.nan)
    runs = [ColdRun(0, 40, 0, 40, 4, 4, BEHIND, 0)]
    states = torch.empty(0, *pairs.states.shape[1:])
    finite = segment_scan(recurrence.scan_inputs(), runs, states, pairs, out_LHV=out)
    assert finite.tolist() == [False]


def test_a_pair_that_8_bits_do_not_hold_is_told():
    """Finite in fp32, but for the diagonal of T in fp16; beside another one, which is kept."""
    recurrence = drawn("delta_rule", 6, Shape(2, 5, 3), 0, torch.float32)
    recurrence = replace(recurrence, unit_keys=False, erase=recurrence.erase.clone())
    recurrence.key[:] = 1.0
    recurrence.erase[4] = 1e6
    exact, pairs = Slabs.poisoned(recurrence, torch.float32), poisoned(recurrence)
    for transitions, want in ((exact.transitions, [True, True]), (pairs, [True, False])):
        runs = [ColdRun(i, i + 3, 0, 3, 1, 1, i // 3, i // 3) for i in (0, 3)]
        out = torch.full_like(recurrence.value, torch.nan)
        finite = segment_scan(
            recurrence.scan_inputs(), runs, exact.states, transitions, out_LHV=out
        )
        assert finite.tolist() == want


def test_a_segment_of_several_forwards_needs_a_row_for_its_head():
    recurrence = drawn("retention", 20, Shape(2, 5, 3), 0, torch.float32)
    pairs, out = poisoned(recurrence), torch.empty_like(recurrence.value)
    runs, work = [ColdRun(0, 20, 0, 30, 4, 4, BEHIND, 0, 0)], torch.zeros(1, 2, 5, 3)
    states = torch.empty(0, 2, 5, 3)
    with pytest.raises(ValueError, match="no row of work slabs"):
        segment_scan(recurrence.scan_inputs(), runs, states, pairs, work, out_LHV=out)
    heads = torch.zeros(1, 2, 5, 3)
    segment_scan(recurrence.scan_inputs(), runs, states, pairs, work, None, heads, out_LHV=out)
