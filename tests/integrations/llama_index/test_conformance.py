"""What an LLM class of LlamaIndex must do, over the demo model: eight ways to ask, all alike.

The framework has no standard suite; this is ours: ways x usage x cancel x errors x events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.callbacks import EventPayload, TokenCountingHandler
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatInProgressEvent,
    LLMChatStartEvent,
    LLMCompletionEndEvent,
    LLMCompletionInProgressEvent,
    LLMCompletionStartEvent,
)
from llama_index.core.rate_limiter import BaseRateLimiter

from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.errors import RequestError
from hypic_sdk.integrations.llama_index import Hypic
from hypic_sdk.wire.report import CacheReport, Usage
from tests.integrations.llama_index.paths import PATHS, Callbacks, Path, events
from tests.server.demo_server import DemoServer, demo_server

QUESTION = "\n\nHow many kilograms does the Fenwold clock weigh?"
PROMPT = DOCUMENTS["clock"] + QUESTION
CUT = [{"type": "segment", "text": DOCUMENTS["clock"]}, QUESTION]


def paths(**kind: bool) -> Any:
    """The ways of a kind, as a parameter."""
    of_kind = [
        one for one in PATHS if all(getattr(one, name) == is_so for name, is_so in kind.items())
    ]
    return pytest.mark.parametrize("path", of_kind, ids=lambda path: path.name)


every_path = paths()


@pytest.fixture(scope="module")
def server() -> Iterator[DemoServer]:
    with demo_server() as server:
        yield server
        server.worker.call(lambda engine: engine.check())
        assert server.in_use_bytes == 0


@pytest.fixture(scope="module", params=["local", "server"])
def llm(request, server: DemoServer) -> Iterator[Hypic]:
    """The same class, one argument."""
    place = {"client": server.local} if request.param == "local" else {"base_url": server.url}
    model = Hypic(**place, temperature=0.0, max_tokens=16)
    model.registry.add(DOCUMENTS["clock"])
    yield model
    model.close()


@pytest.fixture(scope="module")
def own(server: DemoServer) -> str:
    """What the model says without the adapter, the prompt cut by hand."""
    reply = server.local.chat.completions.create(
        messages=[{"role": "user", "content": CUT}], temperature=0.0, max_tokens=16
    )
    return reply.choices[0].message.content


class TestAnswers:
    @every_path
    def test_every_path_says_what_the_model_says(self, llm: Hypic, path: Path, own: str):
        responses = path.ask(llm, PROMPT)
        assert path.text(responses[-1]) == own
        assert own
        if not path.is_stream:
            return
        assert len(responses) > 2
        said = ""
        for response in responses:
            said += response.delta
            assert path.text(response) == said
        if path.is_chat:
            assert {one.message.role for one in responses} == {MessageRole.ASSISTANT}

    @every_path
    def test_options_of_a_call(self, llm: Hypic, path: Path):
        [*_, last] = path.ask(llm, PROMPT, max_tokens=1)
        assert last.additional_kwargs["completion_tokens"] == 1
        assert last.additional_kwargs["finish_reason"] == "length"
        [*_, last] = path.ask(llm, PROMPT, stop=["8"])
        assert "8" not in path.text(last)
        assert last.additional_kwargs["finish_reason"] == "stop"

    @paths(is_chat=False)
    def test_a_formatted_prompt_gets_no_template(self, llm: Hypic, server, path: Path):
        [*_, last] = path.ask(llm, PROMPT, formatted=True, max_tokens=4)
        plain = server.local.completions.create(prompt=CUT, temperature=0.0, max_tokens=4)
        assert last.text == plain.choices[0].text
        told = last.additional_kwargs
        assert told["prompt_tokens"] == plain.usage.prompt_tokens
        assert told["hypic"]["auto_segments"] == 1
        [*_, chat] = path.ask(llm, PROMPT, max_tokens=4)
        assert chat.additional_kwargs["prompt_tokens"] > told["prompt_tokens"]


class TestUsage:
    @every_path
    def test_usage_and_report_stand_on_the_last_response_alone(self, llm: Hypic, path: Path):
        path.ask(llm, PROMPT)
        *before, last = path.ask(llm, PROMPT)
        told = last.additional_kwargs
        assert told["total_tokens"] == told["prompt_tokens"] + told["completion_tokens"]
        # the prompt's count holds what was cached
        assert told["prompt_tokens"] >= told["cached_tokens"] + told["cache_write_tokens"] > 50
        assert told["hypic"]["auto_segments"] == 1
        assert [one["status"] for one in told["hypic"]["segments"]] in (["hit"], ["prefix"])
        assert all("prompt_tokens" not in one.additional_kwargs for one in before)

        raw = last.raw
        assert isinstance(raw.usage, Usage)
        assert isinstance(raw.cache, CacheReport)
        assert raw.usage.prompt_tokens == told["prompt_tokens"]
        assert raw.cache.cached_tokens == told["cached_tokens"]
        assert dict(raw)["usage"] is raw.usage

    @every_path
    def test_the_frameworks_own_counting_believes_it(self, llm: Hypic, path: Path):
        counter = TokenCountingHandler(tokenizer=lambda text: [0] * 100_000)
        kept, llm.callback_manager = llm.callback_manager, Callbacks().manager()
        llm.callback_manager.add_handler(counter)
        try:
            [*_, last] = path.ask(llm, PROMPT)
        finally:
            llm.callback_manager = kept
        told = last.additional_kwargs
        [event] = counter.llm_token_counts
        assert event.prompt_token_count == told["prompt_tokens"]
        assert event.completion_token_count == told["completion_tokens"]


class TestEvents:
    @every_path
    def test_events_of_the_instrumentation(self, llm: Hypic, path: Path):
        with events() as seen:
            responses = path.ask(llm, PROMPT)
        if path.is_chat:
            start, progress, end = LLMChatStartEvent, LLMChatInProgressEvent, LLMChatEndEvent
        else:
            start, progress, end = (
                LLMCompletionStartEvent,
                LLMCompletionInProgressEvent,
                LLMCompletionEndEvent,
            )
        between = [progress] * len(responses) if path.is_stream else []
        assert [type(one) for one in seen] == [start, *between, end]
        assert seen[-1].response == responses[-1]
        assert seen[0].model_dict["class_name"] == "hypic_llm"
        assert len({one.span_id for one in seen}) == 1

    @every_path
    def test_older_callbacks(self, llm: Hypic, path: Path):
        callbacks = Callbacks()
        kept, llm.callback_manager = llm.callback_manager, callbacks.manager()
        try:
            responses = path.ask(llm, PROMPT)
        finally:
            llm.callback_manager = kept
        [start], [end] = callbacks.starts, callbacks.ends
        field = EventPayload.RESPONSE if path.is_chat else EventPayload.COMPLETION
        assert end[field] == responses[-1]
        asked = EventPayload.MESSAGES if path.is_chat else EventPayload.PROMPT
        assert start[asked] == path.asked(PROMPT)

    @every_path
    def test_an_error_is_told_and_raised_as_it_is(self, llm: Hypic, path: Path):
        callbacks = Callbacks()
        kept, llm.callback_manager = llm.callback_manager, callbacks.manager()
        try:
            with pytest.raises(RequestError, match="top_p") as caught:
                path.ask(llm, PROMPT, top_p=7.0)
        finally:
            llm.callback_manager = kept
        assert callbacks.ends == [{EventPayload.EXCEPTION: caught.value}]

    @every_path
    def test_a_rate_limiter_is_asked_first(self, llm: Hypic, path: Path):
        class Gate(BaseRateLimiter):
            def acquire(self) -> None:
                passed.append("waiting")

            async def async_acquire(self) -> None:
                passed.append("on a loop")

        passed: list[str] = []
        llm.rate_limiter = Gate()
        try:
            path.ask(llm, PROMPT, max_tokens=1)
        finally:
            llm.rate_limiter = None
        assert passed == ["on a loop" if path.is_async else "waiting"]


LONG = {"max_tokens": 4000, "ignore_eos": True}


class TestCancel:
    """A request that nobody waits for any more gives back what it holds."""

    @paths(is_stream=True, is_async=False)
    def test_leaving_a_stream(self, llm: Hypic, server: DemoServer, path: Path):
        stream = path.method(llm)(path.asked(PROMPT), **LONG)
        next(stream)
        assert server.in_use_bytes > 0
        stream.close()
        self.is_idle_soon(server)

    @paths(is_stream=True, is_async=True)
    def test_leaving_an_asynchronous_stream(self, llm: Hypic, server: DemoServer, path: Path):
        async def leave() -> None:
            stream = await path.method(llm)(path.asked(PROMPT), **LONG)
            await anext(stream)
            assert server.in_use_bytes > 0
            await stream.aclose()
            del stream
            await asyncio.sleep(0.1)
            if (calls := llm.async_calls()) is not None:
                await calls.close()

        asyncio.run(leave())
        self.is_idle_soon(server)

    @paths(is_async=True)
    def test_cancelling_the_task(self, llm: Hypic, server: DemoServer, path: Path):
        async def cancel() -> None:
            task = asyncio.create_task(path.aask(llm, PROMPT, **LONG))
            deadline_s = time.monotonic() + 20
            while server.in_use_bytes == 0:
                assert time.monotonic() < deadline_s, "the request never began"
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancel())
        self.is_idle_soon(server)

    def is_idle_soon(self, server: DemoServer) -> None:
        deadline_s = time.monotonic() + 10
        while server.in_use_bytes:
            assert time.monotonic() < deadline_s, "the request runs on"
            time.sleep(0.02)


class TestMetadata:
    def test_it_is_what_is_served(self, llm: Hypic, server: DemoServer):
        [served] = server.local.models.list().data
        metadata = llm.metadata
        assert metadata.model_name == served.id == "hypic-reader"
        assert metadata.is_chat_model
        assert metadata.is_function_calling_model == served.hypic.tools
        assert metadata.num_output == 16

    def test_the_window_is_the_models(self, server: DemoServer):
        [served] = server.local.models.list().data
        window = Hypic(client=server.local).metadata.context_window
        assert window == served.hypic.max_context_tokens == 8192

    def test_a_conversation(self, llm: Hypic):
        messages = [
            ChatMessage("Answer from the documents.", role="system"),
            ChatMessage(PROMPT),
            ChatMessage("38", role="assistant"),
            ChatMessage("How many kilograms does it weigh?"),
        ]
        assert llm.chat(messages).message.content
