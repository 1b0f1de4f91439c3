"""The demo model behind real sockets: `openai`, both clients, many callers, callers that leave."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import jsonschema_rs
import openai
import pytest

from hypic_sdk import AsyncHypic, Hypic, segment_id
from hypic_sdk.config import MODES, EngineConfig, ReuseConfig
from hypic_sdk.demo.library import DOCUMENTS, SYSTEM
from hypic_sdk.errors import RequestTimeout
from hypic_sdk.offline import DEMO_NAME
from tests.server.demo_server import DemoServer, demo_server
from tests.server.served import call

QUESTION = "How many kilograms does the Fenwold clock weigh?"
ASK = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
TEXTS = (DOCUMENTS["lantern"], DOCUMENTS["clock"])


@pytest.fixture(scope="module")
def server() -> Iterator[DemoServer]:
    with demo_server() as server:
        yield server
        server.worker.call(lambda engine: engine.check())
        assert server.in_use_bytes == 0


@pytest.fixture(scope="module")
def client(server: DemoServer) -> Iterator[Hypic]:
    with Hypic(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def gpt(server: DemoServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none is needed") as gpt:
        yield gpt


class TestOurClient:
    def test_documents_in_another_order_are_hits_and_the_answer_stays(self, client):
        made = client.segments.create_many(TEXTS, warm="wait")
        for documents in (made, made[::-1]):
            explained = client.prompts.explain(messages=ASK, documents=documents)
            reply = client.chat.completions.create(messages=ASK, documents=documents, max_tokens=16)
            assert "38" in reply.choices[0].message.content
            assert [one.status for one in reply.cache.segments] == ["hit", "hit"]
            # a chain may cover more than the interiors
            assert 0 < explained.cached_tokens <= reply.cache.cached_tokens
            assert explained.prompt_tokens == reply.usage.prompt_tokens
        whole = client.chat.completions.create(
            messages=ASK, documents=made, max_tokens=16, hypic={"mode": "off"}
        )
        assert whole.cache.cached_tokens == 0

    def test_a_stream_says_what_a_whole_reply_says(self, client):
        whole = client.chat.completions.create(messages=ASK, documents=TEXTS, max_tokens=16)
        with client.chat.completions.stream(messages=ASK, documents=TEXTS, max_tokens=16) as stream:
            assert stream.get_final_completion().choices == whole.choices


class TestOpenai:
    def body(self, **fields: object) -> dict[str, object]:
        return {"model": DEMO_NAME, "messages": ASK, "max_tokens": 16, "temperature": 0, **fields}

    def test_a_chat_with_segment_parts(self, gpt):
        content = [{"type": "segment", "text": text} for text in TEXTS]
        content.append({"type": "text", "text": "\n\n" + QUESTION})
        messages = [ASK[0], {"role": "user", "content": content}]
        first = gpt.chat.completions.create(**self.body(messages=messages))
        second = gpt.chat.completions.create(**self.body(messages=messages))
        assert first.choices[0].message.content == second.choices[0].message.content
        report = second.model_extra["hypic"]
        assert {one["status"] for one in report["segments"]} <= {"hit", "prefix"}
        assert second.usage.prompt_tokens_details.cached_tokens == report["cached_tokens"] > 0

    def test_documents_by_extra_body_and_a_stream_with_usage(self, gpt):
        chunks = list(
            gpt.chat.completions.create(
                **self.body(stream=True, stream_options={"include_usage": True}),
                extra_body={"documents": [{"text": text} for text in TEXTS]},
            )
        )
        said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "38" in "".join(said)
        assert chunks[-1].choices == []
        assert isinstance(chunks[-1].usage.prompt_tokens_details.cached_tokens, int)

    def test_its_own_stream_helper(self, gpt):
        with gpt.chat.completions.stream(**self.body()) as stream:
            for event in stream:
                assert event.type
            final = stream.get_final_completion()
        assert final.choices[0].finish_reason == "stop"

    def test_completions_models_and_log_probabilities(self, gpt):
        reply = gpt.completions.create(model=DEMO_NAME, prompt="The town", max_tokens=3)
        assert reply.usage.completion_tokens == 3
        assert [model.id for model in gpt.models.list()] == [DEMO_NAME]
        told = gpt.chat.completions.create(**self.body(logprobs=True, top_logprobs=2))
        assert all(len(one.top_logprobs) == 2 for one in told.choices[0].logprobs.content)

    def test_errors_are_its_own_classes(self, gpt):
        with pytest.raises(openai.NotFoundError) as caught:
            gpt.chat.completions.create(**self.body(model="gpt-9"))
        assert caught.value.code == "model_not_found"
        assert caught.value.request_id.startswith("req_")
        with pytest.raises(openai.BadRequestError) as refused:
            gpt.chat.completions.create(**self.body(), extra_body={"best_of": 3})
        assert refused.value.param == "best_of"

    @pytest.mark.parametrize("choice", ["required", {"function": {"name": "forecast"}}])
    def test_a_call_that_has_to_be(self, gpt, choice):
        """A model that was never shown a tool is held to the form of a call."""
        parameters = {
            "type": "object",
            "properties": {
                "place": {"type": "string", "enum": ["Norwick", "Halden"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "why": {"type": "string", "maxLength": 12},
            },
            "required": ["place", "days", "why"],
        }
        function = {"name": "forecast", "parameters": parameters}
        if choice != "required":
            choice = {"type": "function", **choice}
        fields = {
            **self.body(max_tokens=128),
            "tools": [{"type": "function", "function": function}],
            "tool_choice": choice,
        }
        reply = gpt.chat.completions.create(**fields)
        assert reply.choices[0].finish_reason == "tool_calls"
        [made] = reply.choices[0].message.tool_calls
        assert made.function.name == "forecast"
        jsonschema_rs.validate(parameters, json.loads(made.function.arguments))
        with gpt.chat.completions.create(**fields, stream=True) as stream:
            pieces = [one for chunk in stream for one in chunk.choices[0].delta.tool_calls or ()]
        assert [one.function.name for one in pieces] == ["forecast"] + [None] * (len(pieces) - 1)
        assert len(pieces) > 5
        assert "".join(one.function.arguments for one in pieces) == made.function.arguments

    def test_a_call_that_is_cut_off(self, gpt):
        parameters = {"type": "object", "properties": {"why": {"type": "string", "minLength": 99}}}
        function = {"name": "forecast", "parameters": {**parameters, "required": ["why"]}}
        fields = {
            **self.body(max_tokens=48),
            "tools": [{"type": "function", "function": function}],
            "tool_choice": "required",
        }
        [choice] = gpt.chat.completions.create(**fields).choices
        assert choice.finish_reason == "length"
        [made] = choice.message.tool_calls
        assert made.function.name == "forecast"
        assert made.function.arguments.startswith('{"why": "')
        with pytest.raises(json.JSONDecodeError):
            json.loads(made.function.arguments)

    def test_a_schema_and_several_replies(self, gpt):
        schema = {
            "type": "object",
            "properties": {"kg": {"type": "integer", "minimum": 0, "maximum": 999}},
            "required": ["kg"],
            "additionalProperties": False,
        }
        wished = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        fields = self.body(n=2, temperature=1.0, seed=3, max_tokens=40, response_format=wished)
        whole = gpt.chat.completions.create(**fields)
        said = ["", ""]
        for chunk in gpt.chat.completions.create(**fields, stream=True):
            for one in chunk.choices:
                said[one.index] += one.delta.content or ""
        assert said == [one.message.content for one in whole.choices]
        for text in said:
            jsonschema_rs.validate(schema, json.loads(text))

    def test_a_prompt_with_its_log_probabilities(self, gpt):
        reply = gpt.completions.create(
            model=DEMO_NAME, prompt="The town", max_tokens=2, echo=True, logprobs=1
        )
        told = reply.choices[0].logprobs
        assert "".join(told.tokens) == reply.choices[0].text
        assert told.token_logprobs[0] is None
        assert all(value <= 0 for value in told.token_logprobs[1:])

    def test_on_an_event_loop(self, server):
        async def run() -> str:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as gpt:
                stream = await gpt.chat.completions.create(
                    **self.body(stream=True),
                    extra_body={"documents": [{"text": text} for text in TEXTS]},
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert "38" in asyncio.run(run())


class TestManyAndLeaving:
    def test_fifty_at_once_all_answered_alike(self, server):
        async def run() -> list[str]:
            async with AsyncHypic(server.url, max_retries=8) as client:
                made = await client.segments.create_many(TEXTS)
                orders = (made, made[::-1])
                replies = await asyncio.gather(
                    *(
                        client.chat.completions.create(
                            messages=ASK, documents=orders[number % 2], max_tokens=8
                        )
                        for number in range(50)
                    )
                )
                return [reply.choices[0].message.content for reply in replies]

        said = asyncio.run(run())
        assert len(said) == 50
        assert all("38" in one for one in said)
        assert server.in_use_bytes == 0

    def test_leaving_in_the_middle_of_a_cold_prefill_frees_the_engine(self, server):
        long = " ".join(f"Note {number}: {TEXTS[number % 2]}" for number in range(12))

        async def run() -> float:
            async with AsyncHypic(server.url, timeout_s=0.3, max_retries=0) as client:
                with pytest.raises(RequestTimeout):
                    await client.chat.completions.create(
                        messages=ASK, documents=[long, *TEXTS], max_tokens=64
                    )
            return time.monotonic()

        left_s = asyncio.run(run())
        while server.in_use_bytes or server.worker.call(lambda engine: engine.has_work):
            assert time.monotonic() - left_s < 5.0, "the engine is still at it"
            time.sleep(0.01)
        # a step of the engine is a fraction of it, on a busy machine too
        assert time.monotonic() - left_s < 1.0


class TestReference:
    """`POST /generate` as the reference's README calls it."""

    README = ("The quick brown fox jumps over the dog. ", "A second short text of a few words.")

    def ask(self, url: str, text: str) -> dict[str, object]:
        body = {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
        answer = call(url, "POST", "/generate", body)
        assert answer.status == 200
        return answer.json["meta_info"]

    def three_calls(self, url: str, first: str, second: str) -> dict[str, object]:
        self.ask(url, first)
        self.ask(url, second)
        return self.ask(url, f"{first}<<PIC_SEP>>{second}<<PIC_SEP>>{QUESTION}")

    def test_long_documents_count_by_their_interiors(self):
        with demo_server() as fresh:
            meta = self.three_calls(fresh.url, *TEXTS)
        tokens = [one["tokens"] for one in meta["hypic"]["segments"]]
        assert min(tokens) >= 100
        # the first stands at the beginning, where a chain may hold its seam as well
        assert meta["cached_tokens"] == sum(tokens) - 2 * 8

    def test_short_ones_are_not_kept_and_it_says_so(self, server):
        meta = self.three_calls(server.url, *self.README)
        assert meta["cached_tokens"] == 0
        assert [one["miss_reason"] for one in meta["hypic"]["segments"]] == [
            "below_min_tokens", "below_min_tokens",
        ]  # fmt: skip

    def test_unless_the_operator_wants_them_whole(self):
        reuse = ReuseConfig(mode=MODES["transition_rope"], min_segment_tokens=1)
        with demo_server(EngineConfig(reuse=reuse)) as fresh:
            meta = self.three_calls(fresh.url, *self.README)
        assert meta["cached_tokens"] == sum(one["tokens"] for one in meta["hypic"]["segments"])


def test_ids_are_made_without_a_server(client):
    assert client.segments.create(TEXTS[0]).id == segment_id(TEXTS[0])


def test_counters_agree_with_replies(server, client):
    def counted() -> float:
        lines = call(server.url, "GET", "/metrics").text.splitlines()
        [line] = [line for line in lines if line.startswith("hypic_cached_tokens_total")]
        return float(line.split()[-1])

    before = counted()
    raw = call(
        server.url,
        "POST",
        "/v1/chat/completions",
        {"messages": ASK, "documents": [{"text": text} for text in TEXTS], "stream": True},
    )
    last = json.loads(raw.events[-2])
    cached = last["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert counted() - before == cached == last["hypic"]["cached_tokens"]
