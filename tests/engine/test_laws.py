"""The exactness laws of design 3.7, for every family, through the whole engine.

Laws 1, 2, 3 and 6 run in fp64 and allow 1e-10 (log-probabilities of a few layers; the design's bound
between our own paths).  Laws 4 and 5 run in fp32 and allow nothing: bits.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypic_sdk.config import SeamRule
from hypic_sdk.engine.engine import Engine
from hypic_sdk.prompt.segment import BorderKind, PromptPart, Role, SegmentedPrompt
from hypic_sdk.transport.messages import SegmentStatus, WarmRequest
from tests.closeness import assert_close
from tests.engine.harness import (
    ALL_FAMILIES,
    FEW_FAMILIES,
    answer,
    drain,
    engine_of,
    events_of,
    logprobs,
    report_of,
    request_of,
    token_ids,
    warm,
)
from tests.engine.prompts import inner, prompt_of, prompts, tokens, with_leading_border

REL_RMS = 1e-10

FEW = settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
seams = st.builds(SeamRule, st.integers(0, 9), st.integers(0, 9))


def as_one_text(prompt: SegmentedPrompt) -> SegmentedPrompt:
    """The same tokens as one part without borders."""
    return SegmentedPrompt((PromptPart(Role.TRAILING, prompt.token_ids),))


def full_recompute(family: str, prompt: SegmentedPrompt) -> torch.Tensor:
    """Log-probabilities of one plain forward over the token list, uncut."""
    engine = engine_of(family, mode="full_recompute", step_tokens=4096, chunk_tokens=4096)
    return logprobs(answer(engine, as_one_text(prompt)))


@pytest.mark.parametrize("family", ALL_FAMILIES)
@FEW
@given(prompt=prompts())
def test_law_1_every_token_live_equals_full_recompute(family, prompt):
    got = logprobs(answer(engine_of(family), prompt, reuse=False))
    assert_close("logprobs", got, full_recompute(family, prompt), rel_rms=REL_RMS)


@pytest.mark.parametrize("family", ALL_FAMILIES)
@FEW
@given(
    length=st.integers(1, 150), trailing=st.integers(1, 100), seed=st.integers(0, 99), seam=seams
)
def test_law_2_a_segment_at_position_0_equals_full_recompute(family, length, trailing, seed, seam):
    prompt = prompt_of(inner(tokens(seed, length)), tokens(seed + 1, trailing))
    engine = engine_of(family, seam=seam)
    want = full_recompute(family, prompt)
    for _ in ("cold", "warm"):
        events = answer(engine, prompt)
        assert_close("logprobs", logprobs(events), want, rel_rms=REL_RMS)
        assert report_of(events).exact


def final_state(engine: Engine, prompt: SegmentedPrompt) -> torch.Tensor:
    """State of the first linear layer after the prompt, out of its session's chain entry."""
    answer(engine, prompt, max_tokens=0, session_id="s")
    store = engine._store  # no public way to a state, on purpose
    (position,) = store.chain_positions("", None)[-1:]
    assert position == prompt.num_tokens
    chains = [r.entry for r in store._memory.chains.held.values() if r.entry.position == position]
    return store.slabs.states[chains[-1].state_slot, 0].clone()


@pytest.mark.parametrize("family", ALL_FAMILIES)
@FEW
@given(prompt=prompts(), head=st.integers(3, 9), tail=st.integers(0, 9))
def test_law_3_the_first_layers_state_is_the_sequential_one(family, prompt, head, tail):
    composed = final_state(engine_of(family, seam=SeamRule(head, tail)), prompt)
    sequential = final_state(engine_of(family, mode="prefix_cache"), prompt)
    assert_close("state", composed, sequential, rel_rms=REL_RMS)


def two_documents(seed: int = 0) -> tuple[SegmentedPrompt, list[PromptPart]]:
    """A leading part, segments of one and of several chunks, one of them twice, a long question."""
    documents = [inner(tokens(seed + 1, 50)), inner(tokens(seed + 2, 150)), inner(tokens(3, 64))]
    prompt = prompt_of(
        tokens(seed + 4, 21),
        documents[0],
        tokens(seed + 5, 3),
        documents[1],
        documents[2],
        documents[0],
        tokens(seed + 6, 90),
        borders=[
            (21, BorderKind.LEADING),
            (359 + 20, BorderKind.MESSAGE),
            (420, BorderKind.PROMPT),
        ],
    )
    return prompt, documents


def fp32_engine(family: str, **settings_: object) -> Engine:
    return engine_of(family, dtype=torch.float32, transition_dtype="float16", **settings_)


def crowd(engine: Engine, prompt: SegmentedPrompt) -> list:
    """The prompt's answer from a batch that decodes, assembles and computes for others."""
    others = [request_of(two_documents(seed)[0], max_tokens=9) for seed in (100, 200)]
    for other in others:
        engine.submit(other)
    engine.warm(WarmRequest("crowd", tuple(inner(tokens(300 + i, 70)) for i in range(4))))
    early = [event for _ in range(5) for event in engine.step()]
    message = request_of(prompt)
    engine.submit(message)
    return events_of([*early, *drain(engine)], message.request_id)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_law_4_warm_equals_cold_bit_for_bit(family):
    prompt, documents = two_documents()
    missing = answer(fp32_engine(family), prompt)
    want = logprobs(missing)
    statuses = [segment.status for segment in report_of(missing).segments]
    assert statuses == [SegmentStatus.COLD] * 4

    warmed = fp32_engine(family)
    warm(warmed, *reversed(documents))
    hit = answer(warmed, prompt)
    assert [s.status for s in report_of(hit).segments] == [SegmentStatus.HIT] * 4

    mixed_engine = fp32_engine(family)
    warm(mixed_engine, documents[1])
    mixed = answer(mixed_engine, prompt)
    assert {s.status for s in report_of(mixed).segments} == {
        SegmentStatus.HIT,
        SegmentStatus.COLD,
    }
    chained = answer(warmed, prompt)
    assert report_of(chained).chain_tokens == 420
    budgeted = answer(fp32_engine(family, step_tokens=256), prompt)
    crowded = crowd(fp32_engine(family), prompt)
    for name, events in {
        "hit": hit,
        "mixed": mixed,
        "chained": chained,
        "budgeted": budgeted,
        "crowded": crowded,
    }.items():
        assert torch.equal(logprobs(events), want), name
        assert token_ids(events) == token_ids(missing)


@pytest.mark.parametrize("family", FEW_FAMILIES)
@FEW
@given(prompt=prompts(), data=st.data())
def test_law_4_on_random_prompts(family, prompt, data):
    """Any subset warmed, any step budget, with and without chains of an earlier question."""
    prompt = with_leading_border(prompt)
    cold = logprobs(answer(fp32_engine(family), prompt))
    segments = [part for part in prompt.parts if part.role is Role.INNER]
    engine = fp32_engine(family, step_tokens=data.draw(st.sampled_from([64, 128, 512])))
    if segments:
        warm(engine, *data.draw(st.lists(st.sampled_from(segments), max_size=3)))
    if data.draw(st.booleans()):
        other = PromptPart(Role.TRAILING, tokens(99, 7))
        answer(engine, with_leading_border(SegmentedPrompt((*prompt.parts[:-1], other))))
    for _ in range(2):
        assert torch.equal(logprobs(answer(engine, prompt)), cold)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_law_5_an_entry_is_a_function_of_its_tokens(family):
    prompt, documents = two_documents()
    alone = []
    for document in documents:
        engine = fp32_engine(family)
        warm(engine, document)
        alone += engine.entry_digests([document])
    assert None not in alone
    assert len(set(alone)) == len(documents)

    warmed = fp32_engine(family)
    warm(warmed, *documents)
    wide = fp32_engine(family, step_tokens=512)
    warm(wide, *documents, *(inner(tokens(i + 40, 20)) for i in range(5)))
    requested = fp32_engine(family)
    answer(requested, prompt)
    crowded = fp32_engine(family, step_tokens=256)
    crowd(crowded, prompt)
    for engine in (warmed, wide, requested, crowded):
        assert engine.entry_digests(documents) == alone


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_law_6_order_of_warm_up_does_not_matter(family):
    prompt, documents = two_documents()
    answers = []
    for order in (documents, documents[::-1]):
        engine = fp32_engine(family)
        warm(engine, *order)
        answers.append(logprobs(answer(engine, prompt)))
    assert torch.equal(*answers)


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
