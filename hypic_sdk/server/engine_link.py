"""A worker in another process as the text wing sees one: `WorkerPort` over a channel.

One thread receives; callers on any thread send.  Every accepted request gets its last event, also
when the process dies: `lose_all` gives it.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, final

from hypic_sdk.errors import HypicError, RequestError, WorkerError, WorkerLost, from_payload
from hypic_sdk.prompt.segment import PromptPart
from hypic_sdk.transport.channel import Channel
from hypic_sdk.transport.codec import Message
from hypic_sdk.transport.control import (
    Answer,
    Ask,
    CancelRequest,
    EngineFailed,
    EngineReady,
    Question,
)
from hypic_sdk.transport.events import Event, failed, is_last
from hypic_sdk.transport.messages import EngineRequest, TokenEvent, WarmEvent, WarmRequest

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 30.0  # a question is answered between two steps, each well under a second


def events_until_last(events: queue.SimpleQueue[Event]) -> Iterator[Event]:
    """Events as they come; ends after the last one."""
    while True:
        event = events.get()
        yield event
        if is_last(event):
            return


@final
class EngineLink:
    """Requests to whichever engine process is there now; the supervisor attaches it."""

    def __init__(self) -> None:
        # a stream that is collected cancels, and collection may come inside of any block
        self._lock = threading.RLock()
        self._channel: Channel | None = None
        self._requests: dict[str, tuple[EngineRequest | WarmRequest, Callable[[Event], None]]] = {}
        self._asked: dict[int, Future[Any]] = {}
        self._ask_ids = itertools.count(1)

    @property
    def num_in_flight(self) -> int:
        """Requests that have not had their last event."""
        return len(self._requests)

    def is_ready(self) -> bool:
        """Whether a process takes requests now; never waits."""
        return self._channel is not None

    # -- the supervisor's side

    def attach(self, channel: Channel) -> None:
        """A process is ready at the other end."""
        with self._lock:
            self._channel = channel

    def lose_all(self, error: HypicError) -> None:
        """The process is gone: nothing more is sent to it, all that is open ends with `error`."""
        with self._lock:
            self._channel = None
            requests, self._requests = self._requests, {}
            asked, self._asked = self._asked, {}
        for message, listener in requests.values():
            self._tell(
                listener,
                failed(message.request_id, error, is_warm=isinstance(message, WarmRequest)),
            )
        for future in asked.values():
            future.set_exception(error)

    def take(self, message: Message) -> None:
        """Hand on what the process said (events and answers)."""
        if isinstance(message, TokenEvent | WarmEvent):
            self._take_event(message)
        elif isinstance(message, Answer):
            self._take_answer(message)
        else:
            assert isinstance(message, EngineReady | EngineFailed), "engines send no requests"
            logger.error("the engine said %s a second time", type(message).__name__)

    def _take_event(self, event: Event) -> None:
        with self._lock:
            known = self._requests.get(event.request_id)
            if known is not None and is_last(event):
                del self._requests[event.request_id]
        if known is not None:
            self._tell(known[1], event)

    def _take_answer(self, answer: Answer) -> None:
        with self._lock:
            future = self._asked.pop(answer.ask_id, None)
        if future is None:
            return  # asked too long ago
        if answer.error is not None:
            future.set_exception(from_payload(answer.error))
        else:
            future.set_result(answer.value)

    def _tell(self, listener: Callable[[Event], None], event: Event) -> None:
        try:
            listener(event)
        except Exception:
            logger.exception("a listener failed request=%s", event.request_id)

    # -- WorkerPort

    def submit(
        self,
        message: EngineRequest | WarmRequest,
        on_event: Callable[[Event], None] | None = None,
    ) -> Iterator[Event]:
        """Begin a request; without a process it ends at once with WorkerLost."""
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        listener = on_event or events.put
        with self._lock:
            if message.request_id in self._requests:
                raise RequestError(
                    "a request of that id is in flight", request_id=message.request_id
                )
            if self._sent(message):
                self._requests[message.request_id] = (message, listener)
                return events_until_last(events)
        lost = WorkerLost("the engine is starting; try again")
        listener(failed(message.request_id, lost, is_warm=isinstance(message, WarmRequest)))
        return events_until_last(events)

    def _sent(self, message: Message) -> bool:
        """Whether a process took the message; to be called under the lock."""
        if self._channel is None:
            return False
        try:
            self._channel.send(message)
        except WorkerLost:
            return False  # it is gone; the supervisor is about to say so
        return True

    def cancel(self, request_id: str) -> None:
        """Ask for the end of a request."""
        with self._lock:
            if request_id in self._requests:
                self._sent(CancelRequest(request_id))

    def probe(self, parts: Sequence[PromptPart], namespace: str) -> Sequence[bool]:
        """Which entries are held; none while no process is there."""
        try:
            held: Sequence[bool] = self._ask(Question.PROBE, tuple(parts), namespace)
        except WorkerLost:
            return [False] * len(parts)
        return held

    def delete(self, parts: Sequence[PromptPart], namespace: str) -> None:
        """Drop entries.  Without a process there are none."""
        try:
            self._ask(Question.DELETE, tuple(parts), namespace)
        except WorkerLost:
            logger.info("nothing to delete: no engine holds entries")

    def usage(self) -> dict[str, Any]:
        """Bytes of the store by state.  Raises WorkerLost while no process is there."""
        usage: dict[str, Any] = self._ask(Question.USAGE)
        return usage

    def _ask(
        self, question: Question, parts: tuple[PromptPart, ...] = (), namespace: str = ""
    ) -> Any:
        """Send a question and wait for its answer; never on an event loop."""
        future: Future[Any] = Future()
        ask_id = next(self._ask_ids)
        with self._lock:
            if not self._sent(Ask(ask_id, question, parts, namespace)):
                raise WorkerLost("the engine is starting; try again")
            self._asked[ask_id] = future
        try:
            return future.result(ANSWER_TIMEOUT_S)
        except FutureTimeout:
            with self._lock:
                self._asked.pop(ask_id, None)
            raise WorkerError(
                f"the engine did not answer {question.value} within {ANSWER_TIMEOUT_S:g} s"
            ) from None
