"""The composition law, over every family of the registry."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.algebra.rotary import RotarySpec, rotate_state
from hypic_sdk.algebra.segment_state import SegmentState, fold
from hypic_sdk.algebra.transition import ScalarTransition, Transition
from hypic_sdk.families.registry import FAMILIES
from tests.closeness import assert_close
from tests.strategies import drawn, explicit_tokens, random_state, seeds, shapes

# fp64 throughout: some hundred roundings, factors at most 1
EXACT = 1e-12


def assert_same(what: str, got: SegmentState[Transition], want: SegmentState[Transition]) -> None:
    key_size = want.end_state.shape[-2]
    got_T, want_T = got.transition.to_dense(key_size), want.transition.to_dense(key_size)
    assert type(got.transition) is type(want.transition)
    assert_close(f"{what}: end state", got.end_state, want.end_state, rel_rms=EXACT)
    assert_close(f"{what}: transition", got_T, want_T, rel_rms=EXACT)


def stretches(
    family: str, lengths: list[int], shape, seed: int
) -> tuple[SegmentState[Transition], list[SegmentState[Transition]]]:
    """The pair of a whole stretch, and of the pieces it is cut into."""
    rest = drawn(family, sum(lengths), shape, seed)
    whole = rest.segment_state()
    pieces = []
    for length in lengths:
        piece, rest = rest.split(length)
        pieces.append(piece.segment_state())
    return whole, pieces


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15)
@given(num_tokens=st.integers(1, 40), shape=shapes(), seed=seeds())
def test_the_pair_is_what_the_tokens_say(family, num_tokens, shape, seed):
    recurrence = drawn(family, num_tokens, shape, seed)
    tokens, pair = explicit_tokens(recurrence), recurrence.segment_state()
    _, end_state = tokens.run(tokens.zeros(), 0, num_tokens)
    assert_close("end state", pair.end_state, end_state, rel_rms=EXACT)
    transition = pair.transition.to_dense(shape.K)
    assert_close("transition", transition, tokens.transition(0, num_tokens), rel_rms=EXACT)
    incoming = random_state(shape, seed)
    _, state = tokens.run(incoming, 0, num_tokens)
    assert_close("applied", pair.apply(incoming), state, rel_rms=EXACT)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15)
@given(num_tokens=st.integers(1, 40), cut=st.floats(0, 1), shape=shapes(), seed=seeds())
def test_any_split_gives_the_same_pair(family, num_tokens, cut, shape, seed):
    first = round(cut * num_tokens)  # either side may be empty
    whole, (left, right) = stretches(family, [first, num_tokens - first], shape, seed)
    assert_same("split", left.then(right), whole)
    incoming = random_state(shape, seed)
    after = right.apply(left.apply(incoming))
    assert_close("applied", left.then(right).apply(incoming), after, rel_rms=EXACT)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=10)
@given(lengths=st.lists(st.integers(0, 9), min_size=3, max_size=3), shape=shapes(), seed=seeds())
def test_composition_is_associative(family, lengths, shape, seed):
    whole, (a, b, c) = stretches(family, lengths, shape, seed)
    assert_same("left first", a.then(b).then(c), whole)
    assert_same("right first", a.then(b.then(c)), whole)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=10)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=9), shape=shapes(), seed=seeds())
def test_a_fold_is_the_composition_in_order(family, lengths, shape, seed):
    whole, pieces = stretches(family, lengths, shape, seed)
    assert_same("fold", fold(pieces), whole)


@pytest.mark.parametrize("family", FAMILIES)
@given(shape=shapes(), seed=seeds())
@settings(max_examples=5)
def test_the_identity_changes_nothing(family, shape, seed):
    pair = drawn(family, 6, shape, seed).segment_state()
    identity = pair.identity()
    incoming = random_state(shape, seed)
    assert torch.equal(identity.apply(incoming), incoming)
    assert_same("before", identity.then(pair), pair)
    assert_same("after", pair.then(identity), pair)
    assert_same("empty", drawn(family, 0, shape, seed).segment_state(), identity)


def test_nothing_cannot_be_folded():
    with pytest.raises(ValueError, match="nothing"):
        fold([])


@given(position=st.integers(0, 10_000), seed=seeds(), interleaved=st.booleans())
@settings(max_examples=20)
def test_a_turn_commutes_with_a_scalar_transition(position, seed, interleaved):
    """Why a state with rotary keys can be recorded at local positions (design 2)."""
    spec = RotarySpec(1e4, 6, interleaved)
    rng = torch.Generator().manual_seed(seed)
    state = torch.randn(3, 7, 4, generator=rng, dtype=torch.float64)
    transition = ScalarTransition(-torch.rand(3, generator=rng, dtype=torch.float64))
    turned_last = rotate_state(transition.apply(state), spec, position)
    turned_first = transition.apply(rotate_state(state, spec, position))
    assert_close("state", turned_first, turned_last, rel_rms=EXACT)
    end_state = torch.randn(3, 7, 4, generator=rng, dtype=torch.float64)
    pair = SegmentState(transition, end_state)
    moved = SegmentState(transition, rotate_state(end_state, spec, position))
    want = rotate_state(pair.apply(state), spec, position)
    got = moved.apply(rotate_state(state, spec, position))
    assert_close("moved pair", got, want, rel_rms=EXACT)
