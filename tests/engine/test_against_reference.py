"""The engine against the token-by-token definition of design 3, on random prompts."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypic_sdk.config import (
    MODES,
    Determinism,
    EngineConfig,
    ReuseConfig,
    SchedulerConfig,
    SeamRule,
    StoreConfig,
)
from hypic_sdk.engine.engine import Engine
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.models.tiny_hybrid import build_tiny
from hypic_sdk.prompt.segment import (
    Border,
    BorderKind,
    PromptPart,
    Role,
    SegmentedPrompt,
    segment_id,
)
from hypic_sdk.transport.messages import EngineRequest, SamplingParams, TokenEvent
from tests.closeness import assert_close
from tests.engine.reference_assembler import assemble

NUM_TOKENS = 3
VOCAB = 97
# fp64: design 3.7 asks 1e-10 of a state; log-probabilities add up over the layers
REL_RMS = 1e-9

_counter = itertools.count()


@st.composite
def prompts(draw: st.DrawFn) -> tuple[SegmentedPrompt, SeamRule]:
    """Duplicates, glue of 0 to 5 tokens, interiors of 0 to 5 and more, borders anywhere."""
    head, tail = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    token = st.integers(3, VOCAB - 1)

    def tokens(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(token, min_size=low, max_size=high)))

    edge = max(head, 3) + tail
    lengths = st.one_of(st.integers(1, 5), st.integers(edge, edge + 5), st.integers(20, 90))
    documents = [tokens(n, n) for n in draw(st.lists(lengths, min_size=1, max_size=3))]
    pieces: list[tuple[Role, tuple[int, ...]]] = [(Role.LEADING, tokens(0, 6))]
    for index in draw(st.lists(st.integers(0, len(documents) - 1), min_size=1, max_size=4)):
        pieces += [(Role.INNER, documents[index]), (Role.GLUE, tokens(0, 5))]
    if draw(st.booleans()):  # a long live run crosses tiles and the chunk grid
        pieces.append((Role.GLUE, tokens(60, 150)))
    pieces.append((Role.TRAILING, tokens(1, 8)))
    parts = tuple(
        PromptPart(role, ids, segment_id(repr(ids)) if role is Role.INNER else None)
        for role, ids in pieces
        if ids
    )
    total = sum(len(part.token_ids) for part in parts)
    cuts = draw(st.sets(st.integers(1, total - 1), max_size=4)) if total > 1 else set()
    inside = interior_positions(parts, head, tail)
    borders = tuple(Border(p, BorderKind.MESSAGE) for p in sorted(cuts - inside))
    return SegmentedPrompt(parts, borders), SeamRule(head, tail)


def interior_positions(parts: tuple[PromptPart, ...], head: int, tail: int) -> set[int]:
    """Positions strictly inside inner segments: no border of a chat ever lies there."""
    inside: set[int] = set()
    start = 0
    for part in parts:
        if part.role is Role.INNER:
            inside |= set(range(start + 1, start + len(part.token_ids)))
        start += len(part.token_ids)
    return inside


def engine_for(family: str, reuse: ReuseConfig, *, joined: bool = False) -> Engine:
    """Joined, with steps that hold most prompts whole."""
    model = build_tiny(family, seed=1, dtype=torch.float64, layers="LAL")
    config = EngineConfig(
        device="cpu",
        dtype="float64",
        determinism=Determinism.ALL,
        reuse=reuse,
        store=StoreConfig(budget_bytes=64 << 20, expected_segment_tokens=64, pair="float64"),
        scheduler=SchedulerConfig(step_tokens=512 if joined else 64, chunk_tokens=64),
        joined=joined,
    )
    return Engine(model, "test", config)


def answer(engine: Engine, prompt: SegmentedPrompt, **options: object) -> list[TokenEvent]:
    request_id = f"r{next(_counter)}"
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=VOCAB)
    engine.submit(EngineRequest(request_id, prompt, sampling, **options))
    events: list[TokenEvent] = []
    while engine.has_work:
        events += [event for event in engine.step() if event.request_id == request_id]
    assert events[-1].error is None, events[-1].error
    return events


def check(events: list[TokenEvent], tokens: list[int], logprobs: torch.Tensor) -> None:
    got = [p for event in events for p in event.logprobs]
    assert [p.token_id for p in got] == tokens
    table = torch.empty_like(logprobs)
    for row, step in enumerate(got):
        for token_id, logprob in step.top:
            table[row, token_id] = logprob
    assert_close("logprobs", table, logprobs, rel_rms=REL_RMS)


RELAXED = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)


@pytest.mark.parametrize("family", FAMILIES)
@RELAXED
@given(case=prompts())
def test_cold_then_warm_then_chained_agree_with_the_definition(
    family: str, case: tuple[SegmentedPrompt, SeamRule]
) -> None:
    prompt, seam = case
    reuse = ReuseConfig(seam=seam, min_segment_tokens=1)
    tokens, logprobs = assemble(
        build_tiny(family, seed=1, dtype=torch.float64, layers="LAL"),
        prompt,
        reuse,
        num_tokens=NUM_TOKENS,
    )
    engine = engine_for(family, reuse)
    cold = answer(engine, prompt)  # every segment a miss
    joined = answer(engine_for(family, reuse, joined=True), prompt)  # too, in one forward
    warm = answer(engine, prompt)  # from entries, or from the longest chain
    for events in (cold, joined, warm):
        check(events, tokens, logprobs)
    report = warm[-1].report
    assert report is not None
    assert report.cold_tokens == 0
    assert report.chain_tokens + report.segment_tokens + report.live_tokens == prompt.num_tokens


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["lightning", "gated_delta_rule"])
@RELAXED
@given(case=prompts())
def test_every_mode_agrees_with_the_definition(
    mode: str, family: str, case: tuple[SegmentedPrompt, SeamRule]
) -> None:
    prompt, seam = case
    reuse = ReuseConfig(mode=MODES[mode], seam=seam, min_segment_tokens=1)
    model = build_tiny(family, seed=1, dtype=torch.float64, layers="LAL")
    tokens, logprobs = assemble(model, prompt, reuse, num_tokens=NUM_TOKENS)
    for joined in (False, True):
        engine = engine_for(family, reuse, joined=joined)
        for _ in range(2):
            check(answer(engine, prompt), tokens, logprobs)


@pytest.mark.parametrize("family", ["gated_delta_rule", "mamba2"])
@RELAXED
@given(case=prompts(), more=st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=40))
def test_a_chain_cut_anywhere_continues_as_the_longer_prompt(
    family: str, case: tuple[SegmentedPrompt, SeamRule], more: list[int]
) -> None:
    """Turn 2 is turn 1's prompt, its reply and more; whatever the chain covers."""
    prompt, seam = case
    reuse = ReuseConfig(seam=seam, min_segment_tokens=1)
    engine = engine_for(family, reuse)
    reply = [t for event in answer(engine, prompt, session_id="s") for t in event.token_ids]
    last = prompt.parts[-1]
    longer = PromptPart(Role.TRAILING, (*last.token_ids, *reply, *more))
    turn = SegmentedPrompt((*prompt.parts[:-1], longer), prompt.borders)
    model = build_tiny(family, seed=1, dtype=torch.float64, layers="LAL")
    tokens, logprobs = assemble(model, turn, reuse, num_tokens=NUM_TOKENS)
    events = answer(engine, turn, session_id="s")
    check(events, tokens, logprobs)
    report = events[-1].report
    # the reply's last token was sampled, never fed, so the chain ends just before it
    assert report is not None
    assert report.chain_tokens == prompt.num_tokens + len(reply) - 1


@pytest.mark.parametrize("family", ["gated_delta_rule"])
@RELAXED
@given(case=prompts())
def test_mode_off_leaves_no_trace(family: str, case: tuple[SegmentedPrompt, SeamRule]) -> None:
    """Off reads no entry and writes none: it answers as full recompute, before and after."""
    prompt, seam = case
    engine = engine_for(family, ReuseConfig(seam=seam, min_segment_tokens=1))
    model = build_tiny(family, seed=1, dtype=torch.float64, layers="LAL")
    full = ReuseConfig(mode=MODES["full_recompute"], seam=seam, min_segment_tokens=1)
    tokens, logprobs = assemble(model, prompt, full, num_tokens=NUM_TOKENS)
    empty = engine.usage()
    check(answer(engine, prompt, reuse=False), tokens, logprobs)
    assert engine.usage() == empty
    answer(engine, prompt)
    check(answer(engine, prompt, reuse=False), tokens, logprobs)
