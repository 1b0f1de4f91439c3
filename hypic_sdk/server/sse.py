"""Server-sent events: chunks as they come, a comment when it is silent for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self, TypeVar, final

from aiohttp import web

DONE = "[DONE]"

Item = TypeVar("Item")


@final
class EventWriter:
    """One stream to one caller.  Headers go out with `begin`, so an error before is told as one."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                # proxies that gather a reply before they pass it on are asked not to
                "X-Accel-Buffering": "no",
            }
        )

    async def begin(self) -> None:
        """Send the status and headers."""
        await self.response.prepare(self._request)

    async def send(self, *data: str, event: str | None = None) -> None:
        """Send events; `data` has no line break, as JSON written on one line has none."""
        name = "" if event is None else f"event: {event}\n"
        await self.response.write("".join(f"{name}data: {one}\n\n" for one in data).encode())

    async def keep_alive(self) -> None:
        """Send a comment, which clients skip."""
        await self.response.write(b": still here\n\n")

    async def end(self) -> web.StreamResponse:
        """No more events come."""
        await self.response.write_eof()
        return self.response


@final
class Patient(AsyncIterator[Item | None]):
    """The items of an iterator, and none whenever it is silent for a while.

    The silence does not disturb the iterator: what it waits for is waited for further.
    """

    def __init__(self, items: AsyncIterator[Item], silence_s: float) -> None:
        self._items = items
        self._silence_s = silence_s
        self._next: asyncio.Task[Item] | None = None

    async def __anext__(self) -> Item | None:
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._items))
        done, _ = await asyncio.wait({self._next}, timeout=self._silence_s)
        if not done:
            return None
        task, self._next = self._next, None
        return task.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait({self._next})
