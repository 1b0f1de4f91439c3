"""Registered texts inside plain ones, found on the server's side."""

from __future__ import annotations

from typing import Any

import pytest

from hypic_sdk.matching import AutoSegmenter
from hypic_sdk.prompt.catalog import NewSegment
from hypic_sdk.prompt.memory_catalog import MemoryCatalog
from hypic_sdk.prompt.pieces import CallerText
from hypic_sdk.prompt.segment import segment_id
from hypic_sdk.service.auto_segments import CatalogSegmenter
from hypic_sdk.service.token_memo import TokenMemo
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.parse import parse
from hypic_sdk.wire.segments import RegisterRequest
from tests.prompt import tiny
from tests.service.services import saying, service

LONG = "Norwick lies on the river Ash, and the river is slow. " * 8
OTHER = "Ada Lindqvist works for Brenholt Foods in the old mill. " * 8
EXACT = {"auto_segment": "exact"}


def chat(*messages: tuple[str, Any], hypic: dict[str, Any] = EXACT) -> ChatRequest:
    written = [{"role": role, "content": content} for role, content in messages]
    return parse(ChatRequest, {"messages": written, "hypic": hypic})


def over_texts(*texts: str):
    over = service(saying("x"))
    over.segments.register(parse(RegisterRequest, {"segments": [{"text": one} for one in texts]}))
    return over


def uses(reply) -> list[tuple[str, tuple[int, int] | None]]:
    return [(one.segment_id, one.part) for one in reply.cache.segments]


class TestChats:
    def test_both_are_found_and_told_where_the_caller_wrote_them(self):
        over = over_texts(LONG, OTHER)
        body = chat(("system", f"Rules. {LONG}"), ("user", f"Read:\n{OTHER}\n{LONG}\nWhere?"))
        found = uses(over.chat(body))
        ids = segment_id(LONG), segment_id(OTHER)
        assert found == [(ids[0], (0, 0)), (ids[1], (1, 0)), (ids[0], (1, 0))]
        assert over.chat(body).cache.degraded is None
        assert [one.status for one in over.chat(body).cache.segments] == ["hit"] * 3

    def test_it_is_as_if_the_caller_had_written_segments(self):
        over = over_texts(LONG)
        plain = over.prepare_chat(chat(("user", f"Read: {LONG} Where?")))
        parts = ["Read: ", {"type": "segment", "segment_id": segment_id(LONG)}, " Where?"]
        written = [{"type": "text", "text": one} if isinstance(one, str) else one for one in parts]
        by_hand = over.prepare_chat(chat(("user", written), hypic={}))
        assert [part.token_ids for part in plain.message.prompt.parts] == [
            part.token_ids for part in by_hand.message.prompt.parts
        ]

    def test_off_is_the_default_and_what_a_model_said_is_left_alone(self):
        over = over_texts(LONG)
        assert uses(over.chat(chat(("user", f"{LONG} Where?"), hypic={}))) == []
        asked = chat(("user", "Say it."), ("assistant", LONG), ("user", "Where?"))
        assert uses(over.chat(asked)) == []

    def test_plain_prompts_and_tools_results(self):
        over = over_texts(LONG)
        body = parse(CompletionRequest, {"prompt": f"{LONG} Where?", "hypic": EXACT})
        assert len(over.complete(body).cache.segments) == 1
        result = {"role": "tool", "content": LONG, "tool_call_id": "1"}
        values = {"messages": [{"role": "user", "content": "Q"}, result], "hypic": EXACT}
        assert len(over.chat(parse(ChatRequest, values)).cache.segments) == 1

    def test_another_tenants_texts_are_unknown(self):
        over_texts(LONG)
        assert uses(service(saying("x")).chat(chat(("user", f"{LONG} Where?")))) == []


def test_over_the_cap_it_is_plain_and_said(caplog):
    over = over_texts(LONG)
    body = chat(("user", LONG + "z" * (1 << 20)), ("user", f"{LONG} Where?"))
    reply = over.chat(body)
    assert (len(reply.cache.segments), reply.cache.degraded) == (1, "auto_segment_capped")
    assert "auto_segment_capped" in [one.code for one in over.explain(body).warnings]
    assert "too long" in caplog.text


class Pages:
    """A catalog of small pages that counts what is read of it."""

    def __init__(self) -> None:
        tokenizer = tiny.tokenizer()
        self.now_s = 0.0
        self.inner = MemoryCatalog(
            tokenizer.encode_text, tokenizer.fingerprint, now_s=lambda: self.now_s
        )
        self.num_read = 0

    def page(self, *, after: str | None = None, limit: int = 100):
        page = self.inner.page(after=after, limit=min(limit, 3))
        self.num_read += len(page.segments)
        return page

    def get(self, id_: str):
        return self.inner.get(id_)


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def known(pages: Pages) -> CatalogSegmenter:
    tokenizer = tiny.tokenizer()
    segmenter = AutoSegmenter(max_prompt_chars=10_000)
    memo = TokenMemo(tokenizer.encode_text)
    return CatalogSegmenter(pages, tokenizer.fingerprint, memo, segmenter)


def found(known: CatalogSegmenter, text: str) -> list[str]:
    pieces, _ = known.texts([CallerText(text)])
    assert "".join(piece.text for piece in pieces) == text
    return [piece.text for piece in pieces if piece.segment_id is not None]


class TestCatalog:
    def test_each_text_is_read_once(self, pages, known):
        texts = [f"{number} {LONG}" for number in range(8)]
        for count, text in enumerate(texts, start=1):
            pages.inner.register(NewSegment(text))
            assert found(known, text) == [text]
            assert pages.num_read == count

    def test_what_was_deleted_is_plain_at_once(self, pages, known):
        texts = [f"{number} {LONG}" for number in range(8)]
        for text in texts:
            pages.inner.register(NewSegment(text))
        assert found(known, "".join(texts)) == texts
        # the one where reading stopped, and one in the middle
        for gone in (texts[7], texts[2]):
            pages.inner.delete(segment_id(gone))
            texts.remove(gone)
            assert found(known, gone + "".join(texts)) == texts
            # and what comes afterwards is read all the same
            texts.append(f"later {len(texts)} {LONG}")
            pages.inner.register(NewSegment(texts[-1]))
            assert found(known, gone + "".join(texts)) == texts

    def test_nothing_is_overlooked_when_the_last_one_comes_again(self, pages, known):
        """It stands behind what came meanwhile, where reading would go on."""
        first, second, last = (f"{number} {LONG}" for number in range(3))
        for text in (first, last):
            pages.inner.register(NewSegment(text))
        assert found(known, first + last) == [first, last]
        pages.inner.delete(segment_id(last))
        pages.now_s = 60.0
        for text in (second, last):
            pages.inner.register(NewSegment(text))
        assert found(known, first + second + last) == [first, second, last]

    def test_a_shorter_text_is_found_where_the_longer_one_was_deleted(self, pages, known):
        for text in (LONG, LONG + OTHER, "z" * 80):
            pages.inner.register(NewSegment(text))
        assert found(known, LONG + OTHER) == [LONG + OTHER]
        pages.inner.delete(segment_id(LONG + OTHER))
        assert found(known, LONG + OTHER) == [LONG]
        pages.inner.register(NewSegment(LONG + OTHER))
        assert found(known, LONG + OTHER) == [LONG + OTHER]
