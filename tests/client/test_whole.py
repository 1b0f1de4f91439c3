"""Whatever way a reply is cut into chunks, they join to it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.client.whole import WholeChat, WholeCompletion
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk, Completion

HEAD = {"id": "req_1", "created": 1, "model": "m"}
CALLS = st.lists(st.tuples(st.text(max_size=4), st.text(max_size=8)), max_size=3)
REPLIES = st.lists(
    st.tuples(st.text(max_size=8), st.text(max_size=6), CALLS), min_size=1, max_size=3
)


def cut(text: str, data: st.DataObject) -> list[str]:
    at = data.draw(st.integers(0, len(text)))
    return [piece for piece in (text[:at], text[at:]) if piece]


def deltas(said: str, reasoning: str, calls: Any, data: st.DataObject) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    found += [{"reasoning_content": piece} for piece in cut(reasoning, data)]
    found += [{"content": piece} for piece in cut(said, data)]
    for index, (name, arguments) in enumerate(calls):
        first = {"index": index, "id": f"call_{index}", "type": "function"}
        found.append({"tool_calls": [{**first, "function": {"name": f"f{name}"}}]})
        for piece in cut(arguments, data):
            found.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return found


def whole_choice(index: int, said: str, reasoning: str, calls: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"content": said or (None if calls else "")}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{place}", "function": {"name": f"f{name}", "arguments": arguments}}
            for place, (name, arguments) in enumerate(calls)
        ]
    return {"index": index, "message": message, "finish_reason": "tool_calls" if calls else "stop"}


@given(REPLIES, st.data())
def test_chunks_of_a_chat_join_to_its_reply(replies, data):
    lines = [
        [(index, delta, None) for delta in deltas(*reply, data)]
        + [(index, {}, "tool_calls" if reply[2] else "stop")]
        for index, reply in enumerate(replies)
    ]
    whole = WholeChat()
    while any(lines):
        line = data.draw(st.sampled_from([one for one in lines if one]))
        index, delta, finish_reason = line.pop(0)
        choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
        whole.feed(ChatCompletionChunk.model_validate({**HEAD, "choices": [choice]}))
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    whole.feed(ChatCompletionChunk.model_validate({**HEAD, "choices": [], "usage": usage}))
    choices = [whole_choice(index, *reply) for index, reply in enumerate(replies)]
    assert whole.completion() == ChatCompletion.model_validate(
        {**HEAD, "choices": choices, "usage": usage}
    )


@given(st.lists(st.text(max_size=8), min_size=1, max_size=3), st.data())
def test_chunks_of_plain_replies_join_to_them(texts, data):
    lines = [
        [(index, piece, None) for piece in cut(text, data)] + [(index, "", "stop")]
        for index, text in enumerate(texts)
    ]
    whole = WholeCompletion()
    while any(lines):
        line = data.draw(st.sampled_from([one for one in lines if one]))
        index, text, finish_reason = line.pop(0)
        choice = {"index": index, "text": text, "finish_reason": finish_reason}
        whole.feed(Completion.model_validate({**HEAD, "choices": [choice]}))
    choices = [
        {"index": index, "text": text, "finish_reason": "stop"} for index, text in enumerate(texts)
    ]
    assert whole.completion() == Completion.model_validate({**HEAD, "choices": choices})
