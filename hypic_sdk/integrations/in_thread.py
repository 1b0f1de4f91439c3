"""Streams of a client that waits, read from an event loop; giving up ends the request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any, final


@final
class _Held:
    """A stream that a thread opens; once it is given up it is closed, whenever it comes."""

    def __init__(self, open_stream: Callable[[], Any]) -> None:
        self._open_stream = open_stream
        self._is_given_up = threading.Event()
        self._stream: Any = None

    def open(self) -> Any:
        """The stream; none if nobody waits for it any more."""
        self._stream = self._open_stream()
        if self._is_given_up.is_set():
            self._stream.close()
            return None
        return self._stream

    def close(self) -> None:
        """Also while a thread reads it: that is what ends the request."""
        self._is_given_up.set()
        if self._stream is not None:
            self._stream.close()


async def whole_in_thread(open_stream: Callable[[], Any]) -> Any:
    """The whole reply of a stream.

    A thread that waits can not be cancelled, but the stream that it reads can be closed.
    """
    held = _Held(open_stream)

    def read() -> Any:
        stream = held.open()
        return None if stream is None else stream.get_final_completion()

    try:
        return await asyncio.to_thread(read)
    finally:
        held.close()


async def chunks_in_thread(open_stream: Callable[[], Any]) -> AsyncGenerator[Any, None]:
    """The chunks of a stream; closing the generator closes it."""
    held = _Held(open_stream)
    try:
        stream = await asyncio.to_thread(held.open)
        while (chunk := await asyncio.to_thread(next, stream, None)) is not None:
            yield chunk
    finally:
        held.close()
