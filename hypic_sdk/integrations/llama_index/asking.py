"""The road of a request: written by a caller's options, asked, and read; whole or streamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
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

from hypic_sdk.integrations.asking import HasClients, chats, chunks, plain_prompts, whole
from hypic_sdk.integrations.contract import SegmentRegistry
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

    clients: HasClients
    registry: SegmentRegistry | None
    options: Mapping[str, Any]  # of the client's call

    def chat(self, messages: Sequence[ChatMessage]) -> ChatResponse:
        """Answer a chat."""
        writer, request = self._chat_request(messages)
        return chat_response(self.clients.calls().chat.completions.create(**request), writer.cuts)

    async def achat(self, messages: Sequence[ChatMessage]) -> ChatResponse:
        """Answer a chat; cancelling the task cancels the request."""
        writer, request = self._chat_request(messages)
        return chat_response(await whole(self.clients, chats, request), writer.cuts)

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
        async with aclosing(chunks(self.clients, chats, request)) as stream:
            async for chunk in stream:
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
        return completion_response(await whole(self.clients, plain_prompts, request), writer.cuts)

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
        async with aclosing(chunks(self.clients, plain_prompts, request)) as stream:
            async for chunk in stream:
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
