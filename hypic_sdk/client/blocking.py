"""`Hypic`: the calls of `AsyncHypic` for callers that wait.  All of it is done over there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, Unpack, final, overload

from hypic_sdk.client.async_client import DEFAULT_TIMEOUT_S, AsyncHypic
from hypic_sdk.client.blocking_segments import Segments
from hypic_sdk.client.blocking_stream import ChunkStream
from hypic_sdk.client.loop_thread import LoopThread
from hypic_sdk.wire.cache_stats import CacheStats
from hypic_sdk.wire.explain import Explanation
from hypic_sdk.wire.models import ModelList, ModelObject, TokenizeReply
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk, Completion
from hypic_sdk.wire.shorthand import ChatOptions, CompletionOptions

ChatStream = ChunkStream[ChatCompletionChunk, ChatCompletion]
CompletionStream = ChunkStream[Completion, Completion]


@final
class Hypic:
    """One server; arguments and calls as `AsyncHypic` has them, usable from several threads."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_retries: int = 2,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """See `AsyncHypic`."""
        inner = AsyncHypic(
            base_url, api_key=api_key, timeout_s=timeout_s, max_retries=max_retries, headers=headers
        )
        self._attach(inner, LoopThread())

    def _attach(self, inner: AsyncHypic, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop
        self.segments = Segments(inner.segments, loop)
        self.chat = Chat(inner, loop)
        self.completions = Completions(inner, loop)
        self.models = Models(inner, loop)
        self.prompts = Prompts(inner, loop)
        self.cache = Cache(inner, loop)

    def with_options(
        self, *, timeout_s: float | None = None, max_retries: int | None = None
    ) -> Hypic:
        """See `AsyncHypic.with_options`; closing either closes both."""
        other = Hypic.__new__(Hypic)
        inner = self._inner.with_options(timeout_s=timeout_s, max_retries=max_retries)
        other._attach(inner, self._loop)
        return other

    def tokenize(
        self,
        *,
        messages: Iterable[Mapping[str, Any]] | None = None,
        prompt: str | Iterable[Any] | None = None,
        **options: Unpack[ChatOptions],
    ) -> TokenizeReply:
        """See `AsyncHypic.tokenize`."""
        return self._loop.run(self._inner.tokenize(messages=messages, prompt=prompt, **options))

    def is_ready(self) -> bool:
        """Whether requests are taken now.  Raises ConnectionFailed: nobody is there."""
        return self._loop.run(self._inner.is_ready())

    def close(self) -> None:
        """Close the connections.  A second time does nothing."""
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@final
class Chat:
    """`chat.completions`."""

    def __init__(self, inner: AsyncHypic, loop: LoopThread) -> None:
        self.completions = ChatCompletions(inner, loop)


@final
class ChatCompletions:
    """Chats: `create`, whole or streamed, and `stream`."""

    def __init__(self, inner: AsyncHypic, loop: LoopThread) -> None:
        self._inner = inner.chat.completions
        self._loop = loop

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
        """Answer a chat; see `AsyncChatCompletions.create`."""
        if stream:
            return self.stream(messages=messages, timeout_s=timeout_s, **options).open()
        return self._loop.run(self._inner.create(messages=messages, timeout_s=timeout_s, **options))

    def stream(
        self,
        *,
        messages: Iterable[Mapping[str, Any]],
        timeout_s: float | None = None,
        **options: Unpack[ChatOptions],
    ) -> ChatStream:
        """Chunks as they come, for a `with` block: leaving it early cancels the request."""
        inner = self._inner.stream(messages=messages, timeout_s=timeout_s, **options)
        return ChunkStream(inner, self._loop)


@final
class Completions:
    """Plain prompts, without a chat template."""

    def __init__(self, inner: AsyncHypic, loop: LoopThread) -> None:
        self._inner = inner.completions
        self._loop = loop

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
            return self.stream(prompt=prompt, timeout_s=timeout_s, **options).open()
        return self._loop.run(self._inner.create(prompt=prompt, timeout_s=timeout_s, **options))

    def stream(
        self,
        *,
        prompt: str | Iterable[Any],
        timeout_s: float | None = None,
        **options: Unpack[CompletionOptions],
    ) -> CompletionStream:
        """Chunks as they come, for a `with` block: leaving it early cancels the request."""
        inner = self._inner.stream(prompt=prompt, timeout_s=timeout_s, **options)
        return ChunkStream(inner, self._loop)


@final
class Models:
    """What is served."""

    def __init__(self, inner: AsyncHypic, loop: LoopThread) -> None:
        self._inner = inner.models
        self._loop = loop

    def list(self) -> ModelList:
        """The models of the server."""
        return self._loop.run(self._inner.list())

    def retrieve(self, model: str) -> ModelObject:
        """One model.  Raises UnknownModel."""
        return self._loop.run(self._inner.retrieve(model))


@final
class Prompts:
    """Prompts looked at without an answer."""

    def __init__(self, inner: AsyncHypic, loop: LoopThread) -> None:
        self._inner = inner.prompts
        self._loop = loop

    def explain(
        self,
        *,
        messages: Iterable[Mapping[str, Any]] | None = None,
        prompt: str | Iterable[Any] | None = None,
        **options: Unpack[ChatOptions],
    ) -> Explanation:
        """See `AsyncPrompts.explain`."""
        return self._loop.run(self._inner.explain(messages=messages, prompt=prompt, **options))


@final
class Cache:
    """The server's pools."""

    def __init__(self, inner: AsyncHypic, loop: LoopThread) -> None:
        self._inner = inner.cache
        self._loop = loop

    def stats(self) -> CacheStats:
        """Where the memory is."""
        return self._loop.run(self._inner.stats())
