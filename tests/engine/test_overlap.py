"""Steps that are launched before the tokens of the step before are read: the same replies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.config import ShadowConfig
from hypic_sdk.engine.answers import answer_of
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.launched import Download, Launched
from hypic_sdk.engine.pipeline import StepCounts
from hypic_sdk.prompt.segment import SegmentedPrompt
from hypic_sdk.transport.control import Ask, Question
from hypic_sdk.transport.messages import (
    EngineRequest,
    FinishReason,
    Grammar,
    GrammarKind,
    SamplingParams,
    TokenEvent,
)
from tests.engine.harness import (
    ALL_FAMILIES,
    answer,
    check_ended,
    drain,
    engine_of,
    events_of,
    logprobs,
    report_of,
    request_of,
    token_ids,
)
from tests.engine.prompts import VOCAB, inner, prompt_of, tokens
from tests.engine.replayed import kernels_in_interpreter, with_graphs
from tests.engine.spelling import spelling_engine, text_of

SHORT = SamplingParams(max_tokens=6, ignore_eos=True)


def counts_of(engine: Engine) -> StepCounts:
    counts = engine.step_counts
    assert counts is not None
    return counts


# -- the same replies as without it


@dataclass(frozen=True)
class Call:
    """A request, when it comes, and when it is cancelled if it is."""

    message: EngineRequest
    at_step: int
    cancelled_after: int | None


samplings = st.builds(
    SamplingParams,
    max_tokens=st.integers(0, 9),
    min_tokens=st.integers(0, 3),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.9]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.sampled_from([(), ((7, 2.0), (2, 1.5))]),
    seed=st.integers(0, 9),
    # many of the few ids there are: some replies end so, or by the end token, and some do not
    stop_token_ids=st.sampled_from([(), tuple(range(3, VOCAB, 5))]),
    logprobs=st.sampled_from([None, 0, 3]),
).map(lambda one: replace(one, min_tokens=min(one.min_tokens, one.max_tokens)))


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """Some requests at about the same time; sessions, several replies, segments, cancels."""
    found = []
    for index in range(draw(st.integers(1, 5))):
        pieces: list[Any] = [tokens(draw(st.integers(0, 3)), draw(st.integers(1, 12)))]
        if draw(st.booleans()):
            pieces = [inner(tokens(draw(st.integers(0, 2)), 20)), *pieces]
        message = EngineRequest(
            f"r{index}",
            prompt_of(*pieces),
            draw(samplings),
            session_id=draw(st.sampled_from([None, None, None, "a"])),
            num_replies=draw(st.sampled_from([1, 1, 3])),
        )
        cancelled = draw(st.one_of(st.none(), st.none(), st.integers(0, 6)))
        found.append(Call(message, draw(st.integers(0, 8)), cancelled))
    return found


def replies_to(engine: Engine, calls: Sequence[Call]) -> dict[str, list[TokenEvent]]:
    """All events by request; the books are right after every step, and in the end."""
    events: list[TokenEvent] = []
    for step in range(20):
        for call in calls:
            if call.at_step == step:
                engine.submit(call.message)
            if call.cancelled_after is not None and call.at_step + call.cancelled_after == step:
                engine.cancel(call.message.request_id)
        events += engine.step()
        engine.check()
    events += drain(engine)
    return {call.message.request_id: events_of(events, call.message.request_id) for call in calls}


def told(events: Sequence[TokenEvent], reply: int) -> tuple[list[int], FinishReason | None]:
    own = [event for event in events if event.reply_index == reply]
    return token_ids(own), own[-1].finish_reason if own else None


@pytest.mark.parametrize("family", ALL_FAMILIES)
@given(calls=calls())
@settings(max_examples=4)
def test_replies_are_those_of_synchronous_steps(family, calls):
    overlapped = replies_to(engine_of(family, overlap=True), calls)
    synchronous = replies_to(engine_of(family), calls)
    for call in calls:
        got, want = (replies[call.message.request_id] for replies in (overlapped, synchronous))
        if call.cancelled_after is None:
            assert report_of(got).prompt_tokens == report_of(want).prompt_tokens
        for reply in range(call.message.num_replies):
            compare(told(got, reply), told(want, reply), is_whole=call.cancelled_after is None)
        if call.cancelled_after is None and call.message.sampling.logprobs is not None:
            for mine, right in zip(_steps(got), _steps(want), strict=True):
                assert mine == pytest.approx(right, rel=1e-9)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.5, "seed": 4},
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"repetition_penalty": 3.0},
        {"min_tokens": 7, "stop_token_ids": tuple(range(0, VOCAB, 2))},
        {"logit_bias": ((9, 3.0),), "frequency_penalty": 1.0},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_what_depends_on_the_tokens_before_counts_the_one_that_is_not_read(fields):
    found = []
    for overlap in (True, False):
        engine = engine_of(overlap=overlap)
        sampling = SamplingParams(max_tokens=16, **{"ignore_eos": True, **fields})
        found.append(token_ids(answer(engine, prompt_of(tokens(1, 9)), sampling=sampling)))
    assert found[0] == found[1]
    assert len(found[0]) >= fields.get("min_tokens", 16)
    plain = SamplingParams(max_tokens=16, ignore_eos=True)
    greedy = token_ids(answer(engine_of(), prompt_of(tokens(1, 9)), sampling=plain))
    assert found[0] != greedy, "the setting changes nothing here"


def compare(got: Any, want: Any, *, is_whole: bool) -> None:
    """Equal; of a request that was cancelled, as far as both came."""
    if is_whole:
        assert got == want
        return
    count = min(len(got[0]), len(want[0]))
    assert got[0][:count] == want[0][:count]


def _steps(events: Sequence[TokenEvent]) -> list[list[float]]:
    """Log-probabilities of a request's tokens, reply by reply."""
    ordered = sorted(events, key=lambda event: event.reply_index)
    return [
        [step.token_id, step.logprob, step.rank, *(value for one in step.top for value in one)]
        for event in ordered
        for step in event.logprobs
    ]


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_a_forward_begins_before_the_tokens_of_the_one_before_are_read(family, monkeypatch):
    engine = engine_of(family, overlap=True)
    order: list[tuple[str, int]] = []
    launch, read, made = engine._runner.launch, Launched.result, []

    def launching(batch):
        order.append(("launch", len(made)))
        made.append(launch(batch))
        return made[-1]

    def reading(self):
        order.append(("read", made.index(self)))
        return read(self)

    monkeypatch.setattr(engine._runner, "launch", launching)
    monkeypatch.setattr(Launched, "result", reading)
    answer(engine, prompt_of(tokens(1, 5)), sampling=SHORT)
    ahead = [("launch", 0), ("read", 0), ("launch", 1)]
    for number in range(2, 6):
        ahead += [("launch", number), ("read", number - 1)]
    assert order == [*ahead, ("read", 5)], "no row is run behind the last token"
    assert counts_of(engine).num_overlapped == 4
    assert counts_of(engine).num_dropped == 0


# -- where an end is found late


def test_what_is_drawn_behind_an_end_is_dropped_and_hurts_nobody():
    """A stop token ends one of two replies in mid-flight; its memory goes to the next request."""
    prompts = [prompt_of(tokens(seed, 9)) for seed in range(3)]
    plain = engine_of()
    first = token_ids(answer(plain, prompts[0], max_tokens=6))
    others = [logprobs(answer(plain, prompt, max_tokens=9)) for prompt in prompts[1:]]
    stop = next(token for token in first[2:] if first.index(token) >= 2)
    engine = engine_of(overlap=True)
    ending = request_of(prompts[0], sampling=replace(SHORT, max_tokens=9, stop_token_ids=(stop,)))
    going_on = request_of(prompts[1], max_tokens=9)
    for message in (ending, going_on):
        engine.submit(message)
    events: list[Any] = []
    while not any(event.finish_reason for event in events_of(events, ending.request_id)):
        events += engine.step()
    later = request_of(prompts[2], max_tokens=9)
    engine.submit(later)
    events += drain(engine)
    assert token_ids(events_of(events, ending.request_id)) == first[: first.index(stop)]
    assert counts_of(engine).num_dropped == 1
    for message, want in zip((going_on, later), others, strict=True):
        assert torch.equal(logprobs(events_of(events, message.request_id)), want)


def test_a_cancelled_reply_leaves_at_once_with_a_step_in_flight():
    engine = engine_of(overlap=True)
    message = request_of(prompt_of(tokens(1, 9)), max_tokens=50)
    engine.submit(message)
    for _ in range(4):
        engine.step()
    engine.cancel(message.request_id)
    assert engine.usage().num_leases == 0
    [last] = engine.step()
    assert last.error is not None
    drain(engine)


def test_a_caller_that_has_enough_ends_a_reply_with_a_step_in_flight():
    engine = engine_of(overlap=True)
    message = request_of(prompt_of(tokens(1, 9)), max_tokens=50)
    engine.submit(message)
    events = [event for _ in range(5) for event in engine.step()]
    engine.finish(message.request_id)
    events += drain(engine)
    check_ended(events)
    want = token_ids(answer(engine_of(), prompt_of(tokens(1, 9)), max_tokens=50))
    assert token_ids(events) == want[: len(token_ids(events))]


def chat(reply: Sequence[int] = ()) -> SegmentedPrompt:
    said = tokens(2, 8)
    return prompt_of(
        (*tokens(1, 12), *said, *reply, *tokens(3, 4)) if reply else (*tokens(1, 12), *said)
    )


@pytest.mark.parametrize("ending", ["stop", "length", "caller"])
def test_what_a_session_keeps_ends_where_its_reply_does(ending):
    """Its next turn finds as much of it as after synchronous steps, and answers the same."""
    found = []
    for overlap in (False, True):
        engine = engine_of(overlap=overlap)
        whole = token_ids(answer(engine_of(), chat(), max_tokens=6))
        stop = (whole[3],) if ending == "stop" else ()
        sampling = SamplingParams(
            max_tokens=50 if ending == "caller" else 6, ignore_eos=True, stop_token_ids=stop
        )
        first = request_of(chat(), sampling=sampling, session_id="s")
        beside = request_of(prompt_of(tokens(7, 5)), max_tokens=12)
        for message in (first, beside):
            engine.submit(message)
        events: list[Any] = []
        while len(token_ids(events_of(events, first.request_id))) < 3:
            events += engine.step()
        if ending == "caller":
            engine.finish(first.request_id)
        events += drain(engine)
        reply = token_ids(events_of(events, first.request_id))
        second = answer(engine, chat(reply), session_id="s", max_tokens=3)
        found.append((reply, report_of(second).chain_tokens, token_ids(second)))
        if overlap:
            assert counts_of(engine).synchronous["a state that is kept"] > 0
            assert counts_of(engine).num_overlapped > 0, "once the session's reply is over"
    assert found[0] == found[1]
    assert found[0][1] > len(tokens(1, 12)) + len(tokens(2, 8)), "the reply's own chain"


# -- grammars


def test_a_grammar_is_one_step_late_and_the_batch_is_not():
    """Replies beside it go on at every step; its own are those of synchronous steps."""
    found = []
    for overlap in (False, True):
        engine = spelling_engine(overlap=overlap)
        masked = SamplingParams(
            max_tokens=20,
            temperature=1.0,
            seed=3,
            # what may come next depends on what came last
            grammar=Grammar(GrammarKind.REGEX, "(ab|cd|ef|gh){4}"),
        )
        messages = [
            request_of(prompt_of(tokens(5, 9)), sampling=masked),
            request_of(prompt_of(tokens(6, 9)), max_tokens=25),
        ]
        for message in messages:
            engine.submit(message)
        events = drain(engine)
        own = [events_of(events, message.request_id) for message in messages]
        for one in own:
            check_ended(one)
        found.append([token_ids(one) for one in own])
        assert re.fullmatch("(ab|cd|ef|gh){4}", text_of(found[-1][0]))
        if overlap:
            assert counts_of(engine).num_overlapped >= 20
    assert found[0] == found[1]


# -- failures


@pytest.mark.parametrize("fails", ["launch", "read"])
def test_a_failure_with_a_step_in_flight_is_told_and_frees_all(fails, monkeypatch):
    engine = engine_of(overlap=True)
    messages = [request_of(prompt_of(tokens(n, 6)), max_tokens=30) for n in range(2)]
    for message in messages:
        engine.submit(message)
    events: list[Any] = [event for _ in range(4) for event in engine.step()]
    num_told = len(token_ids(events))
    if fails == "launch":
        monkeypatch.setattr(engine._runner._model, "forward", explode, raising=False)
    else:
        monkeypatch.setattr(Download, "read", explode)
    events += engine.step()
    monkeypatch.undo()
    events += drain(engine)
    for message in messages:
        last = events_of(events, message.request_id)[-1]
        assert last.error is not None
        assert "it exploded" in last.error["message"]
    # what was drawn before the forward that could not be launched is told all the same
    assert len(token_ids(events)) - num_told == (2 if fails == "launch" else 0)
    check_ended(answer(engine, prompt_of(tokens(1, 6)), sampling=SHORT))


def explode(*_: object, **__: object) -> None:
    raise RuntimeError("it exploded")


# -- what is counted, and what keeps steps apart


def test_live_checks_keep_steps_apart():
    engine = engine_of(overlap=True, shadow=ShadowConfig(max_tokens=100))
    answer(engine, prompt_of(tokens(1, 6)), sampling=SHORT)
    counts = counts_of(engine)
    assert dict(counts.synchronous) == {"live checks": 6}
    assert counts.num_overlapped == 0


def test_it_is_told_with_the_books():
    engine = engine_of(overlap=True)
    answer(engine, prompt_of(tokens(1, 6)), sampling=SHORT)
    facts = answer_of(Ask(0, Question.USAGE), engine)["steps"]
    assert facts["num_overlapped"] == 4
    assert facts["synchronous"]["other_rows"] == 1
    assert answer_of(Ask(0, Question.USAGE), engine_of())["steps"] is None


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # of the interpreter's numpy
def test_a_graph_is_fed_on_the_device():
    prompts = [prompt_of(tokens(1, 5)), prompt_of(tokens(2, 4))]
    found = []
    with kernels_in_interpreter():
        for overlap in (True, False):
            engine = engine_of("lightning", dtype=torch.float32, pair="float16", overlap=overlap)
            counts = with_graphs(engine)
            messages = [request_of(prompt, max_tokens=4) for prompt in prompts]
            for message in messages:
                engine.submit(message)
            events = drain(engine)
            found.append([logprobs(events_of(events, message.request_id)) for message in messages])
            assert counts.num_replayed == 4
    for mine, right in zip(*found, strict=True):
        assert torch.equal(mine, right)
