"""Cold segments against explicit T_i and u_i: outputs, the pair of the interior, chunks, bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.kernels.items import NO_SLOT, ColdRun
from hypic_sdk.kernels.segment_scan.op import segment_scan
from hypic_sdk.kernels.segment_scan.step import step_scan
from hypic_sdk.kernels.segment_scan.stretch import steps_only
from hypic_sdk.kernels.segment_scan.tiled import tiled_scan
from tests.closeness import assert_close
from tests.strategies import (
    BOUNDS,
    Shape,
    drawn,
    explicit_tokens,
    in_fp64,
    random_state,
    seeds,
    shapes,
    with_decay,
)

ROWS_OF_SLABS = 4
LAYERS, LAYER = 3, 1  # an op gets one layer's view, which is not contiguous


def joined(parts: list[Recurrence], gap_rows: int = 0) -> Recurrence:
    """Recurrences packed into one batch, `gap_rows` rows of padding before each."""

    def packed(name: str) -> torch.Tensor | None:
        fields = [getattr(part, name) for part in parts]
        if fields[0] is None:
            return None
        padding = fields[0].new_full((gap_rows, *fields[0].shape[1:]), 0.5)
        return torch.cat([x for field in fields for x in (padding, field)])

    per_token = ("query", "key", "value", "log_decay", "erase", "steps")
    return replace(parts[0], **{name: packed(name) for name in per_token})


@dataclass
class Slabs:
    """One layer's views of poisoned slabs, as the engine hands them over."""

    states: torch.Tensor
    transitions: torch.Tensor | None
    work_states: torch.Tensor
    work_transitions: torch.Tensor | None

    @classmethod
    def poisoned(
        cls, recurrence: Recurrence, transition_dtype: torch.dtype, *, compact: bool = False
    ) -> Slabs:
        """All NaN; `compact`: Mamba-1 keeps the sum of its step sizes."""
        inputs = recurrence.scan_inputs()
        shape = inputs.transition_shapes()[0 if compact else -1]

        def slab(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            return torch.full((ROWS_OF_SLABS, LAYERS, *size), torch.nan, dtype=dtype)[:, LAYER]

        H, K, V = inputs.num_heads, inputs.key_size, recurrence.value.shape[2]
        work = inputs.work_dtype
        return cls(
            slab((H, K, V), work),
            None if shape is None else slab(shape, transition_dtype),
            slab((H, K, V), work),
            None if shape is None else slab(shape, work),
        )


def run_cold(
    recurrence: Recurrence, slabs: Slabs, runs: list[ColdRun]
) -> tuple[torch.Tensor, list[bool]]:
    """The op into an output of NaN."""
    out = torch.full_like(recurrence.value, torch.nan)
    finite = segment_scan(
        recurrence.scan_inputs(),
        runs,
        slabs.states,
        slabs.transitions,
        slabs.work_states,
        slabs.work_transitions,
        out_LHV=out,
    )
    return out, finite.tolist()


def kept_transition(recurrence: Recurrence, slabs: Slabs, slot: int, num_tokens: int):
    """A stored transition as a matrix [H, K, K] in fp64."""
    K = recurrence.key.shape[2]
    if recurrence.constant_log_decay is not None:
        log = recurrence.constant_log_decay.double() * num_tokens
    else:
        assert slabs.transitions is not None
        log = slabs.transitions[slot].double()
        if recurrence.erase is not None:
            return log
        if recurrence.rates is not None and log.ndim == 1:
            log = log[:, None] * recurrence.rates.double()
    return torch.diag_embed(log.exp() if log.ndim == 2 else log.exp()[:, None].expand(-1, K))


def assert_pair(recurrence, slabs, *, head, tail, state_slot, transition_slot, bound) -> None:
    """The kept pair is the interior's own: T and S from a zero start at token `head`."""
    stop = recurrence.num_tokens - tail
    tokens = explicit_tokens(recurrence)
    _, end_state = tokens.run(tokens.zeros(), head, stop)
    _, incoming = tokens.run(tokens.zeros(), 0, head)
    # S = F - T S_head is rounded at the size of F, which may be larger than S
    size = (end_state.square().mean().sqrt(), incoming.square().mean().sqrt())
    room = max(1.0, float(size[1] / size[0]))
    assert_close("end state", slabs.states[state_slot], end_state, rel_rms=bound * room)
    # a tile's T is its decay less what is erased: some roundings at the size of the identity
    transition = kept_transition(recurrence, slabs, transition_slot, stop - head)
    want, identity = tokens.transition(head, stop), tokens.transition(0, 0)
    assert_close("transition", transition + identity, want + identity, rel_rms=bound / 10)
    before = random_state(Shape(*end_state.shape), 0)
    composed = transition @ before + slabs.states[state_slot].double()
    assert_close("composed", composed, tokens.run(before, head, stop)[1], rel_rms=bound)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=12)
@given(
    num_tokens=st.sampled_from([1, 2, 15, 16, 17, 33, 64, 65, 130, 300]),
    shape=shapes(),
    seed=seeds(),
    decay=st.sampled_from([None, 1e-6, 0.5, 40.0]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    scan=st.sampled_from([step_scan, tiled_scan]),
)
def test_steps_and_tiles_are_the_definition(family, num_tokens, shape, seed, decay, dtype, scan):
    """From any start, for decays from -1e-6 to -40 a token, mixed where they vary."""
    recurrence = drawn(family, num_tokens, shape, seed, dtype)
    if decay is not None:
        recurrence = with_decay(recurrence, decay, seed)
    start = random_state(shape, seed, dtype)
    outputs, state, *_ = scan(recurrence.scan_inputs(), start)
    want_outputs, want_state = explicit_tokens(recurrence).run(start.double(), 0, num_tokens)
    assert_close("outputs", outputs, want_outputs, rel_rms=BOUNDS[dtype])
    assert_close("state", state, want_state, rel_rms=BOUNDS[dtype])
    assert torch.equal(start, random_state(shape, seed, dtype)), "the start state is read only"


@pytest.mark.parametrize("family", ["delta_rule", "gated_delta_rule", "kda"])
@settings(max_examples=10)
@given(
    num_tokens=st.sampled_from([1, 16, 63, 65, 300]),
    shape=shapes(),
    seed=seeds(),
    decay=st.sampled_from([1e-6, 0.01, 1.0]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_tiles_carry_the_transition(family, num_tokens, shape, seed, decay, dtype):
    """As further columns, from a transition of tokens before; the state stays the same."""
    recurrence = with_decay(drawn(family, num_tokens, shape, seed, dtype), decay, seed)
    start = random_state(shape, seed, dtype)
    before = random_state(replace(shape, V=shape.K), seed + 1, dtype)
    outputs, state, transition = tiled_scan(recurrence.scan_inputs(), start, before)
    tokens = explicit_tokens(recurrence)
    want_outputs, want_state = tokens.run(start.double(), 0, num_tokens)
    assert_close("outputs", outputs, want_outputs, rel_rms=BOUNDS[dtype])
    assert_close("state", state, want_state, rel_rms=BOUNDS[dtype])
    want = tokens.transition(0, num_tokens) @ before.double()
    assert_close("transition", transition, want, rel_rms=BOUNDS[dtype])


@pytest.mark.parametrize("family", ["mamba2", "gla", "gated_delta_rule", "kda", "mamba1"])
def test_a_token_may_forget_everything(family):
    """A log-decay of minus infinity, or far below what exp can tell from it."""
    shape = Shape(2, 5, 3)
    for strength in (5e3, torch.inf):
        recurrence = with_decay(drawn(family, 70, shape, 0), strength, 1)
        start = random_state(shape, 0)
        want_outputs, want_state = explicit_tokens(recurrence).run(start, 0, 70)
        for scan in (step_scan, tiled_scan):
            outputs, state, *_ = scan(recurrence.scan_inputs(), start)
            assert_close("outputs", outputs, want_outputs, rel_rms=1e-10)
            assert_close("state", state, want_state, rel_rms=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=12)
@given(
    interior=st.sampled_from([1, 2, 17, 64, 71, 130]),
    head=st.sampled_from([0, 1, 8, 13, 40]),
    tail=st.sampled_from([0, 1, 8, 20]),
    shape=shapes(),
    seed=seeds(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    compact=st.booleans(),
)
def test_the_pair_is_the_interiors_alone(family, interior, head, tail, shape, seed, dtype, compact):
    """Whatever the seams; outputs are of the segment's own full run (design 3.2)."""
    num_tokens = head + interior + tail
    recurrence = drawn(family, num_tokens, shape, seed, dtype)
    slabs = Slabs.poisoned(recurrence, dtype, compact=compact)
    run = ColdRun(0, num_tokens, 0, num_tokens, head, tail, state_slot=2, transition_slot=1)
    out, finite = run_cold(recurrence, slabs, [run])
    tokens = explicit_tokens(recurrence)
    want, _ = tokens.run(tokens.zeros(), 0, num_tokens)
    assert finite == [True]
    assert_close("outputs", out, want, rel_rms=BOUNDS[dtype])
    assert_pair(
        recurrence,
        slabs,
        head=head,
        tail=tail,
        state_slot=2,
        transition_slot=1,
        bound=BOUNDS[dtype],
    )
    for slot in (0, 1, 3):
        assert slabs.states[slot].isnan().all(), "other rows of the slab are nobody's"


@st.composite
def cuts(draw: st.DrawFn, num_tokens: int) -> list[int]:
    """Borders of the forwards of one segment, 0 and its end included."""
    inner = draw(st.sets(st.integers(1, num_tokens - 1), max_size=5)) if num_tokens > 1 else set()
    return [0, *sorted(inner), num_tokens]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15)
@given(data=st.data(), shape=shapes(), seed=seeds(), compact=st.booleans())
def test_chunks_give_the_same_pair(family, data, shape, seed, compact):
    """Cut anywhere: inside a seam, at its border, one token at a time."""
    head, interior, tail = (data.draw(st.integers(low, 40)) for low in (0, 1, 0))
    num_tokens = head + interior + tail
    borders = data.draw(cuts(num_tokens))
    recurrence = drawn(family, num_tokens, shape, seed)
    slabs = Slabs.poisoned(recurrence, torch.float64, compact=compact)
    outputs = []
    for start, stop in pairwise(borders):
        part = recurrence.rows(start, stop)
        run = ColdRun(0, stop - start, start, num_tokens, head, tail, 0, 3, work_slot=2)
        out, finite = run_cold(part, slabs, [run])
        assert finite == [True]
        outputs.append(out)
    tokens = explicit_tokens(recurrence)
    want, _ = tokens.run(tokens.zeros(), 0, num_tokens)
    assert_close("outputs", torch.cat(outputs), want, rel_rms=1e-10)
    assert_pair(
        recurrence, slabs, head=head, tail=tail, state_slot=0, transition_slot=3, bound=1e-10
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_are_the_segments_own(family, dtype):
    """Purity (design 3.7, law 5): the same alone, behind others, at any offset of the batch."""
    shape = Shape(4, 17, 6)
    mine = drawn(family, 150, shape, 0, dtype)
    others = [drawn(family, length, shape, 7 + length, dtype) for length in (3, 90)]
    shared = (
        {"constant_log_decay": mine.constant_log_decay}
        if mine.rates is None
        else {"rates": mine.rates}
    )
    others = [replace(other, **shared) for other in others]
    alone, alone_out, alone_finite = None, None, None
    for before, gap_rows in (([], 0), ([], 5), ([], 37), (others[:1], 0), (others, 1)):
        parts = [*before, mine]
        batch = joined(parts, gap_rows)
        slabs = Slabs.poisoned(mine, torch.float16 if mine.erase is not None else torch.float32)
        runs, row = [], 0
        for slot, part in enumerate(parts[:-1]):
            row += gap_rows
            n = part.num_tokens
            runs.append(ColdRun(row, row + n, 0, n, 1, 1, slot, slot))
            row += n
        row += gap_rows
        runs.append(ColdRun(row, row + 150, 0, 150, 8, 4, 3, 2))
        out, finite = run_cold(batch, slabs, runs)
        entry = [slabs.states[3]] + ([] if slabs.transitions is None else [slabs.transitions[2]])
        rows = out[row : row + 150]
        if alone is None:
            alone, alone_out, alone_finite = entry, rows, finite[-1]
            continue
        assert finite[-1] == alone_finite
        assert torch.equal(rows, alone_out)
        assert all(map(torch.equal, entry, alone))


@pytest.mark.parametrize("family", ["gated_delta_rule", "gla", "lightning"])
def test_a_packed_batch_is_each_segment_alone(family):
    """Several cold segments of one forward, with seams and slots of their own."""
    shape = Shape(2, 8, 13)
    lengths = (1, 70, 20)
    parts = [drawn(family, n, shape, 0) for n in lengths]
    shared = {"constant_log_decay": parts[0].constant_log_decay}
    parts = [replace(part, **shared) for part in parts]
    batch = joined(parts, gap_rows=2)
    slabs = Slabs.poisoned(batch, torch.float64)
    runs, seams, row = [], ((0, 0), (8, 3), (5, 0)), 0
    for slot, (n, (head, tail)) in enumerate(zip(lengths, seams, strict=True)):
        row += 2
        runs.append(ColdRun(row, row + n, 0, n, head, tail, slot, 3 - slot))
        row += n
    out, finite = run_cold(batch, slabs, runs)
    assert finite == [True, True, True]
    for slot, (part, run, (head, tail)) in enumerate(zip(parts, runs, seams, strict=True)):
        tokens = explicit_tokens(part)
        want, _ = tokens.run(tokens.zeros(), 0, part.num_tokens)
        assert_close("outputs", out[run.row_start : run.row_stop], want, rel_rms=1e-10)
        assert_pair(
            part,
            slabs,
            head=head,
            tail=tail,
            state_slot=slot,
            transition_slot=3 - slot,
            bound=1e-10,
        )
    written = torch.zeros(batch.num_tokens, dtype=torch.bool)
    for run in runs:
        written[run.row_start : run.row_stop] = True
    assert out[~written].isnan().all(), "rows of nobody are left as they are"


def test_values_of_low_precision_are_computed_in_fp32():
    """Against the fp64 recurrence on the same rounded inputs: only the outputs are rounded."""
    shape = Shape(2, 8, 13)
    recurrence = drawn("gated_delta_rule", 90, shape, 1, torch.bfloat16)
    slabs = Slabs.poisoned(recurrence, torch.float32)
    out, _ = run_cold(recurrence, slabs, [ColdRun(0, 90, 0, 90, 8, 0, 0, 0)])
    tokens = explicit_tokens(in_fp64(recurrence))
    want, _ = tokens.run(tokens.zeros(), 0, 90)
    assert out.dtype == torch.bfloat16
    assert_close("outputs", out, want, rel_rms=2**-8)
    assert_pair(recurrence, slabs, head=8, tail=0, state_slot=0, transition_slot=0, bound=1e-5)


def test_an_fp16_transition_is_the_rounded_one():
    shape = Shape(2, 8, 13)
    recurrence = with_decay(drawn("kda", 90, shape, 1, torch.float32), 0.01, 0)
    exact, rounded = (Slabs.poisoned(recurrence, d) for d in (torch.float32, torch.float16))
    for slabs in (exact, rounded):
        run_cold(recurrence, slabs, [ColdRun(0, 90, 0, 90, 8, 0, 0, 0)])
    assert exact.transitions is not None
    assert rounded.transitions is not None
    assert torch.equal(rounded.transitions[0], exact.transitions[0].half())
    assert torch.equal(rounded.states[0], exact.states[0])


def overflowing(family: str) -> Recurrence:
    """An erase of strength 30 turns the state over: entries grow by 29 a token."""
    recurrence = drawn(family, 8, Shape(2, 5, 3), 0, torch.float32)
    assert recurrence.erase is not None
    key = recurrence.key[:1].expand_as(recurrence.key)
    return replace(recurrence, erase=torch.full_like(recurrence.erase, 30.0), key=key)


def test_a_transition_too_large_for_its_slab_is_told():
    """And of its own segment alone: the other in the batch is as it should be."""
    bad, good = overflowing("delta_rule"), drawn("delta_rule", 8, Shape(2, 5, 3), 3, torch.float32)
    batch = joined([bad, good])
    runs = [ColdRun(0, 8, 0, 8, 0, 0, 0, 0), ColdRun(8, 16, 0, 8, 0, 0, 1, 1)]
    for dtype, fits in ((torch.float16, False), (torch.float32, True)):
        slabs = Slabs.poisoned(batch, dtype)
        _, finite = run_cold(batch, slabs, runs)
        assert finite == [fits, True]
        assert torch.isfinite(slabs.states).sum() == 2 * slabs.states[0].numel()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("where", [3, 40])
def test_a_value_that_is_not_finite_is_told(family, where):
    """In the interior as well as in the head seam, whose state reaches F."""
    recurrence = drawn(family, 50, Shape(2, 5, 3), 0)
    value = recurrence.value.clone()
    value[where, 1, 2] = torch.nan
    slabs = Slabs.poisoned(recurrence, torch.float64)
    run = ColdRun(0, 50, 0, 50, 8, 0, 0, 0)
    _, finite = run_cold(replace(recurrence, value=value), slabs, [run])
    assert finite == [False]


def test_a_run_that_does_not_close_its_interior_is_no_verdict():
    recurrence = drawn("mamba2", 20, Shape(2, 5, 3), 0)
    slabs = Slabs.poisoned(recurrence, torch.float64)
    run = ColdRun(0, 20, 0, 60, 8, 0, 0, 0, work_slot=1)
    assert run_cold(recurrence, slabs, [run])[1] == [True]
    assert slabs.transitions is not None
    assert slabs.transitions.isnan().all(), "no entry before it is whole"
    assert torch.isfinite(slabs.work_states[1]).all()


def test_mamba_proper_goes_by_steps():
    """One value a channel: tiles would only multiply the work."""
    recurrence = drawn("mamba1", 70, Shape(6, 4, 1), 0)
    assert steps_only(recurrence.scan_inputs())
    slabs = Slabs.poisoned(recurrence, torch.float64, compact=True)
    out, _ = run_cold(recurrence, slabs, [ColdRun(0, 70, 0, 70, 20, 13, 0, 0)])
    tokens = explicit_tokens(recurrence)
    assert_close("outputs", out, tokens.run(tokens.zeros(), 0, 70)[0], rel_rms=1e-10)
    assert_pair(recurrence, slabs, head=20, tail=13, state_slot=0, transition_slot=0, bound=1e-10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row_stop": 21}, "rows"),
        ({"offset": 5}, "rows from token 5 of 20"),
        ({"head_tokens": 12, "tail_tokens": 8}, "no interior"),
        ({"num_tokens": 30}, "work slabs"),
        ({"state_slot": NO_SLOT}, "slots"),
        ({"transition_slot": NO_SLOT}, "slots"),
    ],
)
def test_runs_that_cannot_be_are_refused(changes, message):
    recurrence = drawn("gla", 20, Shape(2, 5, 3), 0)
    slabs = Slabs.poisoned(recurrence, torch.float64)
    run = replace(ColdRun(0, 20, 0, 20, 3, 2, 0, 0), **changes)
    with pytest.raises(ValueError, match=message):
        run_cold(recurrence, slabs, [run])


def test_slabs_that_do_not_fit_are_refused():
    recurrence = drawn("gla", 20, Shape(2, 5, 3), 0)
    run = [ColdRun(0, 20, 0, 20, 3, 2, 0, 0)]
    slabs = Slabs.poisoned(recurrence, torch.float64)
    with pytest.raises(ValueError, match="state slab"):
        run_cold(recurrence, replace_slab(slabs, states=slabs.states.float()), run)
    with pytest.raises(ValueError, match="transition slab"):
        run_cold(recurrence, replace_slab(slabs, transitions=slabs.transitions[..., :4]), run)
    with pytest.raises(ValueError, match="transition slab"):
        run_cold(recurrence, replace_slab(slabs, transitions=None), run)
    with pytest.raises(ValueError, match="out"):
        segment_scan(
            recurrence.scan_inputs(), run, slabs.states, slabs.transitions, out_LHV=torch.empty(3)
        )


def replace_slab(slabs: Slabs, **changes: torch.Tensor | None) -> Slabs:
    return replace(slabs, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": torch.zeros(4, 2, 6)}, "do not fit"),
        ({"value": torch.zeros(4, 3, 3)}, "no multiple"),
        ({"erase": torch.zeros(4, 1)}, "erase"),
        ({"steps": torch.zeros(4, 2)}, "come together"),
        ({"constant_log_decay": torch.zeros(2)}, "one form"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(changes, message):
    recurrence = drawn("gla", 4, Shape(2, 5, 3), 0, torch.float32)
    with pytest.raises(ValueError, match=message):
        replace(recurrence, **changes).scan_inputs().check()
