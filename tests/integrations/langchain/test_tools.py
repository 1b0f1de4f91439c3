"""Tools and structured answers, over the scripted engine: calls come back whole and in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.tools import tool
from pydantic import BaseModel

from hypic_sdk import LocalHypic
from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.integrations.langchain import ChatHypic
from hypic_sdk.integrations.langchain.messages import MessageWriter
from hypic_sdk.integrations.langchain.replies import ReplyReader, chat_result
from hypic_sdk.scripted import Answer, Call, Rule, Script
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk

SCRIPT = Script(
    rules=(
        Rule(user="think", reply=Answer(content="It is 3.", reasoning="One and two.")),
        Rule(user="as JSON", reply=Answer(content='{"name": "Ada", "age": 38}')),
        Rule(user="nonsense", reply=Answer(content="no JSON at all")),
        Rule(
            user="twice",
            after="user",
            reply=Answer(
                content="Two sums.",
                tool_calls=(Call("add", {"a": 1, "b": 2}), Call("add", {"a": 3, "b": 4})),
            ),
        ),
    )
)


@pytest.fixture(scope="module")
def chat() -> Iterator[ChatHypic]:
    with LocalHypic.scripted(SCRIPT) as local:
        yield ChatHypic(client=local, max_tokens=400)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Person(BaseModel):
    """A person."""

    name: str
    age: int


class PersonDict(TypedDict):
    """A person."""

    name: str
    age: int


def joined(chunks) -> Any:
    whole, *rest = chunks
    for chunk in rest:
        whole += chunk
    return whole


class TestCalls:
    @pytest.mark.parametrize("choice", [None, "auto", "any", "add", True])
    def test_a_call_whole_and_streamed(self, chat, choice):
        asking = chat.bind_tools([add], tool_choice=choice)
        whole = asking.invoke("What is add(1, 2)?")
        [call] = whole.tool_calls
        assert (call["name"], call["args"]) == ("add", {"a": 1, "b": 2})
        assert whole.response_metadata["finish_reason"] == "tool_calls"
        streamed = joined(asking.stream("What is add(1, 2)?"))
        [again] = streamed.tool_calls
        assert (again["name"], again["args"]) == ("add", {"a": 1, "b": 2})
        assert streamed.response_metadata["finish_reason"] == "tool_calls"
        assert not whole.invalid_tool_calls + streamed.invalid_tool_calls

    def test_several_calls_keep_their_places(self, chat):
        asking = chat.bind_tools([add])
        wanted = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        for reply in (asking.invoke("twice"), joined(asking.stream("twice"))):
            assert [call["args"] for call in reply.tool_calls] == wanted
            assert reply.text.strip() == "Two sums."
            assert len({call["id"] for call in reply.tool_calls}) == 2
        single = chat.bind_tools([add], parallel_tool_calls=False).invoke("twice")
        assert [call["args"] for call in single.tool_calls] == wanted[:1]

    def test_none_is_none(self, chat):
        assert chat.bind_tools([add], tool_choice="none").invoke("add(1, 2)").tool_calls == []

    def test_the_result_goes_back_beside_segments(self, chat):
        """The whole round of an agent, with a document in the tool's answer."""
        asking = chat.bind_tools([add])
        question = HumanMessage("What is add(1, 2)?")
        called = asking.invoke([question])
        text = DOCUMENTS["ada"]
        chat.registry.add(text)
        result = ToolMessage(text, tool_call_id=called.tool_calls[0]["id"], name="add")
        reply = asking.invoke([question, called, result])
        assert text in reply.text
        assert reply.response_metadata["hypic"]["auto_segments"] == 1

    def test_on_a_loop(self, chat):
        asking = chat.bind_tools([add])

        async def ask() -> Any:
            streamed = [chunk async for chunk in asking.astream("What is add(1, 2)?")]
            return await asking.ainvoke("What is add(1, 2)?"), joined(streamed)

        for reply in asyncio.run(ask()):
            assert [call["args"] for call in reply.tool_calls] == [{"a": 1, "b": 2}]


class TestReasoning:
    def test_whole_and_streamed(self, chat):
        for reply in (chat.invoke("think"), joined(chat.stream("think"))):
            assert reply.text.strip() == "It is 3."
            kinds = [block["type"] for block in reply.content_blocks]
            assert kinds == ["reasoning", "text"]
            assert reply.content_blocks[0]["reasoning"].strip() == "One and two."


class TestStructured:
    @pytest.mark.parametrize("method", ["json_schema", "function_calling"])
    @pytest.mark.parametrize("schema", [Person, PersonDict, Person.model_json_schema()])
    def test_an_answer_of_a_schema(self, chat, method, schema):
        asking = chat.with_structured_output(schema, method=method)
        for answer in (asking.invoke("'Ada' is 38."), list(asking.stream("'Ada' is 38."))[-1]):
            values = answer.model_dump() if isinstance(answer, Person) else answer
            assert values == {"name": "Ada", "age": 38}
            assert isinstance(answer, Person) == (schema is Person)

    def test_json_mode(self, chat):
        asking = chat.with_structured_output(Person, method="json_mode")
        assert asking.invoke("Ada as JSON") == Person(name="Ada", age=38)

    def test_what_can_not_be_parsed_is_told(self, chat):
        asking = chat.bind(response_format={"type": "text"})
        assert (asking | StrOutputParser()).invoke("nonsense").strip() == "no JSON at all"
        raw = chat.with_structured_output(Person, include_raw=True, method="json_mode")
        told = raw.invoke("Ada as JSON")
        assert told["parsed"] == Person(name="Ada", age=38)
        assert told["parsing_error"] is None
        told = raw.invoke("nothing of the kind", max_tokens=2)
        assert told["parsed"] is None
        assert told["parsing_error"] is not None
        assert isinstance(told["raw"], AIMessage)

    def test_wrong_arguments(self, chat):
        with pytest.raises(ValueError, match="no method 'magic'"):
            chat.with_structured_output(Person, method="magic")
        with pytest.raises(ValueError, match="unexpected arguments: tone"):
            chat.with_structured_output(Person, tone="kind")


# replies as servers write them, put down here so that their shapes are seen
HEAD = {"id": "req_1", "created": 1, "model": "m"}
BROKEN = {"id": "call_1", "function": {"name": "add", "arguments": '{"a": 1, "b"'}}


def test_arguments_that_are_no_json_are_invalid_and_go_back_as_they_were():
    message = {"content": None, "tool_calls": [BROKEN]}
    choice = {"message": message, "finish_reason": "tool_calls"}
    reply = ChatCompletion.model_validate({**HEAD, "choices": [choice], "usage": {}})
    [generation] = chat_result(reply, []).generations
    [invalid] = generation.message.invalid_tool_calls
    assert (generation.message.tool_calls, invalid["args"]) == ([], '{"a": 1, "b"')
    [written] = MessageWriter().messages([generation.message])
    assert written["tool_calls"][0]["function"] == BROKEN["function"]


def test_pieces_of_two_calls_that_come_mixed():
    pieces = [
        {"index": 0, "id": "c0", "type": "function", "function": {"name": "add"}},
        {"index": 1, "id": "c1", "type": "function", "function": {"name": "sub"}},
        {"index": 1, "function": {"arguments": '{"b":'}},
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 0, "function": {"arguments": " 1}"}},
        {"index": 1, "function": {"arguments": " 2}"}},
    ]
    reader, chunks = ReplyReader(), []
    for piece in pieces:
        choice = {"delta": {"tool_calls": [piece]}}
        chunk = ChatCompletionChunk.model_validate({**HEAD, "choices": [choice]})
        chunks += [one.message for one in reader.feed(chunk)]
    calls = joined([*chunks, reader.last([]).message]).tool_calls
    assert [(call["name"], call["args"], call["id"]) for call in calls] == [
        ("add", {"a": 1}, "c0"),
        ("sub", {"b": 2}, "c1"),
    ]
