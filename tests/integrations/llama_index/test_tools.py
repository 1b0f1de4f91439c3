"""Tools: what is offered, and what is made of calls, whole or in pieces, as OpenAI writes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from llama_index.core.program.function_program import FunctionCallingProgram
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel

from hypic_sdk.integrations.llama_index import Hypic
from hypic_sdk.integrations.llama_index.replies import ChatReader
from hypic_sdk.integrations.llama_index.tool_calls import arguments
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk

USAGE = {"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29}
FIND = {"name": "find", "arguments": '{"name": "Ada", "limit": 2}'}
LIST = {"name": "list_all", "arguments": "{}"}


def find(name: str, limit: int = 1) -> str:
    """Look a person up."""
    return f"{name} x {limit}"


def list_all() -> str:
    """Everybody."""
    return "Ada, Tomas"


TOOLS = [FunctionTool.from_defaults(find), FunctionTool.from_defaults(list_all)]


def reply(*functions: dict[str, str], content: str | None = None) -> ChatCompletion:
    """A whole reply, recorded."""
    calls = [
        {"id": f"call_{at}", "type": "function", "function": one}
        for at, one in enumerate(functions)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": calls or None}
    reason = "tool_calls" if calls else "stop"
    return ChatCompletion.model_validate(
        {
            "id": "req_1",
            "created": 1,
            "model": "scripted",
            "choices": [{"message": message, "finish_reason": reason}],
            "usage": USAGE,
        }
    )


def chunks(whole: ChatCompletion, size: int = 5) -> Iterator[ChatCompletionChunk]:
    """The same in pieces: an id and a name, then the arguments bit by bit."""
    [choice] = whole.choices
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": choice.message.content}]
    for index, call in enumerate(choice.message.tool_calls or ()):
        text = call.function.arguments
        head = {"index": index, "id": call.id, "type": "function"}
        deltas.append({"tool_calls": [{**head, "function": {"name": call.function.name}}]})
        for start in range(0, len(text), size):
            piece = {"arguments": text[start : start + size]}
            deltas.append({"tool_calls": [{"index": index, "function": piece}]})
    for delta in deltas:
        yield chunk(choices=[{"delta": delta}])
    yield chunk(choices=[{"delta": {}, "finish_reason": choice.finish_reason}])
    yield chunk(choices=[], usage=USAGE)


def chunk(**fields: Any) -> ChatCompletionChunk:
    head = {"id": "req_1", "created": 1, "model": "scripted"}
    return ChatCompletionChunk.model_validate({**head, **fields})


REPORTED = """{"id": "req_1", "created": 1, "model": "scripted", "choices": [], "hypic": {
    "exactness": "composed", "prompt_tokens": 20, "cached_tokens": 12, "prefix_tokens": 0,
    "segment_tokens": 12, "live_tokens": 8, "seam_tokens": 2, "cold_tokens": 0, "segments": [],
    "timing_ms": {"queue": 0.1, "cold": 0.0, "ttft": 2.0}}}"""


class Recorded:
    """A client that says what was recorded, whole or in pieces, and notes what it is asked."""

    def __init__(self, whole: ChatCompletion) -> None:
        self.whole = whole
        self.requests: list[dict[str, Any]] = []
        self.streams: list[RecordedStream] = []
        self.chat = self
        self.completions = self

    def create(self, *, stream: bool = False, **request: Any) -> Any:
        self.requests.append(request)
        if not stream:
            return self.whole
        self.streams.append(RecordedStream(self.whole))
        return self.streams[-1]


class RecordedStream:
    """The pieces of a recorded reply."""

    def __init__(self, whole: ChatCompletion) -> None:
        self.whole = whole
        self.chunks = chunks(whole)
        self.is_closed = False

    def __enter__(self) -> RecordedStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> RecordedStream:
        return self

    def __next__(self) -> ChatCompletionChunk:
        return next(self.chunks)

    def get_final_completion(self) -> ChatCompletion:
        return self.whole

    def close(self) -> None:
        self.is_closed = True


def over(whole: ChatCompletion) -> Hypic:
    return Hypic(client=Recorded(whole), is_function_calling_model=True)


WAYS = ["chat_with_tools", "achat_with_tools", "stream_chat_with_tools", "astream_chat_with_tools"]

every_way = pytest.mark.parametrize("way", WAYS)


def ask(llm: Hypic, way: str, **options: Any) -> list[ChatResponse]:
    """Every response of one of the ways to ask with tools."""

    async def aask() -> list[ChatResponse]:
        result = await getattr(llm, way)(TOOLS, **options)
        return [one async for one in result] if "stream" in way else [result]

    options = {"user_msg": "Who?", **options}
    if way.startswith("a"):
        return asyncio.run(aask())
    result = getattr(llm, way)(TOOLS, **options)
    return list(result) if "stream" in way else [result]


class TestOffered:
    @every_way
    def test_tools_in_openais_words(self, way: str):
        llm = over(reply(FIND))
        ask(llm, way, chat_history=[ChatMessage("Be brief.", role="system")])
        [request] = llm.client.requests
        assert [one["role"] for one in request["messages"]] == ["system", "user"]
        assert request["tool_choice"] == "auto"
        assert request["parallel_tool_calls"] is False
        first = request["tools"][0]
        assert first["type"] == "function"
        assert first["function"]["name"] == "find"
        assert "Look a person up." in first["function"]["description"]
        assert first["function"]["parameters"]["required"] == ["name"]

    @pytest.mark.parametrize(
        ("options", "choice"),
        [
            ({"tool_required": True}, "required"),
            ({"tool_choice": "none"}, "none"),
            ({"tool_choice": "find"}, {"type": "function", "function": {"name": "find"}}),
            (
                {"tool_choice": {"type": "function", "function": {"name": "find"}}},
                {"type": "function", "function": {"name": "find"}},
            ),
            ({"tool_choice": "auto", "tool_required": True}, "auto"),
        ],
        ids=["required", "none", "by name", "as OpenAI writes it", "said twice"],
    )
    def test_choices(self, options: dict[str, Any], choice: Any):
        llm = over(reply(FIND))
        llm.chat_with_tools(TOOLS, user_msg="Who?", **options)
        assert llm.client.requests[0]["tool_choice"] == choice

    def test_other_options_go_along(self):
        llm = over(reply(FIND))
        llm.chat_with_tools(TOOLS, user_msg=ChatMessage("Who?"), strict=True, temperature=0.5)
        [request] = llm.client.requests
        assert request["temperature"] == 0.5
        assert all(one["function"]["strict"] for one in request["tools"])

    def test_without_tools_nothing_is_offered(self):
        llm = over(reply(content="Ada"))
        llm.chat_with_tools([], user_msg="Who?")
        assert llm.client.requests == [{"messages": [{"role": "user", "content": "Who?"}]}]

    def test_a_long_description(self):
        """The framework refuses more than another provider takes; ours takes it."""
        tool = FunctionTool.from_defaults(find, description="Look up. " * 300)
        llm = over(reply(FIND))
        llm.chat_with_tools([tool], user_msg="Who?")
        assert len(llm.client.requests[0]["tools"][0]["function"]["description"]) > 1024


class TestCalls:
    @every_way
    def test_of_every_way(self, way: str):
        llm = over(reply(FIND, LIST, content="Let me see."))
        [*_, last] = ask(llm, way, allow_parallel_tool_calls=True)
        assert last.message.content == "Let me see."
        assert last.additional_kwargs["finish_reason"] == "tool_calls"
        assert last.additional_kwargs["completion_tokens"] == 9
        first, second = llm.get_tool_calls_from_response(last)
        assert (first.tool_id, first.tool_name) == ("call_0", "find")
        assert first.tool_kwargs == {"name": "Ada", "limit": 2}
        assert (second.tool_id, second.tool_name, second.tool_kwargs) == ("call_1", "list_all", {})

        # and so they are sent back, to the byte
        llm.chat([last.message])
        [said] = llm.client.requests[-1]["messages"]
        assert said["tool_calls"] == [
            {"id": "call_0", "type": "function", "function": FIND},
            {"id": "call_1", "type": "function", "function": LIST},
        ]
        # also beside the blocks, where older code looks for them
        assert last.message.additional_kwargs["tool_calls"] == said["tool_calls"]

    @every_way
    def test_no_call(self, way: str):
        llm = over(reply(content="Ada"))
        [*_, last] = ask(llm, way)
        assert llm.get_tool_calls_from_response(last, error_on_no_tool_call=False) == []
        with pytest.raises(ValueError, match="at least one tool call"):
            llm.get_tool_calls_from_response(last)

    @pytest.mark.parametrize("way", WAYS[:2])
    def test_one_at_a_time_unless_more_are_allowed(self, way: str):
        llm = over(reply(FIND, FIND))
        [one] = ask(llm, way)
        assert len(llm.get_tool_calls_from_response(one)) == 1
        assert len(one.message.additional_kwargs["tool_calls"]) == 1

    def test_arguments_grow(self):
        llm = over(reply(FIND))
        seen = []
        for response in llm.stream_chat_with_tools(TOOLS, user_msg="Who?"):
            calls = llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
            seen += [call.tool_kwargs for call in calls]
        assert seen[0] == {}
        assert {"name": "Ada"} in seen
        assert seen[-1] == {"name": "Ada", "limit": 2}

    @given(st.integers(1, 40), st.dictionaries(st.text(max_size=5), st.text(), max_size=3))
    def test_pieces_of_any_size_join_to_the_call(self, size: int, values: dict[str, str]):

        written = json.dumps(values)
        reader = ChatReader()
        for one in chunks(reply({"name": "find", "arguments": written}), size):
            for response in reader.feed(one):
                [*_, block] = response.message.blocks
                if isinstance(block, ToolCallBlock):
                    assert written.startswith(block.tool_kwargs)
        [block] = reader.last([]).message.blocks
        assert block.tool_kwargs == written
        assert arguments(block.tool_kwargs) == values

    def test_a_name_that_is_said_again(self):
        reader, call = ChatReader(), {"index": 0, "id": "call_0", "function": LIST}
        for _ in range(2):
            [*_] = reader.feed(chunk(choices=[{"delta": {"tool_calls": [call]}}]))
        [block] = reader.last([]).message.blocks
        assert block.tool_name == "list_all"

    def test_usage_and_report_on_chunks_of_their_own(self):
        told = ChatCompletionChunk.model_validate_json(REPORTED)
        reader = ChatReader()
        for one in (told, chunk(choices=[], usage=USAGE), chunk(choices=[])):
            assert list(reader.feed(one)) == []
        last = reader.last([])
        assert last.raw.usage.total_tokens == last.additional_kwargs["total_tokens"] == 29
        assert last.raw.cache == told.hypic
        assert last.additional_kwargs["hypic"]["cached_tokens"] == told.hypic.cached_tokens

    @pytest.mark.parametrize("written", ["nonsense", "[1]", '"text"', "3", "", "{]"])
    def test_arguments_that_are_no_object(self, written: str):
        llm = over(reply({"name": "find", "arguments": written}))
        [call] = llm.get_tool_calls_from_response(llm.chat([ChatMessage("Who?")]))
        assert call.tool_kwargs == {}


class TestLeaving:
    """The stream is closed there and then, not when something collects it."""

    def test_a_stream(self):
        llm = over(reply(content="Ada lives in Halden."))
        responses = llm.stream_chat([ChatMessage("Where?")])
        next(responses)
        [stream] = llm.client.streams
        assert not stream.is_closed
        responses.close()
        assert stream.is_closed

    def test_an_asynchronous_stream(self):
        llm = over(reply(content="Ada lives in Halden."))

        async def leave() -> None:
            responses = await llm.astream_chat([ChatMessage("Where?")])
            await anext(responses)
            [stream] = llm.client.streams
            assert not stream.is_closed
            await responses.aclose()
            # the framework wraps the generator and leaves ours to the loop's care
            await asyncio.sleep(0.05)
            assert stream.is_closed

        asyncio.run(leave())

    @every_way
    def test_an_end(self, way: str):
        llm = over(reply(content="Ada"))
        ask(llm, way)
        assert all(stream.is_closed for stream in llm.client.streams)


class Person(BaseModel):
    """A person."""

    name: str
    age: int


class TestStructured:
    WHOLE = reply({"name": "Person", "arguments": '{"name": "Ada", "age": 31}'})

    def test_whole(self):
        program = FunctionCallingProgram.from_defaults(
            output_cls=Person, prompt_template_str="Who is {who}?", llm=over(self.WHOLE)
        )
        assert program(who="Ada") == Person(name="Ada", age=31)
        assert asyncio.run(program.acall(who="Ada")) == Person(name="Ada", age=31)

    def test_as_a_structured_model(self):
        llm = over(self.WHOLE)
        response = llm.as_structured_llm(Person).chat([ChatMessage("Who?")])
        assert response.raw == Person(name="Ada", age=31)
        [request] = llm.client.requests
        assert request["tools"][0]["function"]["name"] == "Person"
        assert request["tool_choice"] in ("required", "auto")

    def test_in_pieces(self):
        program = FunctionCallingProgram.from_defaults(
            output_cls=Person, prompt_template_str="Who?", llm=over(self.WHOLE)
        )
        grown = list(program.stream_call())
        assert grown[-1] == Person(name="Ada", age=31)
        assert len({one.model_dump_json() for one in grown}) > 2
