"""The road of a request: written by a caller's options, asked, and read; whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
)

from hypic_sdk.integrations.clients import Clients
from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.in_thread import chunks_in_thread, whole_in_thread
from hypic_sdk.integrations.llama_index.messages import MessageWriter
from hypic_sdk.integrations.llama_index.replies import (
    ChatReader,
    CompletionReader,
    chat_response,
    completion_response,
)


@final
@dataclass(frozen=True, slots=True)
class Asking:
    """One request.  Without a registry nothing is looked for in plain texts."""

    clients: Clients
    registry: SegmentRegistry | None
    options: Mapping[str, Any]  # of the client's call

    def chat(self, messages: Sequence[ChatMessage]) -> ChatResponse:
        """Answer a chat."""
        writer, request = self._chat_request(messages)
        return chat_response(self.clients.calls().chat.completions.create(**request), writer.cuts)

    async def achat(self, messages: Sequence[ChatMessage]) -> ChatResponse:
        """Answer a chat; cancelling the task cancels the request."""
        writer, request = self._chat_request(messages)
        return chat_response(await self._whole(_chats, request), writer.cuts)

    def stream_chat(self, messages: Sequence[ChatMessage]) -> ChatResponseGen:
        """Answer a chat piece by piece; closing the generator cancels the request."""
        writer, request = self._chat_request(messages)
        reader = ChatReader()
        with self.clients.calls().chat.completions.create(stream=True, **request) as stream:
            for chunk in stream:
                yield from reader.feed(chunk)
        yield reader.last(writer.cuts)

    async def astream_chat(self, messages: Sequence[ChatMessage]) -> ChatResponseAsyncGen:
        """Answer a chat piece by piece; closing the generator cancels the request."""
        writer, request = self._chat_request(messages)
        reader = ChatReader()
        async with aclosing(self._chunks(_chats, request)) as chunks:
            async for chunk in chunks:
                for response in reader.feed(chunk):
                    yield response
        yield reader.last(writer.cuts)

    def plain(self, prompt: str) -> CompletionResponse:
        """Continue a prompt without a chat template; the following are as those above."""
        writer, request = self._plain_request(prompt)
        return completion_response(self.clients.calls().completions.create(**request), writer.cuts)

    async def aplain(self, prompt: str) -> CompletionResponse:
        """See `plain`."""
        writer, request = self._plain_request(prompt)
        return completion_response(await self._whole(_plain_prompts, request), writer.cuts)

    def stream_plain(self, prompt: str) -> CompletionResponseGen:
        """See `plain`."""
        writer, request = self._plain_request(prompt)
        reader = CompletionReader()
        with self.clients.calls().completions.create(stream=True, **request) as stream:
            for chunk in stream:
                yield from reader.feed(chunk)
        yield reader.last(writer.cuts)

    async def astream_plain(self, prompt: str) -> CompletionResponseAsyncGen:
        """See `plain`."""
        writer, request = self._plain_request(prompt)
        reader = CompletionReader()
        async with aclosing(self._chunks(_plain_prompts, request)) as chunks:
            async for chunk in chunks:
                for response in reader.feed(chunk):
                    yield response
        yield reader.last(writer.cuts)

    def _chat_request(
        self, messages: Sequence[ChatMessage]
    ) -> tuple[MessageWriter, dict[str, Any]]:
        writer = MessageWriter(self.registry)
        return writer, {"messages": writer.messages(messages), **self.options}

    def _plain_request(self, prompt: str) -> tuple[MessageWriter, dict[str, Any]]:
        writer = MessageWriter(self.registry)
        return writer, {"prompt": writer.prompt(prompt), **self.options}

    async def _whole(self, endpoint: Callable[[Any], Any], request: Mapping[str, Any]) -> Any:
        calls = self.clients.async_calls()
        if calls is not None:
            return await endpoint(calls).create(**request)
        create = endpoint(self.clients.calls()).create
        return await whole_in_thread(partial(create, stream=True, **request))

    async def _chunks(
        self, endpoint: Callable[[Any], Any], request: Mapping[str, Any]
    ) -> AsyncGenerator[Any, None]:
        calls = self.clients.async_calls()
        if calls is None:
            create = endpoint(self.clients.calls()).create
            async with aclosing(
                chunks_in_thread(partial(create, stream=True, **request))
            ) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        async with endpoint(calls).stream(**request) as stream:
            async for chunk in stream:
                yield chunk


def _chats(calls: Any) -> Any:
    return calls.chat.completions


def _plain_prompts(calls: Any) -> Any:
    return calls.completions
