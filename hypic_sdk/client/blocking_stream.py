"""A streamed reply for callers that wait."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar, final

from pydantic import BaseModel

from hypic_sdk.client.async_stream import AsyncChunkStream
from hypic_sdk.client.loop_thread import LoopThread

Chunk = TypeVar("Chunk", bound=BaseModel)
Whole = TypeVar("Whole")


@final
class ChunkStream(Generic[Chunk, Whole]):
    """Chunks as they come; closing it early, also by leaving its block, cancels the request."""

    def __init__(self, inner: AsyncChunkStream[Chunk, Whole], loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def open(self) -> Self:
        """Send the request; raises whatever is wrong with it."""
        self._loop.run(self._inner.open())
        return self

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        chunk = self._loop.run(self._next())
        if chunk is None:
            raise StopIteration
        return chunk

    async def _next(self) -> Chunk | None:
        return await anext(self._inner, None)

    def get_final_completion(self) -> Whole:
        """Wait for the rest; the whole reply, as if it had not been streamed."""
        return self._loop.run(self._inner.get_final_completion())

    def close(self) -> None:
        """No more chunks come; what is still running on the server ends."""
        self._loop.run(self._inner.close())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
