"""A warm job of a server, followed from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import final

from hypic_sdk.client.connection import Connection
from hypic_sdk.client.protocol import get, parsed, post
from hypic_sdk.errors import ConnectionFailed, DeadlineExceeded
from hypic_sdk.wire.segments import WarmJobObject

ProgressListener = Callable[[WarmJobObject], None]

_POLL_S = 0.5


@final
class AsyncWarmJob:
    """Runs on the server from when it was made; forgetting it here does not end it.

    A job that fails is told by its `status` and `errors`, also by `wait`: what was warmed stays.
    """

    def __init__(self, connection: Connection, job: WarmJobObject) -> None:
        self.id = job.id
        self.last = job  # as it stood when it was last heard of
        self._connection = connection

    @property
    def status(self) -> str:
        """running, succeeded, failed or cancelled, as last heard of."""
        return self.last.status

    async def snapshot(self) -> WarmJobObject:
        """The job as it stands now."""
        path = f"/v1/segments/warm/{self.id}"
        self.last = parsed(WarmJobObject, await self._connection.send(get(path)))
        return self.last

    async def events(self) -> AsyncGenerator[WarmJobObject, None]:
        """The job whenever it has changed, until it is over."""
        async with self._connection.events(get(f"/v1/segments/warm/{self.id}/events")) as events:
            async for event in events:
                self.last = parsed(WarmJobObject, event.data.encode())
                yield self.last
                if self.last.status != "running":
                    return

    async def wait(
        self, timeout_s: float | None = None, on_progress: ProgressListener | None = None
    ) -> WarmJobObject:
        """Wait for the end of the job.

        Args:
            on_progress: called with the job as it stands, whenever it has changed and at the end.
        Raises:
            DeadlineExceeded: not over after `timeout_s`; the job goes on.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._follow(on_progress or (lambda job: None))
        except TimeoutError:
            raise DeadlineExceeded("the warm job is not over yet", request_id=self.id) from None

    async def _follow(self, tell: ProgressListener) -> WarmJobObject:
        while True:
            try:
                async with aclosing(self.events()) as events:
                    async for job in events:
                        tell(job)
                if self.last.status != "running":
                    return self.last
            except ConnectionFailed:
                # the stream broke; the job itself may be well
                tell(await self.snapshot())
            await asyncio.sleep(_POLL_S)

    async def cancel(self) -> WarmJobObject:
        """Ask for its end; what is warm by then stays.  A job that is over is left as it is."""
        call = post(f"/v1/segments/warm/{self.id}/cancel", {})
        self.last = parsed(WarmJobObject, await self._connection.send(call))
        return self.last
