"""A request on its way, for callers on an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import final

from hypic_sdk.errors import HypicError
from hypic_sdk.service.growing_reply import GrowingReply
from hypic_sdk.service.reply import ReplyDelta
from hypic_sdk.service.worker_port import Event, WorkerPort
from hypic_sdk.transport.messages import FinishReason, TokenEvent


@final
class AsyncReplyStream:
    """The deltas of one request, in the order and with the errors of `ReplyStream`.

    Made and iterated on one event loop.  `submit` may run on any thread, as it packs a message that
    may be large; events come back by way of the loop, so nothing here waits on it.
    """

    def __init__(self, reply: GrowingReply, worker: WorkerPort) -> None:
        self.reply = reply
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[TokenEvent] = asyncio.Queue()
        self._ready: deque[ReplyDelta] = deque()
        self._lock = threading.Lock()
        self._is_submitted = False
        self._is_closed = False

    def submit(self) -> None:
        """Hand the request to the worker, unless the stream was closed before.

        Raises:
            HypicError: the worker takes nothing.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_submitted = True
            self._worker.submit(self.reply.prepared.message, self._take)

    def _take(self, event: Event) -> None:
        """Called by the worker, on its thread."""
        assert isinstance(event, TokenEvent), "a generation has token events"
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:
            # the loop was closed under a request in flight: nobody is left to be told
            self._worker.cancel(event.request_id)

    def __aiter__(self) -> AsyncIterator[ReplyDelta]:
        return self

    async def __anext__(self) -> ReplyDelta:
        while not self._is_closed and not self._ready and not self.reply.is_over:
            self._ready.extend(self.reply.feed(await self._events.get()))
            for index in self.reply.to_finish():
                self._worker.finish(self.reply.prepared.request_id, index)
        if self._is_closed or not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    async def drain(self) -> GrowingReply:
        """Wait for the rest; raises the error that ended the request."""
        async for _ in self:
            pass  # the reply itself keeps what was said
        return self.reply

    def fail(self, error: HypicError) -> None:
        """End the reply with an error, as if the worker had told of it, and cancel the request."""
        request_id = self.reply.prepared.request_id
        payload = {**error.to_payload(), "request_id": request_id}
        self._events.put_nowait(
            TokenEvent(request_id, finish_reason=FinishReason.ERROR, error=payload)
        )
        self._worker.cancel(request_id)

    def close(self) -> None:
        """Cancel the request unless it is over; no more deltas come."""
        with self._lock:
            was_open, self._is_closed = not self._is_closed, True
        if was_open and self._is_submitted and not self.reply.is_over:
            self._worker.cancel(self.reply.prepared.request_id)
