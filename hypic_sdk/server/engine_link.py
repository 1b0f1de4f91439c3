"""A worker in another process as the text wing sees one: `WorkerPort` over a channel.

One thread receives; callers on any thread send.  Every accepted request gets its last event, also
when the process dies.  One that nobody has heard of yet is then sent to the next process: alone, if
it was in the batch (design 11), and only within a few seconds, so that its caller hears in time.
Nobody else waits long for such a suspect.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, final

from hypic_sdk.errors import (
    HypicError,
    RequestCancelled,
    RequestError,
    WorkerError,
    WorkerLost,
    from_payload,
)
from hypic_sdk.prompt.segment import PromptPart
from hypic_sdk.server.suspects import OpenRequest, Suspects
from hypic_sdk.transport.channel import MessageSender
from hypic_sdk.transport.codec import Message
from hypic_sdk.transport.control import (
    Answer,
    Ask,
    CancelRequest,
    EngineFailed,
    EngineReady,
    FinishRequest,
    PeerHere,
    PeerLost,
    Question,
    RequestsBegun,
)
from hypic_sdk.transport.events import Event, events_until_last, failed, is_last
from hypic_sdk.transport.messages import EngineRequest, TokenEvent, WarmEvent, WarmRequest

logger = logging.getLogger(__name__)

RETRY_S = 8.0  # from the death of a process until all that it had is well on its way, or ended
ALONE_S = 1.0  # that others wait for a suspect that runs alone
SUSPECT_WAIT_S = 3.0  # that one which is asked for again waits for the others before it joins them
ANSWER_TIMEOUT_S = 30.0  # a question is answered between two steps, each well under a second


@final
class EngineLink:
    """Requests to whichever engine process is there now; the supervisor attaches it."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        suspects: Suspects | None = None,
        waits: bool = True,
        retry_s: float = RETRY_S,
    ) -> None:
        """
        Args:
            retry_s: how long after the death of a process what it had may wait to be tried again.
            suspects: of all engines of a fleet; none: of this one.
            waits: keep for the next process what nobody has heard of; false: it ends with
                WorkerLost, and whoever sent it gives it to another engine.
        """
        self._waits = waits
        # a stream that is collected cancels, and collection may come inside of any block
        self._lock = threading.RLock()
        self._channel: MessageSender | None = None
        self._num_attached = 0
        self._clock = clock
        self._suspects = suspects or Suspects(clock)
        self._requests: dict[str, OpenRequest] = {}
        self._held: list[OpenRequest] = []  # of these, the ones that wait to be sent, in order
        self._trial: OpenRequest | None = None  # the suspect that was sent last
        self._retry_s = retry_s
        self._lost: list[OpenRequest] = []  # that a process died with, and that had not spoken
        self._asked: dict[int, Future[Any]] = {}
        self._ask_ids = itertools.count(1)

    @property
    def num_in_flight(self) -> int:
        """Requests that have not had their last event."""
        return len(self._requests)

    def is_ready(self) -> bool:
        """Whether a process takes requests now; never waits."""
        return self._channel is not None

    def generation(self) -> int:
        """How many processes there were so far: another number is another, empty store."""
        return self._num_attached

    # -- the supervisor's side

    def attach(self, channel: MessageSender) -> None:
        """A process is ready at the other end; what waits for one is sent."""
        with self._lock:
            self._channel = channel
            self._num_attached += 1
            self._send_held()

    def lose_process(self, error: WorkerLost) -> None:
        """The process is gone: nothing more is sent to it, and what it had ends or waits."""
        ended: list[tuple[OpenRequest, HypicError]] = []
        with self._lock:
            self._channel = self._trial = None
            asked, self._asked = self._asked, {}
            sent = [one for one in self._requests.values() if one.is_sent]
            self._suspects.note_death(sent)
            for one in sent:
                if one.is_given_up:
                    del self._requests[one.message.request_id]
                    continue
                verdict = self._suspects.verdict(one, error, waits=self._waits)
                if verdict is None:
                    self._held.append(one)
                else:
                    del self._requests[one.message.request_id]
                    ended.append((one, verdict))
            for one in self._held:
                if one.deadline_s is None:
                    one.deadline_s = self._clock() + self._retry_s
                    self._lost.append(one)
            if not self._waits:
                ended += [(one, error) for one in self._held]
                for one in self._held:
                    del self._requests[one.message.request_id]
                self._held = []
        self._tell_all(ended)
        for future in asked.values():
            future.set_exception(error)

    def lose_all(self, error: HypicError) -> None:
        """There will be no process: all that is open ends with `error`."""
        with self._lock:
            self._channel = self._trial = None
            requests, self._requests, self._held = self._requests, {}, []
            asked, self._asked = self._asked, {}
        self._tell_all([(one, error) for one in requests.values() if not one.is_given_up])
        for future in asked.values():
            future.set_exception(error)

    def tick(self) -> None:
        """Now and then: send what may go, end what would be answered too late."""
        ended: list[tuple[OpenRequest, HypicError]] = []
        with self._lock:
            self._lost = [one for one in self._lost if self._is_awaited(one)]
            for one in [*self._lost, *self._held]:
                if not one.is_given_up and self._takes_too_long(one):
                    self._give_up(one)
                    ended.append((one, _too_late()))
            self._send_held()
        self._tell_all(ended)

    def _is_awaited(self, one: OpenRequest) -> bool:
        is_open = self._requests.get(one.message.request_id) is one
        return is_open and not one.has_spoken and not one.is_given_up

    def _takes_too_long(self, one: OpenRequest) -> bool:
        """Whether one that has not spoken takes too long: for its caller, or for others."""
        now_s = self._clock()
        if one.deadline_s is None:
            return one.is_suspect and now_s - one.held_s > self._retry_s
        others = (other for other in self._held if not other.is_suspect)
        is_in_the_way = one is self._trial and any(now_s - o.held_s > ALONE_S for o in others)
        return now_s > one.deadline_s or is_in_the_way

    def _give_up(self, one: OpenRequest) -> None:
        one.is_given_up = True
        if one.is_sent:
            self._sent(CancelRequest(one.message.request_id))
        else:
            self._held.remove(one)
            del self._requests[one.message.request_id]

    def _send_held(self) -> None:
        """Send what may go, under the lock.

        Whatever is no suspect goes at once; while a suspect runs that has not spoken yet, it waits
        for that, at most `ALONE_S`.  Suspects go one by one, with nothing else in flight.  One that
        its caller asked for again may find no such moment: then it goes beside the others.
        """
        if self._channel is None:
            return
        for one in [one for one in self._held if not one.is_suspect]:
            if self._may_join(one):
                self._send(one)
        if self._trial is not None and not self._trial.has_spoken:
            return
        is_idle = not any(one.is_sent for one in self._requests.values())
        for one in [one for one in self._held if one.is_suspect]:
            waited_s = self._clock() - one.held_s
            if is_idle or (one.deadline_s is None and waited_s > SUSPECT_WAIT_S):
                if self._send(one):
                    self._trial = one
                return

    def _may_join(self, one: OpenRequest) -> bool:
        """Whether one that is no suspect may run beside the suspect that runs, if any does."""
        trial = self._trial
        if trial is None or trial.has_spoken:
            return True
        # asked for again by its caller: it is not given up, however long it takes
        return trial.deadline_s is None and self._clock() - one.held_s > ALONE_S

    def _send(self, one: OpenRequest) -> bool:
        if not self._sent(one.message):
            return False
        one.is_sent = True
        self._held.remove(one)
        return True

    def _tell_all(self, ended: Sequence[tuple[OpenRequest, HypicError]]) -> None:
        for one, error in ended:
            is_warm = isinstance(one.message, WarmRequest)
            self._tell(one.listener, failed(one.message.request_id, error, is_warm=is_warm))

    def take(self, message: Message) -> None:
        """Hand on what the process said (events and answers)."""
        if isinstance(message, TokenEvent | WarmEvent):
            self._take_event(message)
        elif isinstance(message, Answer):
            self._take_answer(message)
        elif isinstance(message, RequestsBegun):
            self._take_begun(message)
        else:
            assert isinstance(message, EngineReady | EngineFailed), "engines send no requests"
            logger.error("the engine said %s a second time", type(message).__name__)

    def _take_event(self, event: Event) -> None:
        with self._lock:
            known = self._requests.get(event.request_id)
            if known is not None:
                known.has_spoken = True
                if is_last(event):
                    self._end(known, is_well=event.error is None)
                elif known is self._trial and self._held:
                    self._send_held()
        if known is not None and not known.is_given_up:
            self._tell(known.listener, event)

    def _end(self, one: OpenRequest, *, is_well: bool) -> None:
        """A request has its last event; under the lock."""
        del self._requests[one.message.request_id]
        if is_well:
            self._suspects.clear(one.message)
        if self._trial is one:
            self._trial = None
        if self._held:
            self._send_held()

    def _take_begun(self, begun: RequestsBegun) -> None:
        with self._lock:
            for request_id in begun.request_ids:
                if request_id in self._requests:
                    self._requests[request_id].has_begun = True

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
        """Begin a request; without a process, or as one that ends engines, it ends at once."""
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        listener = on_event or events.put
        one = OpenRequest(message, listener, self._clock())
        with self._lock:
            if message.request_id in self._requests:
                raise RequestError(
                    "a request of that id is in flight", request_id=message.request_id
                )
            error = self._taken(one)
        if error is not None:
            self._tell_all([(one, error)])
        return events_until_last(events)

    def _taken(self, one: OpenRequest) -> HypicError | None:
        """Send the request or hold it, under the lock; or say why not."""
        if self._channel is None:
            return WorkerLost("the engine is starting; try again")
        rejection = self._suspects.rejection(one.message)
        if rejection is not None:
            return rejection
        one.is_suspect = self._suspects.known(one.message)
        one.num_lost = int(not self._waits and self._suspects.was_lost(one.message))
        self._requests[one.message.request_id] = one
        self._held.append(one)
        self._send_held()
        return None

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
            one = self._requests.get(request_id)
            if one is None:
                return
            if one.is_sent:
                self._sent(CancelRequest(request_id))
                return
            self._held.remove(one)
            self._end(one, is_well=False)
        self._tell_all([(one, RequestCancelled("the request was cancelled"))])

    def finish(self, request_id: str, reply_index: int = 0) -> None:
        """Ask for the good end of one reply."""
        with self._lock:
            if request_id in self._requests:
                self._sent(FinishRequest(request_id, reply_index))

    def tell_of_peer(self, message: PeerHere | PeerLost) -> None:
        """Another worker came, or is gone."""
        with self._lock:
            self._sent(message)

    def probe(self, parts: Sequence[PromptPart], namespace: str) -> Sequence[bool]:
        """Which entries are held; none while no process is there."""
        try:
            held: Sequence[bool] = self.ask(Question.PROBE, parts, namespace)
        except WorkerLost:
            return [False] * len(parts)
        return held

    def delete(self, parts: Sequence[PromptPart], namespace: str) -> None:
        """Drop entries.  Without a process there are none."""
        try:
            self.ask(Question.DELETE, parts, namespace)
        except WorkerLost:
            logger.info("nothing to delete: no engine holds entries")

    def usage(self) -> dict[str, Any]:
        """Bytes of the store by state.  Raises WorkerLost while no process is there."""
        usage: dict[str, Any] = self.ask(Question.USAGE)
        return usage

    def ask(
        self,
        question: Question,
        parts: Sequence[PromptPart] = (),
        namespace: str = "",
        number: int = 0,
    ) -> Any:
        """Send a question and wait for its answer; never on an event loop."""
        future: Future[Any] = Future()
        ask_id = next(self._ask_ids)
        with self._lock:
            if not self._sent(Ask(ask_id, question, tuple(parts), namespace, number)):
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


def _too_late() -> WorkerLost:
    return WorkerLost("the engine ended, and the request could not be tried again soon: ask again")
