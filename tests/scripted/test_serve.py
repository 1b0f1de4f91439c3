"""`hypic serve --model scripted`: the real `openai` package against a real server process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import openai
import pytest
from pydantic import BaseModel

from hypic_sdk.demo.library import DOCUMENTS
from tests.cli.test_serve import server
from tests.server.served import call

SCRIPT = {
    "rules": [
        {"user": "slowly", "reply": {"content": "one two three"}},
        {"user": "think", "reply": {"content": "Yes.", "reasoning": "Hm."}},
    ],
    "token_ms": 1,
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "adds two numbers",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    }
]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SUM: Any = [{"role": "user", "content": "What is add(3, 4)? Use the tool."}]


class Person(BaseModel):
    """What a reply is parsed into."""

    name: str
    age: int


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("scripted")
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    with server("--model", "scripted", "--script", str(script), cache=folder) as (_, url):
        yield url


@pytest.fixture(scope="module")
def gpt(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none is needed", max_retries=0) as gpt:
        yield gpt


def test_the_server_says_what_it_is(gpt, url):
    assert [model.id for model in gpt.models.list()] == ["scripted"]
    assert call(url, "GET", "/v1/cache/stats").status == 200
    assert b"hypic_pool_bytes" in call(url, "GET", "/metrics").text.encode()


def test_cached_tokens_are_those_of_the_metrics(gpt, url):
    def counted() -> float:
        text = call(url, "GET", "/metrics").text
        [line] = [one for one in text.splitlines() if one.startswith("hypic_cached_tokens_total ")]
        return float(line.split()[1])

    before, told = counted(), 0
    document = {"type": "segment", "text": list(DOCUMENTS.values())[3]}
    for number in range(3):
        content: Any = [document, {"type": "text", "text": f"{number}?"}]
        messages: Any = [{"role": "user", "content": content}]
        reply = gpt.chat.completions.create(model="scripted", messages=messages)
        cached = reply.usage.prompt_tokens_details.cached_tokens
        assert isinstance(cached, int)
        told += cached
    assert told > 0
    assert counted() - before == told


class TestTools:
    def test_a_round(self, gpt):
        reply = gpt.chat.completions.create(model="scripted", messages=SUM, tools=TOOLS)
        [choice] = reply.choices
        [made] = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert json.loads(made.function.arguments) == {"a": 3, "b": 4}
        result = {"role": "tool", "tool_call_id": made.id, "content": "7"}
        last = gpt.chat.completions.create(
            model="scripted", messages=[*SUM, choice.message, result], tools=TOOLS
        )
        assert last.choices[0].message.content == "The answer is: 7"

    def test_its_stream_helper(self, gpt):
        with gpt.chat.completions.stream(model="scripted", messages=SUM, tools=TOOLS) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion()
        assert "tool_calls.function.arguments.done" in kinds
        [made] = final.choices[0].message.tool_calls
        assert json.loads(made.function.arguments) == {"a": 3, "b": 4}
        assert final.choices[0].finish_reason == "tool_calls"

    @pytest.mark.parametrize(
        "choice", ["required", {"type": "function", "function": {"name": "add"}}]
    )
    def test_a_call_that_has_to_be(self, gpt, choice):
        reply = gpt.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "Say hello."}],
            tools=TOOLS,
            tool_choice=choice,
        )
        [made] = reply.choices[0].message.tool_calls
        assert set(json.loads(made.function.arguments)) == {"a", "b"}

    @pytest.mark.parametrize("choice", ["auto", "required"])
    def test_streamed_calls_come_in_pieces(self, gpt, choice):
        """The name first, then the arguments token by token, of one call after the other."""
        cities = ["Llanfairpwllgwyngyll on Anglesey", "Taumatawhakatangihangakoauauo"]
        words = " and ".join(f"weather('{city}')" for city in cities)
        called: list[dict[str, Any]] = []
        with gpt.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": words}],
            tools=[WEATHER, *TOOLS],
            tool_choice=choice,
            parallel_tool_calls=True,
            stream=True,
        ) as stream:
            for chunk in stream:
                for piece in chunk.choices[0].delta.tool_calls or ():
                    if piece.index == len(called):
                        assert (piece.type, piece.function.arguments) == ("function", "")
                        called.append({"id": piece.id, "name": piece.function.name, "pieces": []})
                    else:
                        assert piece.index == len(called) - 1
                        assert (piece.id, piece.function.name) == (None, None)
                        called[-1]["pieces"].append(piece.function.arguments)
        assert chunk.choices[0].finish_reason == "tool_calls"
        assert len({one["id"] for one in called}) == len(called)
        assert [one["name"] for one in called] == ["weather"] * len(cities)
        for one, city in zip(called, cities, strict=True):
            assert json.loads("".join(one["pieces"])) == {"city": city}
            assert len(one["pieces"]) > 5

    def test_with_segments_beside_them(self, gpt):
        parts = [{"type": "segment", "text": text} for text in list(DOCUMENTS.values())[:2]]
        for statuses in (["cold", "cold"], ["hit", "hit"]):
            content: Any = [*parts, {"type": "text", "text": SUM[0]["content"]}]
            system: Any = {"role": "system", "content": " ".join(statuses)}
            reply = gpt.chat.completions.create(
                model="scripted",
                messages=[system, {"role": "user", "content": content}],
                tools=TOOLS,
                response_format={"type": "text"},
            )
            report = reply.model_extra["hypic"]
            assert [one["status"] for one in report["segments"]] == statuses
            details = reply.usage.prompt_tokens_details
            assert details.cached_tokens == report["cached_tokens"]
            assert reply.choices[0].message.tool_calls
        assert report["cached_tokens"] > 0

    def test_on_an_event_loop(self, url):
        async def ask() -> list[str]:
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as gpt:
                whole = await gpt.chat.completions.create(
                    model="scripted", messages=SUM, tools=TOOLS
                )
                pieces = ""
                async for chunk in await gpt.chat.completions.create(
                    model="scripted", messages=SUM, tools=TOOLS, stream=True
                ):
                    for one in chunk.choices[0].delta.tool_calls or []:
                        pieces += one.function.arguments or ""
                [made] = whole.choices[0].message.tool_calls
                return [made.function.arguments, pieces]

        assert asyncio.run(ask()) == ['{"a": 3, "b": 4}'] * 2


class TestForms:
    def test_parsed_into_a_class(self, gpt):
        messages: Any = [{"role": "user", "content": "Who is 'Ada', 41 years old?"}]
        reply = gpt.chat.completions.parse(
            model="scripted", messages=messages, response_format=Person
        )
        assert reply.choices[0].message.parsed == Person(name="Ada", age=41)

    def test_parsed_tools(self, gpt):
        messages: Any = [{"role": "user", "content": "Note the Person 'Ada', 41."}]
        reply = gpt.chat.completions.parse(
            model="scripted", messages=messages, tools=[openai.pydantic_function_tool(Person)]
        )
        [made] = reply.choices[0].message.tool_calls
        assert made.function.parsed_arguments == Person(name="Ada", age=41)

    def test_an_object_and_a_stream_of_one(self, gpt):
        messages: Any = [{"role": "user", "content": "As JSON."}]
        fields: Any = {"model": "scripted", "messages": messages,
                       "response_format": {"type": "json_object"}}  # fmt: skip
        whole = gpt.chat.completions.create(**fields).choices[0].message.content
        jsonschema_rs.validate({"type": "object"}, json.loads(whole))
        chunks = gpt.chat.completions.create(**fields, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole

    def test_a_choice_by_vllms_field(self, gpt):
        reply = gpt.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "Well?"}],
            extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
        )
        assert reply.choices[0].message.content in ("yes", "no")

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"response_format": {"type": "json_schema", "json_schema": {"name": "x",
              "schema": {"type": "no such type"}}}}, None),
            ({"extra_body": {"structured_outputs": {"grammar": "start: ("}}}, None),
            ({"n": 65}, "n"),
            ({"extra_body": {"min_p": 2}}, "min_p"),
            ({"extra_body": {"best_of": 2}}, "best_of"),
        ],
    )  # fmt: skip
    def test_what_can_not_be_is_refused_with_a_type(self, gpt, fields, param):
        with pytest.raises(openai.BadRequestError) as caught:
            gpt.chat.completions.create(model="scripted", messages=SUM, **fields)
        assert caught.value.param == param
        assert caught.value.code in ("invalid_request", "unsupported_option", "invalid_grammar")


class TestReplies:
    def test_several_whole_and_streamed(self, gpt):
        messages: Any = [{"role": "user", "content": "slowly"}]
        fields: Any = {"model": "scripted", "messages": messages, "n": 3}
        whole = gpt.chat.completions.create(**fields)
        assert [one.index for one in whole.choices] == [0, 1, 2]
        said = {0: "", 1: "", 2: ""}
        chunks = list(
            gpt.chat.completions.create(
                **fields, stream=True, stream_options={"include_usage": True}
            )
        )
        for chunk in chunks:
            for one in chunk.choices:
                said[one.index] += one.delta.content or ""
        assert list(said.values()) == [one.message.content for one in whole.choices]
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert isinstance(chunks[-1].usage.prompt_tokens_details.cached_tokens, int)

    def test_reasoning(self, gpt):
        messages: Any = [{"role": "user", "content": "think"}]
        reply = gpt.chat.completions.create(model="scripted", messages=messages)
        message = reply.choices[0].message
        assert (message.content, message.model_extra["reasoning_content"]) == ("Yes.", "Hm.")

    def test_plain_completions_with_their_prompt(self, gpt):
        reply = gpt.completions.create(
            model="scripted", prompt="slowly", echo=True, logprobs=1, max_tokens=2, n=2
        )
        assert [one.text for one in reply.choices] == ["slowlyone two"] * 2
        assert reply.choices[0].logprobs.token_logprobs[0] is None


def test_a_script_that_can_not_be_used(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"rule": []}')
    for words, said in (
        (("--model", "scripted", "--script", str(script)), "script.json"),
        (("--script", str(script)), "--model scripted"),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "hypic_sdk.cli", "serve", "--port", "0", *words],
            capture_output=True, text=True, timeout=60,
            env={"HYPIC_CACHE_DIR": str(tmp_path), "COLUMNS": "200", "PATH": ""},
        )  # fmt: skip
        assert ended.returncode != 0
        assert said in ended.stderr
        assert "Traceback" not in ended.stderr
