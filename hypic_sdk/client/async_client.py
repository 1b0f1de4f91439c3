"""`AsyncHypic`: a server's calls on an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, Unpack, final, overload

from hypic_sdk.client.async_segments import AsyncSegments
from hypic_sdk.client.async_stream import AsyncChunkStream
from hypic_sdk.client.connection import Connection
from hypic_sdk.client.protocol import chat, completion, get, looked_at, parsed
from hypic_sdk.client.retries import Retries
from hypic_sdk.client.whole import WholeChat, WholeCompletion
from hypic_sdk.config import environment
from hypic_sdk.errors import CapacityError, UnknownModel
from hypic_sdk.wire.cache_stats import CacheStats
from hypic_sdk.wire.explain import Explanation
from hypic_sdk.wire.models import ModelList, ModelObject, TokenizeReply
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk, Completion
from hypic_sdk.wire.shorthand import ChatOptions, CompletionOptions, either_request

DEFAULT_BASE_URL = "http://127.0.0.1:30000"
DEFAULT_TIMEOUT_S = 600.0

ChatStream = AsyncChunkStream[ChatCompletionChunk, ChatCompletion]
CompletionStream = AsyncChunkStream[Completion, Completion]


@final
class AsyncHypic:
    """One server.  Usable on several event loops, also in repeated `asyncio.run`.

    `segments`, `chat.completions`, `completions`, `models`, `prompts`, `cache` are named after the
    endpoints.  A context manager; left open, a session is closed when its loop ends.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_retries: int = 2,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            base_url: with or without `/v1`; none: `HYPIC_BASE_URL`, else this machine's port 30000.
            api_key: none: `HYPIC_API_KEY`, else none is sent.
            timeout_s: for a whole call, or between two chunks of a stream.
            max_retries: of what may be tried again: refusals for lack of room, broken connections
                of calls that change nothing the second time.
            headers: sent with every call.
        """
        self._attach(
            Connection(
                base_url or environment("BASE_URL") or DEFAULT_BASE_URL,
                api_key=api_key or environment("API_KEY"),
                timeout_s=timeout_s,
                retries=Retries(max_retries),
                headers=headers or {},
            )
        )

    def _attach(self, connection: Connection) -> None:
        self._connection = connection
        self.segments = AsyncSegments(connection)
        self.chat = AsyncChat(connection)
        self.completions = AsyncCompletions(connection)
        self.models = AsyncModels(connection)
        self.prompts = AsyncPrompts(connection)
        self.cache = AsyncCache(connection)

    def with_options(
        self, *, timeout_s: float | None = None, max_retries: int | None = None
    ) -> AsyncHypic:
        """The same server with other limits, for one call or many; what is left out stays.

        Connections are shared: closing either closes those of both.
        """
        other = AsyncHypic.__new__(AsyncHypic)
        other._attach(self._connection.with_options(timeout_s=timeout_s, max_retries=max_retries))
        return other

    async def tokenize(
        self,
        *,
        messages: Iterable[Mapping[str, Any]] | None = None,
        prompt: str | Iterable[Any] | None = None,
        **options: Unpack[ChatOptions],
    ) -> TokenizeReply:
        """The token ids that a chat, or a plain prompt, comes to.

        Raises:
            TypeError: both `messages` and `prompt`, or none.
        """
        call = looked_at("/v1/tokenize", either_request(messages, prompt, options))
        return parsed(TokenizeReply, await self._connection.send(call))

    async def is_ready(self) -> bool:
        """Whether requests are taken now.  Raises ConnectionFailed: nobody is there."""
        try:
            await self._connection.send(get("/health/ready"))
        except CapacityError:
            return False
        return True

    async def close(self) -> None:
        """Close the connections of the running loop; another call opens new ones."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


@final
class AsyncChat:
    """`chat.completions`."""

    def __init__(self, connection: Connection) -> None:
        self.completions = AsyncChatCompletions(connection)


@final
class AsyncChatCompletions:
    """Chats: `create`, whole or streamed, and `stream`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @overload
    async def create(
        self, *, messages: Iterable[Mapping[str, Any]], stream: Literal[False] = ...,
        timeout_s: float | None = ..., **options: Unpack[ChatOptions],
    ) -> ChatCompletion: ...  # fmt: skip

    @overload
    async def create(
        self, *, messages: Iterable[Mapping[str, Any]], stream: Literal[True],
        timeout_s: float | None = ..., **options: Unpack[ChatOptions],
    ) -> ChatStream: ...  # fmt: skip

    async def create(
        self,
        *,
        messages: Iterable[Mapping[str, Any]],
        stream: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[ChatOptions],
    ) -> ChatCompletion | ChatStream:
        """Answer a chat; arguments as for `LocalHypic`.

        Args:
            timeout_s: of this call; none: the client's own.
        Raises:
            HypicError: by its class, as the server raised it.
            ConnectionFailed, RequestTimeout: no reply came.
        """
        if stream:
            return await self.stream(messages=messages, timeout_s=timeout_s, **options).open()
        body = await self._connection.send(chat(messages, options), timeout_s=timeout_s)
        return parsed(ChatCompletion, body)

    def stream(
        self,
        *,
        messages: Iterable[Mapping[str, Any]],
        timeout_s: float | None = None,
        **options: Unpack[ChatOptions],
    ) -> ChatStream:
        """Chunks as they come, for an `async with` block: leaving it early cancels the request."""
        call = chat(messages, options, stream=True)
        opening = partial(self._connection.events, call, timeout_s=timeout_s)
        return AsyncChunkStream(opening, ChatCompletionChunk, WholeChat())


@final
class AsyncCompletions:
    """Plain prompts, without a chat template."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @overload
    async def create(
        self, *, prompt: str | Iterable[Any], stream: Literal[False] = ...,
        timeout_s: float | None = ..., **options: Unpack[CompletionOptions],
    ) -> Completion: ...  # fmt: skip

    @overload
    async def create(
        self, *, prompt: str | Iterable[Any], stream: Literal[True],
        timeout_s: float | None = ..., **options: Unpack[CompletionOptions],
    ) -> CompletionStream: ...  # fmt: skip

    async def create(
        self,
        *,
        prompt: str | Iterable[Any],
        stream: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[CompletionOptions],
    ) -> Completion | CompletionStream:
        """Continue a prompt: a text, or its parts in order (texts, segments, part objects)."""
        if stream:
            return await self.stream(prompt=prompt, timeout_s=timeout_s, **options).open()
        body = await self._connection.send(completion(prompt, options), timeout_s=timeout_s)
        return parsed(Completion, body)

    def stream(
        self,
        *,
        prompt: str | Iterable[Any],
        timeout_s: float | None = None,
        **options: Unpack[CompletionOptions],
    ) -> CompletionStream:
        """Chunks as they come, for an `async with` block: leaving it early cancels the request."""
        call = completion(prompt, options, stream=True)
        opening = partial(self._connection.events, call, timeout_s=timeout_s)
        return AsyncChunkStream(opening, Completion, WholeCompletion())


@final
class AsyncModels:
    """What is served."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self) -> ModelList:
        """The models of the server."""
        return parsed(ModelList, await self._connection.send(get("/v1/models")))

    async def retrieve(self, model: str) -> ModelObject:
        """One model.  Raises UnknownModel."""
        listed = await self.list()
        found = next((one for one in listed.data if one.id == model), None)
        if found is None:
            raise UnknownModel(f"no model {model!r} there", model=model)
        return found


@final
class AsyncPrompts:
    """Prompts looked at without an answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def explain(
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
        call = looked_at("/v1/prompts/explain", either_request(messages, prompt, options))
        return parsed(Explanation, await self._connection.send(call))


@final
class AsyncCache:
    """The server's pools."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def stats(self) -> CacheStats:
        """Where the memory is."""
        return parsed(CacheStats, await self._connection.send(get("/v1/cache/stats")))
