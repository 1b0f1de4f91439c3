"""The kernel for cold segments of a delta rule, in interpreter mode without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.kernels.items import ColdRun
from hypic_sdk.kernels.segment_scan import kernel, reference
from hypic_sdk.kernels.segment_scan.stretch import scan_stretch
from tests.closeness import assert_close
from tests.kernels.test_segment_scan import Slabs, assert_pair, joined
from tests.strategies import Shape, drawn, explicit_tokens, seeds, shapes, with_decay

FAMILIES = ("gated_delta_rule", "delta_rule")
BOUND = 1e-5


@pytest.fixture(autouse=True, scope="module")
def small_tiles() -> Iterator[None]:
    """The interpreter takes long over a tile of 64; a device runs the real ones."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setattr(kernel, "_TILE", 16)
        yield


def scanned(
    recurrence: Recurrence, slabs: Slabs, runs: list[ColdRun], *, definition: bool = False
) -> tuple[torch.Tensor, list[bool]]:
    """The kernel's path, or the definition, into an output of NaN."""
    out = torch.full_like(recurrence.value, torch.nan)
    scan = reference.segment_scan if definition else kernel.scan_in_tiles
    slabs_of = slabs.states, slabs.transitions, slabs.work_states, slabs.work_transitions
    return out, scan(recurrence.scan_inputs(), runs, *slabs_of, out).tolist()


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=6)
@given(
    interior=st.sampled_from([1, 2, 16, 17, 40]),
    head=st.sampled_from([0, 1, 8, 17]),
    tail=st.sampled_from([0, 1, 20]),
    shape=shapes(),
    decay=st.sampled_from([None, 1e-6, 0.5, 40.0]),
    seed=seeds(),
)
def test_a_segment_and_its_pair_are_the_definition(
    family, interior, head, tail, shape, decay, seed
):
    num_tokens = head + interior + tail
    recurrence = drawn(family, num_tokens, shape, seed, torch.float32)
    if decay is not None:
        recurrence = with_decay(recurrence, decay, seed)
    slabs = Slabs.poisoned(recurrence, torch.float32)
    runs = [ColdRun(0, num_tokens, 0, num_tokens, head, tail, 2, 1)]
    out, finite = scanned(recurrence, slabs, runs)
    assert finite == [True]
    tokens = explicit_tokens(recurrence)
    want, _ = tokens.run(tokens.zeros(), 0, num_tokens)
    assert_close("outputs", out, want, rel_rms=BOUND)
    assert_pair(
        recurrence, slabs, head=head, tail=tail, state_slot=2, transition_slot=1, bound=BOUND
    )
    assert slabs.states[[0, 1, 3]].isnan().all(), "only its own row is written"
    assert slabs.transitions[[0, 2, 3]].isnan().all()


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4)
@given(cuts=st.sets(st.integers(1, 49), max_size=3), shape=shapes(), seed=seeds())
def test_in_several_forwards_everything_is_written_as_by_the_definition(family, cuts, shape, seed):
    """Beside another segment, which is whole; work slabs included."""
    whole = drawn(family, 70, shape, seed, torch.float32)
    results = []
    for definition in (False, True):
        slabs, outputs, edges = Slabs.poisoned(whole, torch.float32), [], [0, *sorted(cuts), 50]
        for start, stop in pairwise(edges):
            runs = [ColdRun(start, stop, start, 50, 5, 3, 0, 0, 1)]
            if start == 0:
                runs.append(ColdRun(50, 70, 0, 20, 4, 0, 1, 1))
            out, finite = scanned(whole, slabs, runs, definition=definition)
            assert finite == [True] * len(runs)
            outputs.append(out)
        tensors = [*outputs, slabs.states, slabs.transitions, slabs.work_states]
        results.append([*tensors, slabs.work_transitions])
    for got, want in zip(*results, strict=True):
        assert torch.equal(got.isnan(), want.isnan()), "other places were written"
        # a transition of many tokens is small against the identity it started from
        room = want.nan_to_num(0.0).norm() + want.numel() ** 0.5
        assert float((got - want).nan_to_num(0.0).norm()) <= BOUND * float(room)


def test_bits_are_the_segments_own():
    """Alone and among others, at other rows of the batch and of the slabs."""
    shape = Shape(2, 8, 13)
    mine, other = (drawn("gated_delta_rule", 30, shape, seed, torch.float32) for seed in (0, 1))
    seen = set()
    for before, slot in ((0, 0), (0, 3), (1, 2), (2, 1)):
        batch = joined([*[other] * before, mine])
        slabs = Slabs.poisoned(mine, torch.float16)
        starts = range(0, 30 * (before + 1), 30)
        runs = [ColdRun(a, a + 30, 0, 30, 4, 2, 3 - slot, 3 - slot) for a in starts[:-1]]
        runs.append(ColdRun(starts[-1], starts[-1] + 30, 0, 30, 4, 2, slot, slot))
        out, _ = scanned(batch, slabs, runs)
        kept = slabs.states[slot].flatten().tolist(), slabs.transitions[slot].flatten().tolist()
        seen.add((*out[starts[-1] :].flatten().tolist(), *kept[0], *kept[1]))
    assert len(seen) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_long_live_runs_go_on_from_their_states(family):
    """Several at once, each from a work row of its own and back to it; no other row is written."""
    shape = Shape(2, 8, 13)
    recurrence = drawn(family, 90, shape, 0, torch.float32)
    work = torch.randn(4, shape.H, shape.K, shape.V)
    before = work.clone()
    out = torch.full_like(recurrence.value, torch.nan)
    runs = ((2, 3, 43), (0, 43, 44), (3, 50, 90))
    kernel.run_in_tiles(recurrence.scan_inputs(), runs, work, out)
    for row, start, stop in runs:
        want = scan_stretch(recurrence.scan_inputs().rows(start, stop), before[row])
        assert_close("outputs", out[start:stop], want[0], rel_rms=BOUND)
        assert_close("state", work[row], want[1], rel_rms=BOUND)
    assert torch.equal(work[1], before[1])
    assert out[:3].isnan().all()
    assert out[44:50].isnan().all()


@pytest.mark.parametrize("tile", [16, 32, 64])
def test_tiles_of_any_size_are_inverted_in_blocks(tile, monkeypatch):
    """Rows of a tile that erase each other strongly: the inverse is far from the identity."""
    monkeypatch.setattr(kernel, "_TILE", tile)
    recurrence = drawn("delta_rule", 100, Shape(1, 4, 3), 0, torch.float32)
    results = []
    for definition in (False, True):
        slabs = Slabs.poisoned(recurrence, torch.float32)
        runs = [ColdRun(0, 100, 0, 100, 4, 2, 2, 1)]
        out, _ = scanned(recurrence, slabs, runs, definition=definition)
        # what is left of a transition is small against the identity that it began with
        results.append((out, slabs.states[2], slabs.transitions[1] + torch.eye(4)))
    for got, want in zip(*results, strict=True):
        assert_close("tiles", got, want, rel_rms=BOUND)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter's numpy
def test_a_pair_that_is_not_finite_is_told():
    recurrence = drawn("delta_rule", 40, Shape(2, 5, 3), 0, torch.float32)
    recurrence.value[21] = torch.inf
    slabs = Slabs.poisoned(recurrence, torch.float16)
    _, finite = scanned(recurrence, slabs, [ColdRun(0, 40, 0, 40, 4, 4, 0, 0)])
    assert finite == [False]


@pytest.mark.parametrize("family", ["kda", "gla", "gated_delta_rule"])
def test_what_it_does_not_serve_goes_through_the_definition(family):
    """Diagonal decays, no erase, fp32 values: the same bits as the reference."""
    recurrence = drawn(family, 40, Shape(2, 5, 3), 0, torch.float32)
    assert not kernel.suits(recurrence.scan_inputs())
    results = []
    for scan in (kernel.segment_scan, reference.segment_scan):
        slabs = Slabs.poisoned(recurrence, torch.float32)
        out = torch.full_like(recurrence.value, torch.nan)
        run = [ColdRun(0, 40, 0, 40, 4, 4, 0, 0)]
        of = slabs.states, slabs.transitions, slabs.work_states, slabs.work_transitions
        scan(recurrence.scan_inputs(), run, *of, out)
        results.append(out)
    assert torch.equal(*results)


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [Shape(2, 5, 3), Shape(2, 70, 130), Shape(32, 128, 128)], ids=str)
def test_on_a_device_it_is_the_definition(device, family, shape):
    """bf16 inputs; states and transitions as in fp32, but for three products in place of one."""
    recurrence = drawn(family, 300, shape, 0, torch.bfloat16)
    runs = [ColdRun(0, 200, 0, 200, 8, 3, 0, 0), ColdRun(200, 300, 0, 100, 4, 0, 1, 1)]
    results = []
    for place in (device, torch.device("cpu")):
        there = Recurrence(
            **{
                name: x.to(place) if isinstance(x, torch.Tensor) else x
                for name, x in ((n, getattr(recurrence, n)) for n in recurrence.__slots__)
            }
        )
        states, transitions = (
            torch.full((4, shape.H, shape.K, n), torch.nan, device=place)
            for n in (shape.V, shape.K)
        )
        out = torch.full_like(there.value, torch.nan)
        scan = reference.segment_scan if place.type == "cpu" else kernel.segment_scan
        finite = scan(there.scan_inputs(), runs, states, transitions, None, None, out)
        assert finite.tolist() == [True, True]
        results.append((out, states[:2], transitions[:2]))
    (out, states, transitions), want = ([x.cpu() for x in result] for result in results)
    assert_close("outputs", out, want[0], rel_rms=2**-7)
    assert_close("states", states, want[1], rel_rms=1e-4)
    identity = torch.eye(shape.K)
    assert_close("transitions", transitions + identity, want[2] + identity, rel_rms=1e-4)
