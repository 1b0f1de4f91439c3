"""Live checks: what they may cost, what they may touch, what they say, when they switch reuse off.

Time is a number that a forward moves: nothing here waits or measures.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hypic_sdk.config import Determinism, EngineConfig, ShadowConfig
from hypic_sdk.engine.answers import answer_of
from hypic_sdk.engine.divergence import divergence_rows
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.shadow_books import ReplyCheck, ShadowBooks, ShadowFacts
from hypic_sdk.layers.context import ForwardContext
from hypic_sdk.models.base import CausalLM, ModelSpec
from hypic_sdk.models.tiny_hybrid import build_tiny
from hypic_sdk.prompt.segment import SegmentedPrompt
from hypic_sdk.transport.control import Ask, Question
from hypic_sdk.transport.messages import EngineRequest, SamplingParams, SegmentStatus
from tests.engine.harness import (
    FEW_FAMILIES,
    answer,
    check_idle,
    drain,
    engine_of,
    events_of,
    logprobs,
    model_of,
    report_of,
    request_of,
    token_ids,
    warm,
)
from tests.engine.prompts import inner, prompt_of, tokens
from tests.plain_context import PlainContext

STEP_S = 0.25  # what a forward takes
CHECKS = ShadowConfig(idle_s=0.1, share=1.0, max_tokens=1024, max_reply_tokens=8)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Timed(nn.Module):
    """A model whose forwards take `STEP_S` of the clock; counts rows, and falls over when told."""

    def __init__(self, inner_model: CausalLM, clock: Clock) -> None:
        super().__init__()
        self.model = inner_model
        self.clock = clock
        self.rows: list[int] = []  # of each forward, padding included
        self.fail_next = False

    @property
    def spec(self) -> ModelSpec:
        return self.model.spec

    def forward(self, ids_L: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        self.rows.append(int(ids_L.shape[0]))
        self.clock.now_s += STEP_S
        hidden_LD = self.model.forward(ids_L, context)
        if self.fail_next:
            self.fail_next = False
            raise ValueError("the model fell over")
        return hidden_LD

    def logits(self, hidden_ND: torch.Tensor, *, row_independent: bool) -> torch.Tensor:
        return self.model.logits(hidden_ND, row_independent=row_independent)


def checked(
    family: str = "gated_delta_rule",
    shadow: ShadowConfig | None = CHECKS,
    model: CausalLM | None = None,
) -> tuple[Engine, Timed, Clock]:
    clock = Clock()
    timed = Timed(model or model_of(family), clock)
    return engine_of(model=timed, clock=clock, shadow=shadow), timed, clock


def question(seed: int = 5, length: int = 100) -> SegmentedPrompt:
    documents = inner(tokens(1, length)), inner(tokens(2, length))
    return prompt_of(tokens(90, 7), documents[0], tokens(60, 3), documents[1], tokens(seed, 9))


def facts_of(engine: Engine) -> ShadowFacts:
    assert engine.shadow is not None
    return engine.shadow.books.facts()


def idle_until_done(engine: Engine, clock: Clock, max_steps: int = 1000) -> int:
    """Let time pass until nothing is left to check; how many steps that took."""
    steps = 0
    for _ in range(max_steps):
        wait_s = engine.idle()
        if wait_s is None:
            return steps
        steps += wait_s == 0.0
        clock.now_s += wait_s
    raise AssertionError("the checks do not end")


# -- what it says


@pytest.mark.parametrize("family", FEW_FAMILIES)
@pytest.mark.parametrize("length", [9, 100])
def test_it_tells_the_divergence_from_a_plain_forward_over_the_same_tokens(family, length):
    engine, timed, clock = checked(family)
    prompt = question(length=length)
    events = answer(engine, prompt, max_tokens=5)
    said = token_ids(events)
    served_NV = logprobs(events)
    rows = PlainContext().logits(timed.model, [*prompt.token_ids, *said[:-1]])
    full_NV = rows[prompt.num_tokens - 1 :]
    idle_until_done(engine, clock)
    facts = facts_of(engine)
    wanted = divergence_rows(full_NV, served_NV)
    assert facts.kl_nats == pytest.approx(float(wanted.sum()), rel=1e-6, abs=1e-12)
    assert facts.num_agreed == int((full_NV.argmax(-1) == served_NV.argmax(-1)).sum())
    assert (facts.num_replies, facts.num_tokens, facts.num_dropped) == (1, 5, 0)
    assert facts.kl_nats > 1e-9, "the prompt is composed: a check that sees nothing checks nothing"


def test_it_sees_nothing_where_composition_is_exact():
    model = build_tiny("gated_delta_rule", seed=1, dtype=torch.float64, layers="L")
    engine, _, clock = checked(model=model)
    answer(engine, question(), max_tokens=5)
    idle_until_done(engine, clock)
    facts = facts_of(engine)
    assert (facts.num_replies, facts.num_tokens, facts.num_agreed) == (1, 5, 5)
    assert facts.kl_nats < 1e-12


def test_an_end_token_is_looked_at_too():
    engine, _, clock = checked()
    prompt = question()
    first = token_ids(answer(engine, prompt, max_tokens=4))
    engine.clear()
    sampling = SamplingParams(max_tokens=9, stop_token_ids=(first[2],))
    cut = first.index(first[2])
    answer(engine, prompt, sampling=sampling)
    idle_until_done(engine, clock)
    assert facts_of(engine).num_tokens == cut + 1


def test_prompts_that_equal_full_recompute_are_not_looked_at():
    engine, timed, _ = checked()
    answer(engine, prompt_of(inner(tokens(1, 100)), tokens(5, 9)))  # its only segment stands first
    answer(engine, prompt_of(tokens(4, 50), tokens(5, 9)))  # no segment
    answer(engine, question(), reuse=False)
    before = len(timed.rows)
    assert engine.idle() is None
    assert len(timed.rows) == before
    assert facts_of(engine).num_replies == 0


def test_requests_that_are_too_long_for_its_memory_are_not_looked_at():
    fits = question().num_tokens + 8
    for max_tokens, number in ((fits, 1), (fits - 1, 0)):
        engine, _, clock = checked(shadow=replace(CHECKS, max_tokens=max_tokens))
        answer(engine, question(), max_tokens=20)
        idle_until_done(engine, clock)
        facts = facts_of(engine)
        assert (facts.num_replies, facts.num_tokens) == (number, 8 * number)


def test_of_several_replies_to_a_prompt_the_first_is_looked_at():
    engine, _, clock = checked()
    sampling = SamplingParams(max_tokens=4, ignore_eos=True, temperature=1.0, seed=3)
    engine.submit(request_of(question(), sampling=sampling, num_replies=3))
    drain(engine)
    idle_until_done(engine, clock)
    assert (facts_of(engine).num_replies, facts_of(engine).num_tokens) == (1, 4)


# -- what it may touch


@pytest.mark.parametrize("family", FEW_FAMILIES)
def test_answers_are_the_same_bits_with_and_without_it(family):
    draw = random.Random(7)
    engines = checked(family), checked(family, shadow=None)
    for number in range(8):
        length, prompt_seed = draw.choice((9, 70, 130)), draw.randrange(5)
        both = []
        for engine, _, clock in engines:
            events = answer(engine, question(prompt_seed, length), max_tokens=3 + number % 4)
            both.append((token_ids(events), logprobs(events)))
            for _ in range(draw.randrange(3)):  # a pass is left somewhere
                clock.now_s += 1.0
                engine.idle()
        assert both[0][0] == both[1][0]
        assert torch.equal(both[0][1], both[1][1])
    assert facts_of(engines[0][0]).num_replies > 0
    assert engines[0][0].usage() == engines[1][0].usage()


def test_no_slot_is_taken_and_no_entry_goes():
    engine, _, clock = checked()
    prompt = question()
    answer(engine, prompt)
    parts = [part for part in prompt.parts if part.segment_id is not None]
    usage, digests = engine.usage(), engine.entry_digests(parts)
    steps = 0
    while (wait_s := engine.idle()) is not None:
        clock.now_s += wait_s
        steps += 1
        assert engine.usage() == usage
        check_idle(engine)
    assert steps > 3
    assert facts_of(engine).num_replies == 1
    assert engine.entry_digests(parts) == digests


def test_a_store_that_is_full_is_no_hindrance():
    clock = Clock()
    timed = Timed(model_of("gated_delta_rule"), clock)
    small = engine_of(model=timed, clock=clock, shadow=CHECKS, budget_bytes=1 << 19)
    for seed in range(30, 60):
        warm(small, inner(tokens(seed, 90)))
    answer(small, question())
    usage = small.usage()
    assert usage.num_evicted > 0
    idle_until_done(small, clock)
    assert facts_of(small).num_replies == 1
    assert small.usage() == usage


@given(
    pauses=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    seed=st.integers(0, 100),
)
@settings(max_examples=20)
def test_requests_between_its_steps_change_nothing_of_what_it_says(pauses, seed):
    alone, _, clock = checked()
    answer(alone, question(seed), max_tokens=4)
    idle_until_done(alone, clock)
    engine, _, clock = checked()
    answer(engine, question(seed), max_tokens=4)
    for number, pause in enumerate(pauses):
        for _ in range(pause):
            clock.now_s += 1.0
            engine.idle()
        if facts_of(engine).num_replies:
            break
        answer(engine, prompt_of(tokens(number, 80), inner(tokens(number, 50)), tokens(3, 4)))
    else:
        idle_until_done(engine, clock)
    one, two = facts_of(alone), facts_of(engine)
    assert (one.kl_nats, one.num_agreed) == (two.kl_nats, two.num_agreed)


# -- what it may cost


def test_an_arrival_waits_for_one_step_at_most_and_is_admitted_at_once():
    engine, timed, clock = checked()
    for begun in range(4):
        answer(engine, question(begun, 300), max_tokens=2)
        for _ in range(begun):
            clock.now_s += 1.0
            before = len(timed.rows)
            assert engine.idle() == 0.0
            assert len(timed.rows) == before + 1, "one call is one step"
            assert timed.rows[-1] <= 64, "a step is no longer than the chunk grid"
        message = request_of(question(40 + begun), max_tokens=1)
        engine.submit(message)
        before = len(timed.rows)
        assert engine.idle() is None, "an engine with work has no time"
        assert len(timed.rows) == before
        events = events_of(drain(engine), message.request_id)
        assert report_of(events).queue_ms == 0.0


def test_it_waits_until_nobody_was_there_for_a_while():
    engine, timed, clock = checked(shadow=replace(CHECKS, idle_s=3.0))
    clock.now_s += 1000.0
    answer(engine, question())
    before = len(timed.rows)
    waited_s = 0.0
    while len(timed.rows) == before:
        wait_s = engine.idle()
        assert wait_s is not None
        if wait_s:
            clock.now_s += wait_s / 2 + 1e-6
            waited_s += wait_s / 2 + 1e-6
    assert waited_s == pytest.approx(3.0, abs=1e-3)
    answer(engine, question(6))
    assert engine.idle() == pytest.approx(3.0)


@given(
    share=st.sampled_from([0.02, 0.1, 0.5]),
    moves=st.lists(st.sampled_from(["ask", "wait", "idle", "idle", "idle"]), max_size=40),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30)
def test_it_stays_within_its_share_of_time(share, moves, seed):
    engine, timed, clock = checked(shadow=replace(CHECKS, share=share))
    began_s, draw = clock.now_s, random.Random(seed)
    for move in ["ask", *moves]:
        if move == "ask":
            answer(engine, question(draw.randrange(9)), max_tokens=2)
        elif move == "wait":
            clock.now_s += draw.uniform(0.0, 60.0)
        else:
            before = len(timed.rows)
            wait_s = engine.idle()
            is_first = facts_of(engine).spent_s == STEP_S
            if len(timed.rows) > before and not is_first:  # how long a step is, it then knows
                assert facts_of(engine).spent_s <= share * (clock.now_s - began_s)
            clock.now_s += (wait_s or 0.0) * draw.random()
    assert facts_of(engine).spent_s == pytest.approx(
        STEP_S * round(facts_of(engine).spent_s / STEP_S)
    )


# -- what goes wrong


def test_a_reply_that_does_not_end_well_is_dropped():
    engine, timed, _ = checked()
    message = request_of(question(), max_tokens=8)
    engine.submit(message)
    for _ in range(9):
        engine.step()
    engine.cancel(message.request_id)
    drain(engine)
    before = len(timed.rows)
    assert engine.idle() is None
    assert len(timed.rows) == before
    assert (facts_of(engine).num_replies, facts_of(engine).num_dropped) == (0, 1)


def test_a_check_that_fails_is_dropped_and_harms_nobody():
    engine, timed, clock = checked()
    answer(engine, question())
    clock.now_s += 1.0
    timed.fail_next = True
    assert engine.idle() == 0.0
    assert (facts_of(engine).num_replies, facts_of(engine).num_dropped) == (0, 1)
    assert facts_of(engine).spent_s == STEP_S
    assert engine.idle() is None
    answer(engine, question(6))
    idle_until_done(engine, clock)
    assert facts_of(engine).num_replies == 1


@pytest.mark.parametrize("how", ["delete", "clear"])
def test_what_was_deleted_is_not_looked_at(how):
    engine, timed, clock = checked()
    prompt = question()
    answer(engine, prompt)
    clock.now_s += 1.0
    engine.idle()
    if how == "delete":
        engine.delete([prompt.parts[1]])
    else:
        engine.clear()
    before = len(timed.rows)
    assert engine.idle() is None
    assert len(timed.rows) == before
    assert facts_of(engine).num_dropped == 1


# -- when it switches reuse off


def check(*kl_nats: float) -> ReplyCheck:
    return ReplyCheck(kl_nats, (True,) * len(kl_nats))


@given(
    values=st.lists(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5), max_size=30),
    window=st.integers(1, 6),
    limit=st.floats(0.05, 0.9),
)
def test_reuse_goes_off_once_the_mean_over_a_full_window_is_over_the_limit(values, window, limit):
    books = ShadowBooks(ShadowConfig(limit_kl=limit, window=window))
    is_off = False
    for number, kl in enumerate(values, 1):
        books.note(check(*kl))
        latest = [one for some in values[max(0, number - window) : number] for one in some]
        is_off |= number >= window and sum(latest) / len(latest) > limit
        assert books.is_switched_off == is_off  # and it stays off
    assert books.facts().num_tokens == sum(map(len, values))
    books.reset()
    assert not books.is_switched_off
    assert books.window_kl == 0.0
    assert books.facts().num_tokens == sum(map(len, values))


def test_without_a_limit_reuse_stays_on():
    books = ShadowBooks(ShadowConfig(window=1))
    books.note(check(100.0))
    assert not books.is_switched_off


def switched_off() -> tuple[Engine, Clock]:
    engine, _, clock = checked(shadow=replace(CHECKS, limit_kl=1e-12, window=2))
    for seed in (5, 6):
        assert report_of(answer(engine, question(seed))).degraded is None
        idle_until_done(engine, clock)
    assert facts_of(engine).num_switched_off == 1
    return engine, clock


def test_switched_off_every_answer_is_full_recompute_and_says_so():
    engine, _ = switched_off()
    events = answer(engine, question(7), max_tokens=6)
    report = report_of(events)
    assert report.degraded == "reuse_switched_off"
    assert report.exact
    assert report.live_tokens == report.prompt_tokens
    assert {one.status for one in report.segments} == {SegmentStatus.LIVE}
    plain = answer(checked()[0], question(7), max_tokens=6, reuse=False)
    assert token_ids(events) == token_ids(plain)
    assert torch.equal(logprobs(events), logprobs(plain))


def test_who_asked_for_full_recompute_lost_nothing():
    engine, _ = switched_off()
    assert report_of(answer(engine, question(7), reuse=False)).degraded is None


def test_a_reset_switches_it_on_again():
    engine, clock = switched_off()
    answer_of(Ask(0, Question.RESUME), engine)
    assert facts_of(engine).num_switched_off == 0
    report = report_of(answer(engine, question(7)))
    assert report.degraded is None
    assert report.cached_tokens > 0
    idle_until_done(engine, clock)
    assert facts_of(engine).num_switched_off == 0, "the window begins anew"


# -- settings


def test_it_is_off_unless_asked_for():
    assert EngineConfig().shadow is None
    engine = engine_of()
    answer(engine, question())
    assert engine.idle() is None
    assert engine.shadow is None
    assert answer_of(Ask(0, Question.USAGE), engine)["shadow"] is None
    assert answer_of(Ask(0, Question.RESUME), engine) is None


def test_it_runs_without_full_attention_and_in_other_arithmetic():
    model = build_tiny("mamba2", seed=1, dtype=torch.float32, layers="LL")
    clock = Clock()
    config = EngineConfig(device="cpu", determinism=Determinism.OFF, shadow=CHECKS)
    config = replace(config, reuse=replace(config.reuse, min_segment_tokens=1))
    engine = Engine(Timed(model, clock), "test", config, clock=clock)
    ask(engine, question())
    idle_until_done(engine, clock)
    facts = facts_of(engine)
    assert facts.num_replies == 1
    assert 0.0 <= facts.kl_nats < 1.0


def ask(engine: Engine, prompt: SegmentedPrompt) -> Sequence[object]:
    engine.submit(EngineRequest("one", prompt, SamplingParams(max_tokens=4, ignore_eos=True)))
    return drain(engine)
