"""A streamed reply on an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar, final

from pydantic import BaseModel

from hypic_sdk.client.events import DONE, ServerEvent
from hypic_sdk.client.protocol import error_payload, parsed
from hypic_sdk.errors import ConnectionFailed, from_payload

Chunk = TypeVar("Chunk", bound=BaseModel)
Whole = TypeVar("Whole")


ChunkIn = TypeVar("ChunkIn", contravariant=True)
WholeOut = TypeVar("WholeOut", covariant=True)


class Gathering(Protocol[ChunkIn, WholeOut]):
    """Joins chunks to a whole reply."""

    def feed(self, chunk: ChunkIn) -> None:
        """Take the next chunk."""
        ...

    def completion(self) -> WholeOut:
        """The whole reply."""
        ...


@final
class AsyncChunkStream(Generic[Chunk, Whole]):
    """Chunks as they come.  Opened by `await stream.open()` or by `async with`.

    Closing it early, also by leaving the block, cancels the request on the server.
    """

    def __init__(
        self,
        opening: Callable[[], AbstractAsyncContextManager[AsyncIterator[ServerEvent]]],
        chunk: type[Chunk],
        gathering: Gathering[Chunk, Whole],
    ) -> None:
        self._opening = opening
        self._chunk = chunk
        self._gathering = gathering
        self._held: AbstractAsyncContextManager[AsyncIterator[ServerEvent]] | None = None
        self._events: AsyncIterator[ServerEvent] | None = None

    async def open(self) -> Self:
        """Send the request; the first chunk is on its way when this returns.

        Raises:
            HypicError: whatever is wrong with the request.
        """
        if self._held is None:
            held = self._opening()
            self._events = await held.__aenter__()
            self._held = held
        return self

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        if self._events is None:
            raise StopAsyncIteration
        event = await anext(self._events, None)
        if event is None:
            await self.close()
            raise ConnectionFailed("the stream ended early", sent=True)
        if event.data == DONE:
            await self.close()
            raise StopAsyncIteration
        payload = error_payload(event.data)
        if payload is not None:
            await self.close()
            raise from_payload(payload)
        chunk = parsed(self._chunk, event.data.encode())
        self._gathering.feed(chunk)
        return chunk

    async def get_final_completion(self) -> Whole:
        """Wait for the rest; the whole reply, as if it had not been streamed.

        Raises:
            RequestCancelled: the stream was closed before its end.
        """
        async for _ in self:
            pass
        return self._gathering.completion()

    async def close(self) -> None:
        """No more chunks come; what is still running on the server ends."""
        held, self._held, self._events = self._held, None, None
        if held is not None:
            await held.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
