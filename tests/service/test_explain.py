"""A prompt explained: its parts add up, and what it says comes true."""

from __future__ import annotations

from typing import Any

import pytest

from hypic_sdk.errors import SegmentsMissing
from hypic_sdk.prompt.segment import segment_id
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.parse import parse
from hypic_sdk.wire.segments import RegisterRequest, SegmentIds
from tests.service.fake_worker import FakeWorker
from tests.service.services import service

LONG = "Norwick lies on the river Ash, and the river is slow. " * 8
OTHER = "Ada Lindqvist works for Brenholt Foods in the old mill. " * 8


def chat(question: str = "Where?", **fields: Any) -> ChatRequest:
    return parse(ChatRequest, {"messages": [{"role": "user", "content": question}], **fields})


def plain(prompt: Any) -> CompletionRequest:
    return parse(CompletionRequest, {"prompt": prompt})


def warnings(told) -> list[tuple[str, str | None]]:
    return [(one.code, one.segment_id) for one in told.warnings]


def test_parts_add_up_and_warming_is_seen():
    over = service(FakeWorker())
    body = chat(documents=[{"text": LONG}, {"text": OTHER}])
    told = over.explain(body)
    assert [one.expected for one in told.parts if one.segment_id] == ["cold", "cold"]
    assert [one.document for one in told.parts if one.segment_id] == [0, 1]
    assert sum(one.tokens for one in told.parts) == told.prompt_tokens
    assert [one.start for one in told.parts] == [
        sum(other.tokens for other in told.parts[:number]) for number in range(len(told.parts))
    ]
    assert told.cached_tokens == 0
    [made] = over.segments.register(parse(RegisterRequest, {"segments": [{"text": LONG}]}))
    over.segments.warm(parse(SegmentIds, {"segment_ids": [made.id]})).wait(timeout_s=10)
    again = over.explain(body)
    assert [one.expected for one in again.parts if one.segment_id] == ["hit", "cold"]
    assert again.cached_tokens == made.tokens - 8
    assert again.cold_tokens == told.cold_tokens - made.tokens
    assert again.live_tokens == told.live_tokens
    assert again.prompt_tokens == over.prepare_chat(body).message.prompt.num_tokens


def test_off_expects_nothing():
    over = service(FakeWorker())
    told = over.explain(chat(documents=[{"text": LONG}], hypic={"mode": "off"}))
    assert {one.expected for one in told.parts} == {"live"}
    assert told.live_tokens == told.prompt_tokens


def test_nothing_is_run_or_kept():
    worker = FakeWorker()
    over = service(worker)
    over.explain(chat(documents=[{"text": LONG}]))
    assert worker.messages == []
    assert over.segments.list_segments().data == []


@pytest.mark.parametrize("start", ["[1] ", "12. ", "3) ", "Document 2: ", "source #7 "])
def test_a_running_number_within_a_document(start):
    told = service(FakeWorker()).explain(chat(documents=[{"text": start + LONG}]))
    assert "running_number" in [code for code, _ in warnings(told)]


@pytest.mark.parametrize("start", ["1984 was a year. ", "[see] ", "Documents: ", "3.14 is pi. "])
def test_other_numbers_are_none(start):
    told = service(FakeWorker()).explain(chat(documents=[{"text": start + LONG}]))
    assert "running_number" not in [code for code, _ in warnings(told)]


@pytest.mark.parametrize("text", [f" {LONG}", LONG.strip(), f"\n{LONG}\n"])
def test_white_space_beside_a_registered_text(text):
    over = service(FakeWorker())
    over.segments.register(parse(RegisterRequest, {"segments": [{"text": LONG.strip() + "\n"}]}))
    told = over.explain(chat(documents=[{"text": text}]))
    assert "whitespace_differs" in [code for code, _ in warnings(told)]
    same = over.explain(chat(documents=[{"text": LONG.strip() + "\n"}]))
    assert "whitespace_differs" not in [code for code, _ in warnings(same)]


@pytest.mark.parametrize(
    "respelt",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "  \n"),
        lambda text: "\n\n" + text.strip(),
    ],
)
def test_white_space_within_a_registered_text(respelt):
    text = "First line of it.\nSecond line.\n\nThird.\n" * 5
    over = service(FakeWorker())
    over.segments.register(parse(RegisterRequest, {"segments": [{"text": text}]}))
    told = over.explain(chat(documents=[{"text": respelt(text)}]))
    [warning] = [one for one in told.warnings if one.code == "whitespace_differs"]
    assert segment_id(text) in warning.message
    other = over.explain(chat(documents=[{"text": respelt(text).replace("Third", "Fourth")}]))
    assert "whitespace_differs" not in [code for code, _ in warnings(other)]


class TestTokensOfPartsAndOfTheWhole:
    CODE = "tokens_differ_from_joint"

    @pytest.mark.parametrize(
        "body",
        [
            chat(documents=[{"text": LONG}, {"text": OTHER}]),
            chat(documents=[{"text": LONG}], documents_numbering="brackets"),
            plain([{"type": "segment", "text": LONG}, "Where is it?"]),
            plain([{"type": "segment", "text": LONG.strip()}, "\n\nWhere is it?"]),
            # " works" would be one token, but a space is a good place for a border
            plain([{"type": "segment", "text": LONG}, "works who there?"]),
            chat("Where?"),
        ],
    )
    def test_usual_prompts_have_nothing_to_be_said(self, body):
        assert self.CODE not in [code for code, _ in warnings(service(FakeWorker()).explain(body))]

    def test_a_word_cut_in_two(self):
        parts = [{"type": "segment", "text": LONG + "The tow"}, {"type": "text", "text": "n is."}]
        told = service(FakeWorker()).explain(plain(parts))
        [warning] = [one for one in told.warnings if one.code == self.CODE]
        assert "message 0, part 1" in warning.message
        assert "word" in warning.message

    @pytest.mark.parametrize(("text", "is_odd"), [("Who ", True), ("Who", False)])
    def test_white_space_at_the_edge_of_a_message(self, text, is_odd):
        """Here a space before the template's word becomes a part of that word's token."""
        source = "{% for message in messages %}{{ message.content }}works{% endfor %}"
        told = service(FakeWorker(), template=source).explain(chat(text))
        assert (self.CODE in [code for code, _ in warnings(told)]) == is_odd


def test_short_last_and_none():
    over = service(FakeWorker())
    told = over.explain(chat(documents=[{"text": "short"}]))
    assert "below_min_tokens" in [code for code, _ in warnings(told)]
    last = over.explain(plain([{"type": "segment", "text": LONG}]))
    assert "segment_last" in [code for code, _ in warnings(last)]
    assert last.parts[-1].expected == "live"
    assert "no_segments" in [code for code, _ in warnings(over.explain(plain("x")))]


def test_what_is_wrong_with_a_prompt_is_told_as_in_a_request():
    unknown = "seg_" + "a" * 32
    with pytest.raises(SegmentsMissing):
        service(FakeWorker()).explain(chat(documents=[{"segment_id": unknown}]))
