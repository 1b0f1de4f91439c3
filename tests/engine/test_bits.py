"""Laws 4, 5 and 6 of design 3.7 in fp32, bit for bit: nothing is allowed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypic_sdk.engine.engine import Engine
from hypic_sdk.models.tiny_hybrid import build_tiny
from hypic_sdk.prompt.segment import BorderKind, PromptPart, Role, SegmentedPrompt
from hypic_sdk.transport.messages import SegmentStatus, TokenEvent, WarmRequest
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

FEW = settings(
    max_examples=6, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


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
    return engine_of(family, dtype=torch.float32, pair="float16", **settings_)


def crowd(engine: Engine, prompt: SegmentedPrompt) -> list[TokenEvent]:
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


@pytest.mark.parametrize(
    "shape",
    [
        {"layers": "LL"},
        {"layers": "LAL", "rotary": False},
        {"layers": "ALAL", "dtype": torch.bfloat16},
        {"layers": "LAL", "num_kv_heads": 4, "num_heads": 2},
    ],
    ids=["no_attention", "no_rotary", "bf16", "no_shared_heads"],
)
def test_laws_4_and_5_hold_for_other_shapes(shape):
    model = build_tiny("mamba2", seed=1, **shape)
    prompt, documents = two_documents()
    engines = [engine_of(model=model, pair="float16") for _ in range(2)]
    cold = answer(engines[0], prompt)
    warm(engines[1], *documents)
    assert torch.equal(logprobs(answer(engines[1], prompt)), logprobs(cold))
    assert torch.equal(logprobs(answer(engines[1], prompt)), logprobs(cold))
    digests = [engine.entry_digests(documents) for engine in engines]
    assert digests[0] == digests[1]
    assert None not in digests[0]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_laws_4_and_5_hold_at_real_widths():
    """Products long enough to be cut in blocks, vectors longer than a register, two threads."""
    sizes = {
        "width": 640,
        "inner": 1100,
        "num_heads": 4,
        "key_size": 48,
        "value_size": 40,
        "num_query_heads": 4,
        "head_size": 64,
    }
    model = build_tiny("gated_delta_rule", seed=2, layers="AL", **sizes)
    document = inner(tokens(1, 100))
    prompt = prompt_of(tokens(2, 21), document, tokens(3, 70))
    engines = [fp32_engine("gated_delta_rule", model=model, step_tokens=s) for s in (64, 192)]
    cold = answer(engines[0], prompt, max_tokens=2)
    warm(engines[1], document)
    crowd = [request_of(prompt_of(inner(tokens(4, 90)), tokens(5, 40)), max_tokens=9)]
    crowd.append(request_of(prompt, max_tokens=2))
    for message in crowd:
        engines[1].submit(message)
    hit = events_of(drain(engines[1]), crowd[1].request_id)
    assert torch.equal(logprobs(hit), logprobs(cold))
    digests = [engine.entry_digests([document]) for engine in engines]
    assert digests[0] == digests[1] != [None]
