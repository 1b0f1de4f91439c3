"""A body's parts become texts: resolved, matched to their ids, told where they stand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.errors import RequestError, SegmentsMissing, SegmentTextMismatch
from hypic_sdk.prompt.catalog import NewSegment
from hypic_sdk.prompt.memory_catalog import MemoryCatalog
from hypic_sdk.prompt.segment import segment_id
from hypic_sdk.service.conversation import DOCUMENTS, Conversation
from hypic_sdk.service.token_memo import TokenMemo
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.parse import parse
from tests.prompt import tiny

TOKENIZER = tiny.tokenizer()


def catalog(*texts: str) -> MemoryCatalog:
    segments = MemoryCatalog(TOKENIZER.encode_text, TOKENIZER.fingerprint)
    for text in texts:
        segments.register(NewSegment(text))
    return segments


def conversation(*texts: str, **options: Any) -> Conversation:
    memo = TokenMemo(TOKENIZER.encode_text)
    return Conversation(catalog(*texts), TOKENIZER.fingerprint, memo, **options)


def chat(*messages: Any, **fields: Any) -> ChatRequest:
    return parse(ChatRequest, {"messages": list(messages), **fields})


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def segment(text: str | None = None, id_: str | None = None) -> dict[str, Any]:
    return {"type": "segment", "text": text, "segment_id": id_}


class TestSegments:
    def test_a_registered_segment_comes_with_its_text_and_tokens(self):
        [message] = conversation("A town").messages(chat(user([segment(id_=segment_id("A town"))])))
        [text] = message.content
        assert (text.text, text.segment_id) == ("A town", segment_id("A town"))
        assert text.token_ids == TOKENIZER.encode_text("A town")

    def test_a_text_sent_along_is_one_too(self):
        [message] = conversation().messages(chat(user([segment("A town")])))
        [text] = message.content
        assert text.segment_id == segment_id("A town")
        assert text.token_ids == TOKENIZER.encode_text("A town")

    @given(text=tiny.full_texts)
    def test_id_and_text_must_belong_together(self, text):
        body = chat(user([segment(text, segment_id(text))]))
        assert conversation().messages(body)[0].content[0].text == text
        body = chat(user([segment(text + " ", segment_id(text))]))
        with pytest.raises(SegmentTextMismatch) as caught:
            conversation(text).messages(body)
        assert caught.value.details == {
            "segment_id": segment_id(text),
            "text_id": segment_id(text + " "),
        }

    def test_all_missing_segments_are_told_at_once(self):
        ids = [segment_id(text) for text in ("a", "b", "c")]
        body = chat(user([segment(id_=id_) for id_ in ids[:2]]), documents=[{"segment_id": ids[2]}])
        with pytest.raises(SegmentsMissing) as caught:
            conversation("b").messages(body)
        assert caught.value.details == {"segment_ids": [ids[0], ids[2]], "num_missing": 2}

    def test_a_long_list_of_missing_ones_is_cut_in_the_message_only(self):
        ids = [segment_id(str(number)) for number in range(30)]
        with pytest.raises(SegmentsMissing, match="and 10 more") as caught:
            conversation().messages(chat(user([segment(id_=id_) for id_ in ids])))
        assert caught.value.details["segment_ids"] == ids

    def test_where_only_registered_ones_are_wanted_a_text_is_not_enough(self):
        body = chat(user([segment("a"), segment("b")]))
        with pytest.raises(SegmentsMissing) as caught:
            conversation("b", only_registered=True).messages(body)
        assert caught.value.details["segment_ids"] == [segment_id("a")]

    def test_tokens_of_another_tokenizer_are_not_used(self):
        memo = TokenMemo(lambda text: (len(text),))
        conversation = Conversation(catalog("A town"), "another fingerprint", memo)
        [message] = conversation.messages(chat(user([segment("A town")])))
        assert message.content[0].token_ids == (6,)


class TestDocuments:
    def test_they_stand_before_the_first_users_text(self):
        body = chat(
            {"role": "system", "content": "S"}, user("Q"), {"role": "assistant", "content": "A"},
            user("R"), documents=[{"text": "one"}, {"segment_id": segment_id("two")}],
        )  # fmt: skip
        messages = conversation("two").messages(body)
        assert [[text.text for text in one.content] for one in messages] == [
            ["S"], ["one", "\n\n", "two", "\n\n", "Q"], ["A"], ["R"],
        ]  # fmt: skip
        ids = [text.segment_id for text in messages[1].content]
        assert ids == [segment_id("one"), None, segment_id("two"), None, None]

    def test_they_are_told_apart_from_parts_of_messages(self):
        body = chat(
            user([{"type": "text", "text": "Q"}, segment("s")]), documents=[{"text": "one"}]
        )
        [message] = conversation().messages(body)
        places = [(text.message_index, text.content_index) for text in message.content]
        assert places == [(DOCUMENTS, 0), (DOCUMENTS, 0), (0, 0), (0, 1)]

    def test_they_need_a_user(self):
        body = chat({"role": "system", "content": "S"}, documents=[{"text": "one"}])
        with pytest.raises(RequestError, match="user message"):
            conversation().messages(body)


class TestMessages:
    def test_a_developer_is_the_system(self):
        [message, _] = conversation().messages(
            chat({"role": "developer", "content": "S"}, user("Q"))
        )
        assert message.role == "system"

    def test_reasoning_and_its_other_name(self):
        for name in ("reasoning_content", "reasoning"):
            body = chat({"role": "assistant", "content": "A", name: "because"}, user("Q"))
            [message, _] = conversation().messages(body)
            assert message.reasoning.text == "because"

    @pytest.mark.parametrize(
        ("arguments", "given"),
        [('{"town": "Norwick"}', {"town": "Norwick"}), ("[1]", "[1]"), ("{", "{"), ("", {})],
    )
    def test_arguments_are_an_object_where_their_text_is_one(self, arguments, given):
        call = {"id": "c", "function": {"name": "look_up", "arguments": arguments}}
        result = {"role": "tool", "content": "x", "tool_call_id": "c", "name": "look_up"}
        body = chat(user("Q"), {"role": "assistant", "tool_calls": [call]}, result)
        [_, calls, result] = conversation().messages(body)
        [shown] = calls.extra["tool_calls"]
        assert shown["function"] == {"name": "look_up", "arguments": given}
        assert calls.content == ()
        assert result.extra == {"tool_call_id": "c", "name": "look_up"}

    def test_a_reply_is_said_again_in_its_own_tokens(self):
        said = {"yes": (7, 8)}
        body = chat(user("yes"), {"role": "assistant", "content": "yes"}, user("Q"))
        [asked, reply, _] = conversation(recall=said.get).messages(body)
        assert reply.content[0].token_ids == (7, 8)
        assert asked.content[0].token_ids is None


@given(parts=st.lists(st.tuples(tiny.full_texts, st.booleans()), min_size=1, max_size=5))
def test_a_plain_prompt_is_its_parts(parts):
    prompt = [segment(text) if is_one else {"type": "text", "text": text} for text, is_one in parts]
    texts = conversation().texts(parse(CompletionRequest, {"prompt": prompt}))
    assert [text.text for text in texts] == [text for text, _ in parts]
    assert [text.segment_id is not None for text in texts] == [is_one for _, is_one in parts]
    assert [text.content_index for text in texts] == list(range(len(parts)))
