"""Chats, plain prompts and what is asked beside them, with the client's calls over a service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Unpack, final, overload

from hypic_sdk.service import ChunkStream, Service
from hypic_sdk.wire.cache_stats import CacheStats
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.explain import Explanation
from hypic_sdk.wire.models import TokenizeReply
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk, Completion
from hypic_sdk.wire.shorthand import (
    ChatOptions,
    CompletionOptions,
    chat_request,
    checked_timeout,
    completion_request,
    either_request,
)

ChatStream = ChunkStream[ChatCompletionChunk, ChatCompletion]
CompletionStream = ChunkStream[Completion, Completion]


def within(timeout_s: float | None, usual_s: float | None) -> float | None:
    """The limit of one call: its own, else the usual one.  Raises ConfigError: it is none."""
    return usual_s if timeout_s is None else checked_timeout(timeout_s)


def tokenized(service: Service, request: ChatRequest | CompletionRequest) -> TokenizeReply:
    """The token ids that a request's prompt comes to."""
    if isinstance(request, ChatRequest):
        prepared = service.prepare_chat(request)
    else:
        prepared = service.prepare_completion(request)
    prompt = prepared.message.prompt
    return TokenizeReply(count=prompt.num_tokens, tokens=list(prompt.token_ids))


@final
class LocalChat:
    """`chat.completions`."""

    def __init__(self, service: Service, timeout_s: float | None = None) -> None:
        self.completions = LocalChatCompletions(service, timeout_s)


@final
class LocalChatCompletions:
    """Chats: `create`, whole or streamed, and `stream`."""

    def __init__(self, service: Service, timeout_s: float | None) -> None:
        self._service = service
        self._timeout_s = timeout_s

    @overload
    def create(
        self, *, messages: Iterable[Mapping[str, Any]], stream: Literal[False] = ...,
        timeout_s: float | None = ..., **options: Unpack[ChatOptions],
    ) -> ChatCompletion: ...  # fmt: skip

    @overload
    def create(
        self, *, messages: Iterable[Mapping[str, Any]], stream: Literal[True],
        timeout_s: float | None = ..., **options: Unpack[ChatOptions],
    ) -> ChatStream: ...  # fmt: skip

    def create(
        self,
        *,
        messages: Iterable[Mapping[str, Any]],
        stream: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[ChatOptions],
    ) -> ChatCompletion | ChatStream:
        """Answer a chat.

        Args:
            messages: as for OpenAI; a content part may be a segment (an object, or
                `{"type": "segment", "segment_id": ..., "text": ...}`).
            stream: give chunks as they come.
            timeout_s: for the whole reply; none: as `with_options` says, else there is none.
            options: the fields of `ChatOptions`; `documents` (segments, texts or items) stand
                before the first user message's text.
        Raises:
            HypicError: by its class.
            DeadlineExceeded: not over after `timeout_s`.
        """
        if stream:
            return self.stream(messages=messages, timeout_s=timeout_s, **options)
        request = chat_request(messages, options)
        return self._service.chat(request, within(timeout_s, self._timeout_s))

    def stream(
        self,
        *,
        messages: Iterable[Mapping[str, Any]],
        timeout_s: float | None = None,
        **options: Unpack[ChatOptions],
    ) -> ChatStream:
        """Chunks as they come, for a `with` block: leaving it early cancels the request."""
        request = chat_request(messages, options)
        return self._service.chat_chunks(request, within(timeout_s, self._timeout_s))


@final
class LocalCompletions:
    """Plain prompts, without a chat template."""

    def __init__(self, service: Service, timeout_s: float | None = None) -> None:
        self._service = service
        self._timeout_s = timeout_s

    @overload
    def create(
        self, *, prompt: str | Iterable[Any], stream: Literal[False] = ...,
        timeout_s: float | None = ..., **options: Unpack[CompletionOptions],
    ) -> Completion: ...  # fmt: skip

    @overload
    def create(
        self, *, prompt: str | Iterable[Any], stream: Literal[True],
        timeout_s: float | None = ..., **options: Unpack[CompletionOptions],
    ) -> CompletionStream: ...  # fmt: skip

    def create(
        self,
        *,
        prompt: str | Iterable[Any],
        stream: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[CompletionOptions],
    ) -> Completion | CompletionStream:
        """Continue a prompt: a text, or its parts in order (texts, segments, part objects)."""
        if stream:
            return self.stream(prompt=prompt, timeout_s=timeout_s, **options)
        request = completion_request(prompt, options)
        return self._service.complete(request, within(timeout_s, self._timeout_s))

    def stream(
        self,
        *,
        prompt: str | Iterable[Any],
        timeout_s: float | None = None,
        **options: Unpack[CompletionOptions],
    ) -> CompletionStream:
        """Chunks as they come, for a `with` block: leaving it early cancels the request."""
        request = completion_request(prompt, options)
        return self._service.complete_chunks(request, within(timeout_s, self._timeout_s))


@final
class LocalPrompts:
    """Prompts looked at without an answer."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def explain(
        self,
        *,
        messages: Iterable[Mapping[str, Any]] | None = None,
        prompt: str | Iterable[Any] | None = None,
        **options: Unpack[ChatOptions],
    ) -> Explanation:
        """Parts, token counts, expected hits and cost of a prompt, and what costs hits.

        Raises:
            TypeError: both `messages` and `prompt`, or none.
        """
        return self._service.explain(either_request(messages, prompt, options))


@final
class LocalCache:
    """The worker's pools."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def stats(self) -> CacheStats:
        """Where the memory is; of tenants there is nothing to tell."""
        return CacheStats.model_validate(self._service.usage())
