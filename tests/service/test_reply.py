"""Events to deltas: exact text, exact log-probabilities, one end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.errors import PoolExhausted, RequestCancelled, WorkerError
from hypic_sdk.service import ReplyAssembler, ReplyDelta
from hypic_sdk.transport.messages import FinishReason, TokenEvent, TokenLogprobs
from tests.prompt import tiny
from tests.prompt.test_reply_text import stopped_text

TOKENIZER = tiny.tokenizer()


def events(text: str, reason: FinishReason = FinishReason.STOP) -> Iterator[TokenEvent]:
    """One event a token, with a log-probability that names its place."""
    ids = TOKENIZER.encode_text(text)
    for place, token_id in enumerate(ids):
        yield TokenEvent("r", (token_id,), (TokenLogprobs(token_id, -float(place), 1),))
    yield TokenEvent("r", finish_reason=reason)


def deltas(reply: ReplyAssembler, stream: Iterator[TokenEvent]) -> list[ReplyDelta]:
    """Drive it as a shell would: a cut reply is cancelled, and its last event still fed."""
    found = []
    for event in stream:
        if reply.wants_finish:
            payload = RequestCancelled("cancelled").to_payload()
            event = TokenEvent("r", finish_reason=FinishReason.ERROR, error=payload)
        delta = reply.feed(event)
        if delta is not None:
            found.append(delta)
        if reply.is_over:
            break
    return found


@given(text=tiny.texts, stops=st.lists(tiny.full_texts, max_size=2))
def test_text_and_log_probabilities(text, stops):
    reply = ReplyAssembler(TOKENIZER, stops)
    got = deltas(reply, events(text))
    expected, cut = stopped_text(text, stops)
    assert "".join(delta.text for delta in got) == expected == reply.text
    assert reply.was_cut == cut
    assert [delta.finish_reason for delta in got] == [None] * (len(got) - 1) + ["stop"]
    told = [one for delta in got for one in delta.logprobs]
    ids = TOKENIZER.encode_text(text)
    # the tokens told are the first ones, each once, up to the one that completes a stop string
    assert [one.token_id for one in told] == list(ids[: len(told)])
    assert [one.logprob for one in told] == [-float(place) for place in range(len(told))]
    assert tuple(one.token_id for one in told) == reply.token_ids
    if "\ufffd" in text:
        return  # then a prefix of ids does not say which of its characters are finished
    finished = [TOKENIZER.decode(ids[:place]).rstrip("\ufffd") for place in range(len(ids) + 1)]
    completed = [place for place, one in enumerate(finished) if stopped_text(one, stops)[1]]
    assert len(told) == (min(completed) if cut else len(ids))


def test_tokens_behind_a_stop_string_are_not_told():
    reply = ReplyAssembler(TOKENIZER, ["\n"])
    got = deltas(reply, events("a town\n and more"))
    told = [one.token_id for delta in got for one in delta.logprobs]
    assert TOKENIZER.decode(told) == "a town\n"


@given(
    text=tiny.texts,
    stops=st.lists(tiny.full_texts, max_size=2),
    min_tokens=st.integers(0, 9),
    sizes=st.lists(st.integers(1, 5)),
    has_logprobs=st.booleans(),
)
def test_a_reply_is_the_same_however_many_tokens_an_event_has(
    text, stops, min_tokens, sizes, has_logprobs
):
    """And however many were drawn behind a stop string: the last event comes after all of them."""
    alone, together = (ReplyAssembler(TOKENIZER, stops, min_tokens=min_tokens) for _ in range(2))
    deltas(alone, events(text))
    ids, start = TOKENIZER.encode_text(text), 0
    for size in [*sizes, len(ids) + 1]:
        part = ids[start : start + size]
        told = tuple(TokenLogprobs(id_, -float(start + i), 1) for i, id_ in enumerate(part))
        together.feed(TokenEvent("r", tuple(part), told if has_logprobs else ()))
        start += size
    together.feed(TokenEvent("r", finish_reason=FinishReason.LENGTH))
    assert (together.text, together.token_ids) == (alone.text, alone.token_ids)
    assert together.was_cut == alone.was_cut
    assert together.logprobs == (alone.logprobs if has_logprobs else [])


def test_a_cut_reply_ends_with_stop_although_its_request_was_cancelled():
    reply = ReplyAssembler(TOKENIZER, ["town"])
    got = deltas(reply, events("a town and more", FinishReason.LENGTH))
    assert (reply.text, got[-1].finish_reason) == ("a ", "stop")
    assert not reply.wants_finish


def test_a_stop_string_in_the_last_event_is_no_length():
    ids = TOKENIZER.encode_text("ab")
    reply = ReplyAssembler(TOKENIZER, ["b"])
    delta = reply.feed(TokenEvent("r", ids, finish_reason=FinishReason.LENGTH))
    assert (delta.text, delta.finish_reason) == ("a", "stop")


def test_running_into_the_limit_is_length():
    got = deltas(ReplyAssembler(TOKENIZER), events("ab", FinishReason.LENGTH))
    assert got[-1].finish_reason == "length"


def test_an_error_is_raised_as_what_it_is():
    payload = {**PoolExhausted("no room", needed_bytes=5).to_payload(), "request_id": "r"}
    reply = ReplyAssembler(TOKENIZER)
    with pytest.raises(PoolExhausted, match="no room") as caught:
        reply.feed(TokenEvent("r", finish_reason=FinishReason.ERROR, error=payload))
    assert (caught.value.request_id, caught.value.details) == ("r", {"needed_bytes": 5})
    assert reply.is_over


def test_an_error_that_says_nothing_is_still_an_error():
    with pytest.raises(WorkerError):
        ReplyAssembler(TOKENIZER).feed(TokenEvent("r", finish_reason=FinishReason.ERROR))


def test_nothing_may_follow_the_last_event():
    reply = ReplyAssembler(TOKENIZER)
    reply.feed(TokenEvent("r", finish_reason=FinishReason.STOP))
    with pytest.raises(AssertionError):
        reply.feed(TokenEvent("r", (1,)))


def test_an_event_without_text_says_nothing():
    half = TOKENIZER.encode_text("🙂")[:1]
    assert ReplyAssembler(TOKENIZER).feed(TokenEvent("r", half)) is None
