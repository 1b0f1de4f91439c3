"""Several replies to one prompt: prepared once, drawn apart, ended one by one or all at once."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.request import reply_seed
from hypic_sdk.prompt.segment import BorderKind, SegmentedPrompt
from hypic_sdk.transport.messages import (
    EngineRequest,
    FinishReason,
    SamplingParams,
    TokenEvent,
)
from tests.engine.harness import (
    answer,
    check_ended,
    check_idle,
    check_report,
    drain,
    engine_of,
    events_of,
    logprobs,
    request_of,
    token_ids,
)
from tests.engine.prompts import VOCAB, inner, prompt_of, tokens

DRAWN = {"max_tokens": 9, "temperature": 1.5, "seed": 7, "ignore_eos": True, "logprobs": VOCAB}


def prompt(seed: int = 5) -> SegmentedPrompt:
    return prompt_of(tokens(90, 7), inner(tokens(1, 40)), tokens(seed, 9))


def several(engine: Engine, num_replies: int, **fields: object) -> dict[int, list[TokenEvent]]:
    """Run one request alone; its events by reply."""
    message = request_of(prompt(), num_replies=num_replies, **fields)
    engine.submit(message)
    return by_reply(events_of(drain(engine), message.request_id))


def by_reply(events: list[TokenEvent]) -> dict[int, list[TokenEvent]]:
    """Events by reply, after a look at how they end: each reply once, the report with the last."""
    told: dict[int, list[TokenEvent]] = {}
    for event in events:
        told.setdefault(event.reply_index, []).append(event)
    lasts = [event for event in events if event.finish_reason is not None]
    assert [event.replies_left for event in lasts] == list(range(len(told) - 1, -1, -1))
    assert [event.report is None for event in lasts] == [True] * (len(told) - 1) + [False]
    assert lasts[-1] is events[-1]
    check_report(events[-1].report)
    return told


@pytest.mark.parametrize("family", ["gated_delta_rule", "gla"])
def test_greedy_replies_are_all_equal_and_that_of_a_single_one(family):
    alone = answer(engine_of(family), prompt(), max_tokens=6)
    told = several(engine_of(family), 3, max_tokens=6)
    assert sorted(told) == [0, 1, 2]
    for events in told.values():
        assert token_ids(events) == token_ids(alone)
        assert torch.equal(logprobs(events), logprobs(alone))


def test_each_reply_is_what_a_request_of_its_seed_gets_bit_for_bit():
    sampling = SamplingParams(**DRAWN)
    told = several(engine_of(), 4, sampling=sampling)
    seeds = [reply_seed(7, index) for index in range(4)]
    assert seeds[0] == 7
    for index, seed in enumerate(seeds):
        alone = answer(engine_of(), prompt(), sampling=SamplingParams(**{**DRAWN, "seed": seed}))
        assert token_ids(told[index]) == token_ids(alone)
        assert torch.equal(logprobs(told[index]), logprobs(alone))
    assert len({tuple(token_ids(events)) for events in told.values()}) == 4


def test_the_prompt_is_prepared_once():
    engine = engine_of()
    events = several(engine, 5)[4]
    report = events[-1].report
    assert report.cold_tokens == 40
    assert report.prompt_tokens == prompt().num_tokens
    usage = engine.usage()
    assert usage.num_segments == 1


def test_admission_counts_every_reply():
    """Room for one long reply is none for four of them, which is said at once."""
    layout = engine_of().describe().store_layout
    share = 4 * (layout.segment_bytes(64) + 64 * layout.kv_slot_bytes) + 2 * layout.state_row_bytes
    engine = engine_of(budget_bytes=share)
    check_ended(answer(engine, prompt(), max_tokens=200))
    message = request_of(prompt(), num_replies=4, max_tokens=200)
    engine.submit(message)
    (event,) = drain(engine)
    assert event.error["code"] == "pool_exhausted"
    assert event.error["details"]["pool"] == "kv_slots"
    assert len(several(engine, 2, max_tokens=20)) == 2


def test_replies_take_places_and_more_than_there_are_is_refused():
    engine = engine_of(max_requests=4)
    wide, next_one = request_of(prompt(), num_replies=3), request_of(prompt(6), num_replies=2)
    for message in (wide, next_one):
        engine.submit(message)
    most = 0
    events = []
    while engine.has_work:
        events += engine.step()
        most = max(most, engine._scheduler._num_active)
    assert most == 3
    for message in (wide, next_one):
        by_reply(events_of(events, message.request_id))
    for wrong in (0, 5):
        engine.submit(request_of(prompt(), num_replies=wrong))
        (event,) = drain(engine)
        assert event.error["code"] == "invalid_request"
        assert event.error["details"]["param"] == "n"
        assert event.error["details"]["high"] == 4


def test_replies_of_different_length_end_apart_and_cancel_ends_all():
    engine = engine_of()
    first = several(engine, 3, sampling=SamplingParams(**DRAWN))
    stop = token_ids(first[1])[3]
    ends = [token_ids(first[i]).index(stop) if stop in token_ids(first[i]) else 9 for i in first]
    assert len(set(ends)) > 1
    sampling = SamplingParams(**DRAWN, stop_token_ids=(stop,))
    told = several(engine, 3, sampling=sampling)
    for index, end in enumerate(ends):
        assert token_ids(told[index]) == token_ids(first[index])[:end]
        want = FinishReason.STOP if end < 9 else FinishReason.LENGTH
        assert told[index][-1].finish_reason is want

    message = request_of(prompt(), num_replies=3, max_tokens=500)
    engine.submit(message)
    events = [event for _ in range(9) for event in engine.step()]
    assert {event.reply_index for event in events} == {0, 1, 2}
    engine.cancel(message.request_id)
    (last,) = engine.step()
    assert last.error["code"] == "request_cancelled"
    assert last.replies_left == 0
    check_idle(engine)


@pytest.mark.parametrize("session_id", [None, "s"])
def test_without_a_token_to_give_every_reply_is_told_empty(session_id):
    engine = engine_of()
    told = several(engine, 3, max_tokens=0, session_id=session_id)
    assert [token_ids(told[index]) for index in range(3)] == [[], [], []]
    check_idle(engine)


def test_a_reply_that_is_finished_ends_by_stop_and_its_chain_is_kept():
    engine = engine_of()
    message = request_of(prompt(), max_tokens=50, session_id="s")
    engine.finish(message.request_id)  # unknown: ignored
    engine.submit(message)
    engine.finish(message.request_id)  # its prompt is not done: ignored
    events: list[TokenEvent] = []
    while len(token_ids(events)) < 4:
        events += engine.step()
    engine.finish(message.request_id, 1)  # no such reply: ignored
    engine.finish(message.request_id)
    engine.finish(message.request_id)
    events += drain(engine)
    check_ended(events)
    assert events[-1].finish_reason is FinishReason.STOP
    assert len(token_ids(events)) == 4
    longer = SegmentedPrompt(
        (*message.prompt.parts[:-1], message.prompt.parts[-1].__class__(
            message.prompt.parts[-1].role,
            (*message.prompt.parts[-1].token_ids, *token_ids(events), 5, 6),
        ))
    )  # fmt: skip
    report = answer(engine, longer, session_id="s")[-1].report
    assert report.chain_tokens == message.prompt.num_tokens + 3  # the fourth was never fed


def test_finishing_some_replies_leaves_the_others():
    engine = engine_of()
    want = several(engine, 3, sampling=SamplingParams(**DRAWN))
    message = request_of(prompt(), num_replies=3, sampling=SamplingParams(**DRAWN))
    engine.submit(message)
    events: list[TokenEvent] = []
    while not any(len(token_ids([e])) for e in events):
        events += engine.step()
    engine.finish(message.request_id, 1)
    events += drain(engine)
    told = by_reply(events_of(events, message.request_id))
    assert [len(token_ids(told[index])) for index in range(3)] == [9, 1, 9]
    for index in (0, 2):
        assert torch.equal(logprobs(told[index]), logprobs(want[index]))


def test_every_reply_of_a_session_can_be_gone_on_from():
    engine = engine_of()
    sampling = SamplingParams(**DRAWN)
    base = prompt_of(tokens(1, 30), borders=[(20, BorderKind.LEADING)])
    message = EngineRequest("n", base, sampling, session_id="s", num_replies=2)
    engine.submit(message)
    told = by_reply(events_of(drain(engine), "n"))
    for events in told.values():
        turn = prompt_of(
            (*tokens(1, 30), *token_ids(events), 7), borders=[(20, BorderKind.LEADING)]
        )
        report = answer(engine, turn, session_id="s")[-1].report
        assert report.chain_tokens == 30 + 8
