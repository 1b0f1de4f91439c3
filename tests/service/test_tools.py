"""Tools, reasoning and several replies on the whole road: whole and streamed say the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.errors import RequestError, UnsupportedOption
from hypic_sdk.offline import LocalHypic
from hypic_sdk.scripted import Answer, Call, Rule, Script
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk
from tests.prompt import tiny
from tests.service.services import saying, service
from tests.service.test_service import chat

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "tells the weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
ASK = [{"role": "user", "content": "raw"}]
PIECES = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "\n", "é", '{"name": "weather", ',
     '"arguments": {"city": "Ulm"}}', "<function=weather>", "<parameter=city>\nUlm\n</parameter>",
     "</function>", "so "]
)  # fmt: skip


def joined(chunks: list[ChatCompletionChunk], index: int) -> dict[str, Any]:
    """What clients make of the chunks of one reply."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    for choice in (one for chunk in chunks for one in chunk.choices if one.index == index):
        assert finish is None, "nothing follows the end"
        finish = choice.finish_reason
        values = choice.delta.model_dump()
        for name in ("content", "reasoning_content"):
            message[name] += values.get(name, "")
        for call in values.get("tool_calls", ()):
            calls = message["tool_calls"]
            if call["index"] == len(calls):
                assert call["function"]["name"]
                calls.append({"id": call["id"], "type": call["type"], "function": call["function"]})
            else:
                assert call["index"] == len(calls) - 1
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    return {**message, "finish_reason": finish}


def whole(reply: ChatCompletion, index: int) -> dict[str, Any]:
    choice = reply.choices[index]
    assert choice.index == index
    values = choice.message.model_dump()
    calls = values.get("tool_calls", [])
    return {
        "content": values["content"] or "",
        "reasoning_content": values.get("reasoning_content", ""),
        "tool_calls": calls,
        "finish_reason": choice.finish_reason,
    }


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**call, "id": ""} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


@pytest.fixture(scope="module")
def parrot() -> Iterator[LocalHypic]:
    """Its two replies are what the user's message says they are."""
    answers = (Answer(raw="{1}"), Answer(raw="{2}"))
    rule = Rule(user_regex="(?s)^first: (.*) second: (.*)$", reply=answers)
    with LocalHypic.scripted(Script((rule,))) as local:
        yield local


@settings(max_examples=60)
@given(
    texts=st.lists(st.lists(PIECES, max_size=8).map("".join), min_size=2, max_size=2),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "tools": st.just(TOOLS),
            "stop": st.just(["so", "</function>"]),
            "max_tokens": st.integers(0, 12),
            "chat_template_kwargs": st.just({"enable_thinking": True}),
            "parallel_tool_calls": st.booleans(),
            "logprobs": st.booleans(),
        },
    ),
)
def test_a_stream_says_what_a_whole_reply_says(parrot, texts, fields):
    create = parrot.chat.completions.create
    ask = [{"role": "user", "content": f"first: {texts[0]} second: {texts[1]}"}]
    reply = create(messages=ask, n=2, **fields)
    chunks = list(create(messages=ask, n=2, stream=True, **fields))
    for index in range(len(texts)):
        assert without_ids(joined(chunks, index)) == without_ids(whole(reply, index))
        told = [
            one
            for chunk in chunks
            for choice in chunk.choices
            if choice.index == index and choice.logprobs is not None
            for one in choice.logprobs.content
        ]
        logprobs = reply.choices[index].logprobs
        assert told == (logprobs.content if logprobs else [])
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].usage.completion_tokens == reply.usage.completion_tokens
    cached = chunks[-1].usage.prompt_tokens_details.cached_tokens
    assert isinstance(cached, int)
    assert cached == chunks[-1].hypic.cached_tokens


class TestCalls:
    def test_a_round_of_calls_and_results(self):
        with LocalHypic.scripted() as local:
            create = local.chat.completions.create
            messages: list[dict[str, Any]] = [
                {"role": "user", "content": "weather('Ulm', 3) and weather('Bonn', 2)?"}
            ]
            reply = create(messages=messages, tools=TOOLS)
            [choice] = reply.choices
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content is None
            calls = choice.message.tool_calls
            arguments = [json.loads(call.function.arguments) for call in calls]
            assert arguments == [{"city": "Ulm", "days": 3}, {"city": "Bonn", "days": 2}]
            assert len({call.id for call in calls}) == 2
            messages.append(choice.message.model_dump())
            for call, said in zip(calls, ("It rains.", "It snows."), strict=True):
                messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
            last = create(messages=messages, tools=TOOLS)
            assert last.choices[0].message.content == "The answer is: It snows."
            assert last.choices[0].finish_reason == "stop"

    def test_segments_in_a_tools_result_are_hits(self):
        with LocalHypic.scripted() as local:
            documents = local.segments.create_many(list(DOCUMENTS.values())[:2], warm="wait")
            call = {"id": "c", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
            messages = [
                {"role": "user", "content": "Look it up."},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": [*documents, "That is all."]},
            ]
            reply = local.chat.completions.create(messages=messages, tools=TOOLS, max_tokens=2000)
            assert [one.status for one in reply.cache.segments] == ["hit", "hit"]
            assert [one.part for one in reply.cache.segments] == [(2, 0), (2, 1)]
            assert reply.choices[0].message.content.endswith("That is all.")

    def test_one_call_where_parallel_ones_are_not_wished(self):
        rules = (Rule(reply=Answer(tool_calls=(Call("weather", {"city": "a"}),) * 3)),)
        with LocalHypic.scripted(Script(rules)) as local:
            for wished, number in ((None, 3), (True, 3), (False, 1)):
                fields = {} if wished is None else {"parallel_tool_calls": wished}
                reply = local.chat.completions.create(messages=ASK, tools=TOOLS, **fields)
                assert len(reply.choices[0].message.tool_calls) == number

    def test_a_call_that_is_cut_short_is_text(self):
        rules = (Rule(reply=Answer(tool_calls=(Call("weather", {"city": "Ulm"}),))),)
        with LocalHypic.scripted(Script(rules)) as local:
            reply = local.chat.completions.create(messages=ASK, tools=TOOLS, max_tokens=6)
            [choice] = reply.choices
            assert choice.finish_reason == "length"
            assert choice.message.tool_calls is None
            assert choice.message.content.startswith("<tool_call>")

    def test_without_tools_no_call_is_looked_for(self):
        rules = (Rule(reply=Answer(tool_calls=(Call("weather", {"city": "Ulm"}),))),)
        with LocalHypic.scripted(Script(rules)) as local:
            for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
                reply = local.chat.completions.create(messages=ASK, **fields)
                assert "<tool_call>" in reply.choices[0].message.content
                assert reply.choices[0].finish_reason == "stop"

    @pytest.mark.parametrize("fields", [{}, {"chat_template_kwargs": {"enable_thinking": True}}])
    @pytest.mark.parametrize("choice", ["required", {"function": {"name": "weather"}}])
    def test_a_call_that_has_to_be(self, choice, fields):
        rules = (Rule(reply=Answer(content="I will not.")),)
        with LocalHypic.scripted(Script(rules)) as local:
            reply = local.chat.completions.create(
                messages=ASK, tools=TOOLS, tool_choice=choice, **fields
            )
            [call] = reply.choices[0].message.tool_calls
            assert call.function.name == "weather"
            assert isinstance(json.loads(call.function.arguments)["city"], str)

    def test_arguments_that_are_no_object(self):
        """Templates go through an object's items; what is none is the caller's fault."""
        source = (
            "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
            "{% for key, value in c.function.arguments | items %}{{ key }}{% endfor %}"
            "{% endfor %}{% endfor %}"
        )
        over = service(saying("x"), template=source)
        for arguments, is_right in (('{"a": 1}', True), ("", True), ("[1]", False), ("{", False)):
            call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
            said = {"role": "assistant", "content": "so", "tool_calls": [call]}
            body = chat(messages=[*ASK, said, *ASK])
            if is_right:
                assert over.chat(body).choices
                continue
            with pytest.raises(RequestError, match="no JSON object"):
                over.chat(body)

    def test_options_that_a_template_fails_on(self):
        over = service(saying("x"), template="{{ messages[0].content }}{{ 1 + size }}")
        assert over.chat(chat(chat_template_kwargs={"size": 1})).choices
        with pytest.raises(RequestError, match="these options"):
            over.chat(chat(chat_template_kwargs={"size": "x"}))

    def test_a_template_that_shows_no_tools(self):
        with pytest.raises(UnsupportedOption, match="shows no tools"):
            service(saying("x"), template=tiny.CHATML).chat(chat(tools=TOOLS))


class TestReasoning:
    def test_it_has_a_field_of_its_own_and_comes_back(self):
        rules = (Rule(user="raw", reply=Answer(content="Yes.", reasoning="Hm.\n\nSo.")),)
        with LocalHypic.scripted(Script(rules)) as local:
            for options in ({}, {"enable_thinking": True}):
                reply = local.chat.completions.create(messages=ASK, chat_template_kwargs=options)
                message = reply.choices[0].message
                assert (message.content, message.reasoning_content) == ("Yes.", "Hm.\n\nSo.")
                again = [*ASK, message.model_dump(), {"role": "user", "content": "raw again"}]
                assert local.chat.completions.create(messages=again).choices

    def test_a_session_keeps_only_what_is_the_text(self):
        rules = (Rule(user="raw", reply=Answer(content="Yes.", reasoning="Hm.")),)
        with LocalHypic.scripted(Script(rules)) as local:
            fields = {"hypic": {"session_id": "s"}}
            message = local.chat.completions.create(messages=ASK, **fields).choices[0].message
            again = [*ASK, message.model_dump(), {"role": "user", "content": "more"}]
            prompt = local.service.prepare_chat(chat(messages=again, **fields)).message.prompt
            text = local.service._tokenizer.decode(prompt.token_ids)
            assert text.count("Hm.") == 0  # of an earlier turn, which the template leaves out
            assert text.count("Yes.") == 1


class TestSeveral:
    def test_each_reply_ends_by_its_own_stop(self):
        texts = ("a stop b", "c d e f", "stop")
        rules = (Rule(reply=tuple(Answer(content=text) for text in texts)),)
        with LocalHypic.scripted(Script(rules, token_ms=2)) as local:
            reply = local.chat.completions.create(messages=ASK, n=3, stop="stop")
            assert [choice.message.content for choice in reply.choices] == ["a ", "c d e f", ""]
            assert {choice.finish_reason for choice in reply.choices} == {"stop"}
            assert reply.usage.completion_tokens >= 3

    def test_a_stop_ends_the_reply_in_the_engine(self):
        rules = (Rule(reply=Answer(content="a stop" + " b" * 400)),)
        with LocalHypic.scripted(Script(rules, token_ms=5)) as local:
            reply = local.chat.completions.create(messages=ASK, n=3, stop="stop", max_tokens=400)
            assert [choice.message.content for choice in reply.choices] == ["a "] * 3
            # all three at once, and none of them goes on to its end
            assert reply.usage.completion_tokens < 300

    def test_plain_completions(self):
        rules = (Rule(reply=(Answer(content="one"), Answer(content="two"))),)
        with LocalHypic.scripted(Script(rules)) as local:
            reply = local.completions.create(prompt="say", n=2, echo=True, logprobs=1)
            assert [choice.text for choice in reply.choices] == ["sayone", "saytwo"]
            chunks = list(
                local.completions.create(prompt="say", n=2, echo=True, logprobs=1, stream=True)
            )
            for choice in reply.choices:
                own = [one for c in chunks for one in c.choices if one.index == choice.index]
                assert "".join(one.text for one in own) == choice.text
                for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                    told = [value for one in own for value in getattr(one.logprobs, name)]
                    assert told == getattr(choice.logprobs, name)
                assert choice.logprobs.token_logprobs[0] is None
                assert "".join(choice.logprobs.tokens) == choice.text

    def test_log_probabilities_of_a_prompt(self):
        with LocalHypic.scripted() as local:
            for told in (
                local.completions.create(prompt="say it", prompt_logprobs=2).choices[0],
                local.chat.completions.create(messages=ASK, prompt_logprobs=2),
                next(local.chat.completions.create(messages=ASK, prompt_logprobs=2, stream=True)),
            ):
                first, *rest = told.prompt_logprobs
                assert first is None
                assert all(len(one) == 2 for one in rest)
                assert {one.rank for place in rest for one in place.values()} == {1, 2}
