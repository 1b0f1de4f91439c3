"""Exactness laws 1, 2, 3 and 6 of design 3.7, for every family, through the whole engine.

In fp64, with 1e-10 allowed: the design's bound between our own paths.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypic_sdk.config import SeamRule
from hypic_sdk.engine.engine import Engine
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt
from hypic_sdk.transport.messages import TokenEvent
from tests.closeness import assert_close
from tests.engine.harness import (
    ALL_FAMILIES,
    answer,
    engine_of,
    logprobs,
    model_of,
    report_of,
    token_ids,
)
from tests.engine.prompts import inner, prompt_of, prompts, tokens
from tests.plain_context import PlainContext

REL_RMS = 1e-10

FEW = settings(
    max_examples=6, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
# live rows behind the forward that completes their entries, and in it
ways = pytest.mark.parametrize(
    "way", [{}, {"joined": True, "step_tokens": 512}], ids=["apart", "joined"]
)
seams = st.builds(SeamRule, st.integers(0, 9), st.integers(0, 9))


def check_full_recompute(family: str, prompt: SegmentedPrompt, events: list[TokenEvent]) -> None:
    """The reply's log-probabilities are those of one plain causal forward over the token list.

    `PlainContext` shares no code with the engine: token by token, no cache, no kernels.
    """
    model, plain = model_of(family), PlainContext()
    rows = [plain.logits(model, prompt.token_ids)[-1]]
    rows += [plain.logits(model, [token])[-1] for token in token_ids(events)[:-1]]
    want = torch.stack(rows).log_softmax(-1)
    assert_close("logprobs", logprobs(events), want, rel_rms=REL_RMS)


@pytest.mark.parametrize("family", ALL_FAMILIES)
@FEW
@given(prompt=prompts())
def test_law_1_every_token_live_equals_full_recompute(family, prompt):
    check_full_recompute(family, prompt, answer(engine_of(family), prompt, reuse=False))


@pytest.mark.parametrize("family", ALL_FAMILIES)
@ways
@FEW
@given(
    length=st.integers(1, 150), trailing=st.integers(1, 100), seed=st.integers(0, 99), seam=seams
)
def test_law_2_a_segment_at_position_0_equals_full_recompute(
    family, way, length, trailing, seed, seam
):
    prompt = prompt_of(inner(tokens(seed, length)), tokens(seed + 1, trailing))
    engine = engine_of(family, seam=seam, **way)
    for _ in ("cold", "warm"):
        events = answer(engine, prompt)
        check_full_recompute(family, prompt, events)
        assert report_of(events).exact


def final_state(engine: Engine, prompt: SegmentedPrompt) -> torch.Tensor:
    """State of the first linear layer after the prompt, out of its session's chain entry."""
    answer(engine, prompt, max_tokens=0, session_id="s")
    store = engine._store  # no public way to a state, on purpose
    chains = [resident.entry for resident in store._memory.chains.held.values()]
    (last,) = (chain for chain in chains if chain.position == prompt.num_tokens)
    return store.slabs.states[last.state_slot, 0].clone()


@pytest.mark.parametrize("family", ALL_FAMILIES)
@ways
@FEW
@given(prompt=prompts(), head=st.integers(3, 9), tail=st.integers(0, 9))
def test_law_3_the_first_layers_state_is_the_sequential_one(family, way, prompt, head, tail):
    composed = final_state(engine_of(family, seam=SeamRule(head, tail), **way), prompt)
    plain = PlainContext()
    plain.extend(model_of(family), prompt.token_ids)
    assert_close("state", composed, plain.states[0], rel_rms=REL_RMS)


@pytest.mark.parametrize("family", ["gated_delta_rule", "kda", "delta_rule"])
@FEW
@given(seed=st.integers(0, 99))
def test_law_3_with_fp16_transitions_the_error_is_bounded(family, seed):
    """5e-4 |T| |S_before| / |S| for one gap (fp16 keeps 11 bits); |T| is at most 1 here."""
    document = inner(tokens(seed, 40))
    prompt = prompt_of(tokens(seed + 1, 30), document, (5,))
    composed = final_state(engine_of(family, pair="float16"), prompt)
    plain = PlainContext()
    plain.extend(model_of(family), prompt.token_ids[:34])
    before = plain.states[0].norm()
    plain.extend(model_of(family), prompt.token_ids[34:])
    bound = 5e-4 * float(before / plain.states[0].norm())
    assert_close("state", composed, plain.states[0], rel_rms=bound)


@pytest.mark.parametrize("family", ALL_FAMILIES)
@FEW
@given(prompt=prompts(), more=st.integers(1, 90))
def test_law_6_continuing_equals_the_longer_forward(family, prompt, more):
    """Turn 2 goes on from the state that turn 1 ended with, decoded reply included."""
    engine = engine_of(family)
    reply = token_ids(answer(engine, prompt, session_id="s"))
    last = prompt.parts[-1].token_ids + tuple(reply) + tokens(7, more)
    turn = SegmentedPrompt((*prompt.parts[:-1], PromptPart(Role.TRAILING, last)), prompt.borders)
    continued = answer(engine, turn, session_id="s")
    assert report_of(continued).chain_tokens == prompt.num_tokens + len(reply) - 1
    afresh = answer(engine_of(family), turn)
    assert_close("logprobs", logprobs(continued), logprobs(afresh), rel_rms=REL_RMS)
