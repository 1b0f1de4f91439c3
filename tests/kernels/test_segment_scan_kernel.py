"""The kernel for cold segments of a delta rule, in interpreter mode without a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.kernels.items import ColdRun
from hypic_sdk.kernels.segment_scan import kernel, reference
from hypic_sdk.kernels.segment_scan.stretch import scan_stretch
from tests.closeness import assert_close
from tests.gpu.placed import moved
from tests.kernels.test_segment_scan import Slabs, assert_pair, joined
from tests.strategies import Shape, drawn, explicit_tokens, in_fp64, seeds, shapes, with_decay

FAMILIES = ("gated_delta_rule", "delta_rule")
BOUND = 1e-5
# of a state with operands in fp16: key (twice), state, solution, what is missing and pseudo-values
# are rounded by up to 2^-11 each, in quadrature; the rest is room for keys of few dimensions
OPERANDS = 2**-9


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
    scan = reference.segment_scan if definition else kernel.segment_scan
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
    """Several at once, each from a work row of its own and back to it; no other row is written.

    A launch goes on from where another left a work row.
    """
    shape = Shape(2, 8, 13)
    recurrence = drawn(family, 90, shape, 0, torch.float32)
    work = torch.randn(4, shape.H, shape.K, shape.V)
    before = work.clone()
    out = torch.full_like(recurrence.value, torch.nan)
    launches = (((2, 3, 20), (0, 43, 44), (3, 50, 90)), (), ((2, 20, 43),))
    long_runs = kernel.LongRuns.of(recurrence.scan_inputs(), launches)
    want = before.clone()
    for number in (0, 2):
        long_runs.walk(number, work, out)
        for row, start, stop in launches[number]:
            rows = recurrence.scan_inputs().rows(start, stop)
            outputs, want[row] = scan_stretch(rows, want[row])
            assert_close("outputs", out[start:stop], outputs, rel_rms=BOUND)
            assert_close("state", work[row], want[row], rel_rms=BOUND)
    assert torch.equal(work[1], before[1])
    assert out[:3].isnan().all()
    assert out[44:50].isnan().all()


@dataclass(frozen=True)
class Case:
    """What is changed in inputs that are drawn, and what a state may be off."""

    change: Callable[[Recurrence], Recurrence]
    bound: float = OPERANDS


def nearly_parallel(r: Recurrence) -> Recurrence:
    key = (9 * r.key[:1].float() + r.key.float()).bfloat16()
    return replace(r, key=key)


def with_strengths_of_0_and_1(r: Recurrence) -> Recurrence:
    assert r.erase is not None
    rng = torch.Generator().manual_seed(1)
    return replace(r, erase=torch.randint(0, 2, r.erase.shape, generator=rng).to(r.erase.dtype))


CASES = {
    "as drawn": Case(lambda r: r),
    "decays of zero": Case(lambda r: with_decay(r, 0.0, 0)),
    "decays of e^-40": Case(lambda r: with_decay(r, 40.0, 0)),
    "strengths of 0 and 1": Case(with_strengths_of_0_and_1),
    # keys differ by a tenth of their length, of which three bits less are kept
    "keys nearly parallel": Case(nearly_parallel, 8 * OPERANDS),
    "small values": Case(lambda r: replace(r, value=r.value * 1e-20)),
    "large values": Case(lambda r: replace(r, value=r.value * 1e20)),
    "values that grow": Case(
        lambda r: replace(r, value=r.value * torch.logspace(-4, 12, len(r.value))[:, None, None])
    ),
}


@pytest.mark.parametrize(
    ("family", "case"),
    [("delta_rule", "as drawn"), *(("gated_delta_rule", case) for case in CASES)],
)
def test_in_16_bits_it_is_the_definition_as_far_as_operands_of_products_are(
    family, case, monkeypatch
):
    """Real tiles; interiors around the borders of tiles, all in one launch."""
    monkeypatch.setattr(kernel, "_TILE", 64)
    is_drawn = case == "as drawn"
    lengths, (head, tail) = (1, 15, 16, 63, 64, 65) if is_drawn else (1, 63, 65), (3, 1)
    edges = list(accumulate((head + n + tail for n in lengths), initial=0))
    H, K, V = 2 if is_drawn else 1, 24, 20
    drawn_here = drawn(family, edges[-1], Shape(H, K, V), 0, torch.bfloat16)
    changed = CASES[case].change(drawn_here)
    recurrence = replace(changed, value=changed.value.bfloat16())
    runs = [ColdRun(a, b, 0, b - a, head, tail, i, i) for i, (a, b) in enumerate(pairwise(edges))]
    (out, states, transitions), want = in_16_bits_and_in_fp64(recurrence, runs)
    bound, identity = CASES[case].bound, torch.eye(K)
    for i, run in enumerate(runs):
        rows = slice(run.row_start, run.row_stop)
        # and the outputs' own 8 bits, which the interpreter cuts off
        assert_close("outputs", out[rows], want[0][rows], rel_rms=2**-8 + bound)
        # S is what is left of the state at the end without what came before it
        room = max(1.0, float(want[0][rows].norm() / want[0][rows][head:-tail].norm()))
        assert_close("states", states[i], want[1][i], rel_rms=bound * room)
        kept = transitions[i].double() + identity, want[2][i] + identity
        assert_close("transitions", *kept, rel_rms=OPERANDS)


def in_16_bits_and_in_fp64(
    recurrence: Recurrence, runs: list[ColdRun]
) -> tuple[tuple[torch.Tensor, ...], ...]:
    """Outputs, states and transitions of the kernels and of the definition."""
    results = []
    for of, scan in (
        (recurrence, kernel.segment_scan),
        (in_fp64(recurrence), reference.segment_scan),
    ):
        inputs = of.scan_inputs()
        sizes = inputs.value.shape[2], inputs.key_size
        states, transitions = (
            torch.full((len(runs), inputs.num_heads, inputs.key_size, n), torch.nan).to(
                inputs.work_dtype
            )
            for n in sizes
        )
        out = torch.full_like(of.value, torch.nan)
        assert scan(inputs, runs, states, transitions, None, None, out).all()
        results.append((out, states, transitions))
    return tuple(results)


def test_a_transition_keeps_its_bits_however_small_its_decay():
    """It would vanish in fp16 if its units did not shrink with it."""
    recurrence = drawn("gated_delta_rule", 80, Shape(1, 24, 20), 0, torch.bfloat16)
    recurrence = replace(
        recurrence,
        log_decay=torch.full_like(recurrence.log_decay, -0.5),
        erase=recurrence.erase / 8,
    )
    runs = [ColdRun(0, 80, 0, 80, 0, 0, 0, 0)]
    (_, _, transitions), (_, _, wanted) = in_16_bits_and_in_fp64(recurrence, runs)
    assert float(wanted.abs().max()) < 1e-14
    assert_close("transitions", transitions * 1e16, wanted * 1e16, rel_rms=OPERANDS)


@pytest.mark.parametrize("decay", [0.02, 0.3, 1.0, 5.0, 40.0])
def test_a_transition_is_not_longer_than_its_decay(decay, monkeypatch):
    """It is taken in units that shrink tile by tile, down to where nothing is left of it.

    Its rounded factors may be twice the true ones where they are as small as fp16 gets.
    """
    monkeypatch.setattr(kernel, "_TILE", 64)
    recurrence = drawn("gated_delta_rule", 150, Shape(1, 24, 20), 0, torch.bfloat16)
    decays = torch.full_like(recurrence.log_decay, -decay)
    recurrence = replace(recurrence, log_decay=decays)
    runs = [ColdRun(0, 150, 0, 150, 0, 0, 0, 0)]
    (_, _, transitions), _ = in_16_bits_and_in_fp64(recurrence, runs)
    assert torch.isfinite(transitions).all()
    longest = torch.linalg.matrix_norm(transitions.double(), 2).max()
    assert float(longest) <= 2 * math.exp(-150 * decay)


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


def test_keys_that_are_no_unit_vectors_are_not_served():
    """Products in fp16 have the range for unit keys alone."""
    inputs = drawn("delta_rule", 8, Shape(2, 5, 3), 0, torch.bfloat16).scan_inputs()
    assert inputs.suits_fp16
    assert not replace(inputs, unit_keys=False).suits_fp16


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [Shape(2, 5, 3), Shape(2, 70, 130), Shape(32, 128, 128)], ids=str)
def test_on_a_device_it_is_the_definition(device, family, shape):
    """bf16 inputs: states and transitions as far as operands of products are fp16."""
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
    assert_close("states", states, want[1], rel_rms=OPERANDS)
    identity = torch.eye(shape.K)
    assert_close("transitions", transitions + identity, want[2] + identity, rel_rms=OPERANDS)


@pytest.mark.gpu
def test_on_a_device_bits_are_the_segments_own(device):
    """Alone, with a multiprocessor for each program, and among others, which share one."""
    shape, length = Shape(32, 128, 128), 300
    alone = drawn("gated_delta_rule", length, shape, 0, torch.bfloat16)
    other = drawn("gated_delta_rule", length, shape, 1, torch.bfloat16)
    seen = []
    for before, after in ((0, 0), (1, 0), (3, 1), (0, 7)):
        batch = moved(joined([*[other] * before, alone, *[other] * after]), device)
        count = before + 1 + after
        states, transitions = (
            torch.full((count, shape.H, shape.K, n), torch.nan, device=device)
            for n in (shape.V, shape.K)
        )
        runs = [ColdRun(i * length, (i + 1) * length, 0, length, 8, 3, i, i) for i in range(count)]
        out = torch.full_like(batch.value, torch.nan)
        slabs = states, transitions, None, None
        assert kernel.segment_scan(batch.scan_inputs(), runs, *slabs, out).all()
        rows = slice(before * length, (before + 1) * length)
        seen.append([x.cpu() for x in (out[rows], states[before], transitions[before])])
    for found in seen[1:]:
        assert all(torch.equal(*pair) for pair in zip(found, seen[0], strict=True))
