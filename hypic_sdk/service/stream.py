"""A request on its way, for callers that wait on a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar, final

from hypic_sdk.errors import WorkerLost
from hypic_sdk.service.growing_reply import GrowingReply
from hypic_sdk.service.reply import ReplyDelta
from hypic_sdk.service.worker_port import WorkerPort
from hypic_sdk.transport.messages import TokenEvent


@final
class ReplyStream:
    """The deltas of one request.  Submitted when made; closing it early cancels the request.

    Iterating raises the error that ended the request.
    """

    def __init__(self, reply: GrowingReply, worker: WorkerPort) -> None:
        self.reply = reply
        self._worker = worker
        self._ready: deque[ReplyDelta] = deque()
        self._is_closed = False
        self._events = worker.submit(reply.prepared.message)

    def __iter__(self) -> Iterator[ReplyDelta]:
        return self

    def __next__(self) -> ReplyDelta:
        while not self._ready and not self._is_closed:
            self._ready.extend(self._take(self._next_event()))
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def _next_event(self) -> TokenEvent:
        event = next(self._events, None)
        if event is None:
            self._is_closed = True
            request_id = self.reply.prepared.request_id
            raise WorkerLost("the worker's events ended early", request_id=request_id)
        assert isinstance(event, TokenEvent), "a generation has token events"
        return event

    def _take(self, event: TokenEvent) -> list[ReplyDelta]:
        try:
            deltas = self.reply.feed(event)
        finally:
            self._is_closed = self.reply.is_over
        for index in self.reply.to_finish():
            self._worker.finish(self.reply.prepared.request_id, index)
        return deltas

    def drain(self) -> GrowingReply:
        """Wait for the rest; raises the error that ended the request."""
        try:
            for _ in self:
                pass  # the reply itself keeps what was said
        except BaseException:
            # an interrupt too: nobody would read the rest
            self.close()
            raise
        return self.reply

    def close(self) -> None:
        """Cancel the request unless it is over; no more deltas come."""
        self._ready.clear()
        if not self._is_closed:
            self._is_closed = True
            self._worker.cancel(self.reply.prepared.request_id)

    def __del__(self) -> None:
        # a stream that was dropped half read must not run on; not set if `__init__` failed
        if hasattr(self, "_is_closed"):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


Chunk = TypeVar("Chunk")
Whole = TypeVar("Whole")


@final
class ChunkStream(Generic[Chunk, Whole]):
    """A reply in chunks of the wire's shape; closing it early cancels the request."""

    def __init__(
        self,
        stream: ReplyStream,
        chunks: Callable[[ReplyDelta], Sequence[Chunk]],
        whole: Callable[[GrowingReply], Whole],
    ) -> None:
        """
        Args:
            chunks: makes the chunks of the next delta.
            whole: makes the whole reply of one that is over.
        """
        self._stream = stream
        self._chunks = chunks
        self._whole = whole
        self._ready: deque[Chunk] = deque()
        self._is_closed = False

    @property
    def request_id(self) -> str:
        """The id by which logs know this request."""
        return self._stream.reply.prepared.request_id

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        while not self._is_closed and not self._ready:
            self._ready.extend(self._chunks(next(self._stream)))
        if self._is_closed:
            raise StopIteration
        return self._ready.popleft()

    def get_final_completion(self) -> Whole:
        """Wait for the rest; the whole reply, as if it had not been streamed."""
        return self._whole(self._stream.drain())

    def close(self) -> None:
        """Cancel the request unless it is over; no more chunks come."""
        self._is_closed = True
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
