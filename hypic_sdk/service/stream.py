"""A request on its way: what was asked, and its deltas as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar, final

from hypic_sdk.errors import WorkerLost
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service.reply import FinishText, ReplyAssembler, ReplyDelta
from hypic_sdk.service.worker_port import WorkerPort
from hypic_sdk.transport.messages import EngineReport, EngineRequest, TokenEvent, TokenLogprobs


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A checked request: the message to the engine, and what the reply is made with."""

    message: EngineRequest
    stops: tuple[str, ...]
    num_logprobs: int | None
    report_level: str
    created_at: int
    include_usage: bool

    @property
    def request_id(self) -> str:
        """The id by which logs, events and the reply know this request."""
        return self.message.request_id

    def assembler(self, tokenizer: PromptTokenizer) -> ReplyAssembler:
        """What turns this request's events into text."""
        return ReplyAssembler(tokenizer, self.stops)


@final
class ReplyStream:
    """The deltas of one request.  Submitted when made; closing it early cancels the request.

    Iterating raises the error that ended the request.
    """

    def __init__(
        self,
        prepared: PreparedRequest,
        worker: WorkerPort,
        tokenizer: PromptTokenizer,
        on_end: Callable[[PreparedRequest, ReplyAssembler], None] = lambda prepared, reply: None,
    ) -> None:
        """`on_end` is called once when the reply is whole, not when it fails or is closed."""
        self.prepared = prepared
        self.finish_reason: FinishText | None = None
        self.report: EngineReport | None = None
        self.logprobs: list[TokenLogprobs] = []
        self._worker = worker
        self._reply = prepared.assembler(tokenizer)
        self._on_end = on_end
        self._is_cancelled = False
        self._is_closed = False
        self._events = worker.submit(prepared.message)

    @property
    def text(self) -> str:
        """All text so far."""
        return self._reply.text

    @property
    def num_tokens(self) -> int:
        """Tokens of the reply so far."""
        return len(self._reply.token_ids)

    def __iter__(self) -> Iterator[ReplyDelta]:
        return self

    def __next__(self) -> ReplyDelta:
        while not self._is_closed:
            delta = self._take(self._next_event())
            if delta is not None:
                return delta
        raise StopIteration

    def _next_event(self) -> TokenEvent:
        event = next(self._events, None)
        if event is None:
            self._is_closed = True
            raise WorkerLost("the worker's events ended early", request_id=self.prepared.request_id)
        assert isinstance(event, TokenEvent), "a generation has token events"
        return event

    def _take(self, event: TokenEvent) -> ReplyDelta | None:
        try:
            delta = self._reply.feed(event)
        finally:
            self._is_closed = self._reply.is_over
        if self._reply.wants_cancel and not self._is_cancelled:
            # its last event still comes, with the report
            self._is_cancelled = True
            self._worker.cancel(self.prepared.request_id)
        if delta is None:
            return None
        self.logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason, self.report = delta.finish_reason, delta.report
            self._on_end(self.prepared, self._reply)
        return delta

    def close(self) -> None:
        """Cancel the request unless it is over; no more deltas come."""
        if not self._is_closed:
            self._is_closed = True
            self._worker.cancel(self.prepared.request_id)

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
        self, stream: ReplyStream, chunks: Iterator[Chunk], whole: Callable[[ReplyStream], Whole]
    ) -> None:
        """`whole`: makes the whole reply of a stream, waiting for the rest of it."""
        self._stream = stream
        self._chunks = chunks
        self._whole = whole
        self._is_closed = False

    @property
    def request_id(self) -> str:
        """The id by which logs know this request."""
        return self._stream.prepared.request_id

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        if self._is_closed:
            raise StopIteration
        return next(self._chunks)

    def get_final_completion(self) -> Whole:
        """Wait for the rest; the whole reply, as if it had not been streamed."""
        return self._whole(self._stream)

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
