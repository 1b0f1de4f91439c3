"""Several workers behind one port: chooses who answers, and hints who holds or makes what.

The worker that answers stays the authority: it looks up, fetches or makes what it needs, and a
wrong hint costs a computation of its own, never an answer.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

from hypic_sdk.errors import HypicError, RequestError, WorkerLost
from hypic_sdk.prompt.segment import PromptPart, SegmentId
from hypic_sdk.router.answers import joined_answer
from hypic_sdk.router.assignment import Assign, WorkerId, longest_first
from hypic_sdk.router.books import Books
from hypic_sdk.router.costs import CostModel
from hypic_sdk.router.dispatch import DispatchPlan
from hypic_sdk.router.in_flight import Dispatched, WorkerTally
from hypic_sdk.router.membership import Membership, WorkerState
from hypic_sdk.router.overdue import OverdueWatch
from hypic_sdk.router.placement_index import Place
from hypic_sdk.router.warm_split import WarmSplit
from hypic_sdk.transport.control import Alive, EntriesChanged, Question
from hypic_sdk.transport.events import Event, events_until_last, failed, is_last
from hypic_sdk.transport.messages import (
    EngineRequest,
    Placement,
    TokenEvent,
    WarmRequest,
)
from hypic_sdk.transport.worker_port import WorkerPort

logger = logging.getLogger(__name__)

READING = frozenset({Question.PROBE, Question.USAGE, Question.LOOK, Question.HOLDINGS})
"""Questions that change nothing: who does not answer now is left out."""


@final
class Router:
    """A `WorkerPort` over workers that come and go.  Safe to call from any thread."""

    def __init__(
        self,
        costs: CostModel | None = None,
        *,
        assign: Assign[SegmentId] = longest_first,
        members: Membership | None = None,
    ) -> None:
        self._lock = threading.RLock()
        members = Membership() if members is None else members  # an empty one is false
        self._books = Books(costs or CostModel(), assign, members)
        self._ports: dict[WorkerId, WorkerPort] = {}
        self._in_flight: dict[str, Dispatched] = {}
        self._splits: dict[str, WarmSplit] = {}
        self._watch = OverdueWatch(self._all_in_flight, self._end_overdue)

    # -- workers

    def join(self, worker: WorkerId, port: WorkerPort) -> None:
        """A worker is ready for work."""
        with self._lock:
            self._ports[worker] = port
            self._books.members.join(worker)
            self._books.members.ready(worker)

    def heard(self, worker: WorkerId, alive: Alive | None = None) -> None:
        """A worker gave a sign of life, perhaps with what it counts."""
        with self._lock:
            self._books.heard(worker, alive)

    def entries_changed(self, worker: WorkerId, changed: EntriesChanged) -> None:
        """A worker tells what it holds now, and what no more."""
        with self._lock:
            self._books.entries_changed(worker, changed)

    def tallies(self) -> dict[WorkerId, WorkerTally]:
        """What each worker did so far; those that are gone stay in the list."""
        with self._lock:
            return dict(self._books.tallies)

    def drain(self, worker: WorkerId) -> None:
        """Give a worker nothing new."""
        with self._lock:
            self._books.members.drain(worker)

    def leave(self, worker: WorkerId) -> None:
        """A worker is gone.  Its port has told, or tells, every request of its end."""
        with self._lock:
            self._ports.pop(worker, None)
            self._books.members.leave(worker)
            self._books.index.lose(worker)

    def ports(self) -> dict[WorkerId, WorkerPort]:
        """The workers that are here."""
        with self._lock:
            return dict(self._ports)

    def states(self) -> dict[WorkerId, WorkerState]:
        """Every worker as it stands."""
        with self._lock:
            return dict(self._books.members.states())

    # -- WorkerPort

    def submit(
        self,
        message: EngineRequest | WarmRequest,
        on_event: Callable[[Event], None] | None = None,
    ) -> Iterator[Event]:
        """Begin a request on the worker that answers it soonest; without one it ends at once."""
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        listener = on_event or events.put
        is_warm = isinstance(message, WarmRequest)
        try:
            if isinstance(message, WarmRequest):
                self._submit_warm(message, listener)
            else:
                self._submit_request(message, listener)
        except WorkerLost as error:
            listener(failed(message.request_id, error, is_warm=is_warm))
        return events_until_last(events)

    def _submit_request(self, message: EngineRequest, listener: Callable[[Event], None]) -> None:
        with self._lock:
            if message.request_id in self._in_flight:
                raise RequestError(
                    "a request of that id is in flight", request_id=message.request_id
                )
            plan = self.plan(message)
            known = Dispatched(message, listener, plan.combine, plan)
            self._in_flight[message.request_id] = known
            self._books.begin(known)
        self._watch.begin(known)
        self._send(known, replace(message, placements=placements_of(plan)))

    def _send(self, known: Dispatched, message: EngineRequest) -> None:
        """Hand a request to the worker that it was booked for."""
        plan = known.plan
        logger.info(
            "dispatched request=%s worker=%s cold=%d elsewhere=%d predicted_ms=%.0f",
            message.request_id,
            plan.combine,
            sum(map(len, plan.cold.values())),
            len(plan.hits),
            plan.predicted_ms,
        )
        with self._lock:
            port = self._ports.get(plan.combine)
        take = partial(self._take, known, known.num_tries)
        try:
            if port is None:
                raise WorkerLost(f"worker {plan.combine} is gone")
            port.submit(message, take)
        except WorkerLost as error:
            take(failed(message.request_id, error, is_warm=False))
        except BaseException:
            with self._lock:
                self._books.end(known, None)
                self._forget(known)
            raise
        if known.is_cancelled and port is not None:  # before there was anything to cancel
            port.cancel(message.request_id)

    def _send_again(self, known: Dispatched, lost: TokenEvent) -> None:
        """Another worker answers instead; without one, the request ends as lost.

        The time of the request runs on.
        """
        with self._lock:
            ends = known.is_cancelled or known.is_overdue()
            plan = None if ends else self._books.plan_again(known)
            known.num_tries += 1
            if plan is None:
                self._forget(known)
            else:
                known.plan, known.worker = plan, plan.combine
                self._books.begin(known)
        if plan is None:
            known.listener(known.overdue_event() if known.is_overdue() else lost)
            return
        try:
            self._send(known, known.timed())
        except HypicError as error:  # nobody else is there to be told
            known.listener(failed(known.message.request_id, error, is_warm=False))

    def plan(self, message: EngineRequest) -> DispatchPlan:
        """How a request would be dispatched now.  Raises WorkerLost: no worker is ready."""
        with self._lock:
            return self._books.plan(message)

    def _take(self, known: Dispatched, num_tries: int, event: Event) -> None:
        """Learn from an event of a request, and hand it on."""
        assert isinstance(event, TokenEvent), "a request has token events"
        with known.telling:
            with self._lock:
                if known.num_tries != num_tries:  # it went to another worker, or has ended
                    return
                goes_again = is_last(event) and known.may_go_again(event)
                self._books.spoke(known, event)
                known.has_spoken = not goes_again
                if is_last(event):
                    self._books.end(known, event)
                    if not goes_again:
                        self._forget(known)
            if goes_again:
                self._send_again(known, event)
            else:
                known.listener(known.in_its_terms(event))

    def _all_in_flight(self) -> list[Dispatched]:
        with self._lock:
            return list(self._in_flight.values())

    def _end_overdue(self, known: Dispatched) -> None:
        """Its time is over, and its worker does not say so: it may be stopped, or cut off."""
        event = known.overdue_event()
        assert isinstance(event, TokenEvent), "a request has token events"
        with known.telling:
            with self._lock:
                if self._in_flight.get(known.message.request_id) is not known:
                    return
                port = self._ports.get(known.worker)
                known.num_tries += 1  # nobody hears what its worker says later
                self._books.spoke(known, event)
                self._books.end(known, event)
                self._forget(known)
            logger.warning(
                "worker %s did not end a request in time request=%s",
                known.worker,
                known.message.request_id,
            )
            if port is not None:
                port.cancel(known.message.request_id)
            known.listener(event)

    def _forget(self, known: Dispatched) -> None:
        if self._in_flight.get(known.message.request_id) is known:
            del self._in_flight[known.message.request_id]

    def cancel(self, request_id: str) -> None:
        """Ask for the end of a request."""
        with self._lock:
            known = self._in_flight.get(request_id)
            if known is not None:
                known.is_cancelled = True
            split = self._splits.get(request_id)
        port = self._port_of(request_id)
        if port is not None:
            port.cancel(request_id)
        if split is not None:
            split.cancel()

    def finish(self, request_id: str, reply_index: int = 0) -> None:
        """End one reply of a request by STOP."""
        port = self._port_of(request_id)
        if port is not None:
            port.finish(request_id, reply_index)

    def _port_of(self, request_id: str) -> WorkerPort | None:
        with self._lock:
            known = self._in_flight.get(request_id)
            return None if known is None else self._ports.get(known.worker)

    def _submit_warm(self, message: WarmRequest, listener: Callable[[Event], None]) -> None:
        """Spread the segments of a warm request over the workers, longest first."""
        with self._lock:
            if message.request_id in self._splits:
                raise RequestError(
                    "a request of that id is in flight", request_id=message.request_id
                )
            work = self._books.begin_warm(message)
            ports = {worker: self._ports[worker] for worker in work}
            split = WarmSplit(message, work, ports, listener, self)
            self._splits[message.request_id] = split
        split.begin()

    # -- WarmWatcher

    def warmed(self, split: WarmSplit, worker: WorkerId, id_: SegmentId) -> None:
        """A segment of a warm request is there."""
        with self._lock:
            self._books.warmed(split.message, worker, id_)

    def share_ended(self, split: WarmSplit, worker: WorkerId, missing: Sequence[SegmentId]) -> None:
        """A worker makes nothing more of a warm request."""
        with self._lock:
            self._books.end_warm(split.message, worker, missing)

    def warm_ended(self, split: WarmSplit) -> None:
        """A warm request has ended."""
        with self._lock:
            self._splits.pop(split.request_id, None)

    # -- questions

    def probe(self, parts: Sequence[PromptPart], namespace: str) -> Sequence[bool]:
        """Whether each segment is held by anybody."""
        try:
            held: Sequence[bool] = self.ask(Question.PROBE, parts, namespace)
        except WorkerLost:
            return [False] * len(parts)
        return held

    def ask(
        self,
        question: Question,
        parts: Sequence[PromptPart] = (),
        namespace: str = "",
        number: int = 0,
    ) -> Any:
        """Ask every worker, and join their answers.

        Who is silent, or goes away meanwhile, is left out of a question that only reads; one that
        is to change something must reach everybody who is there.
        """
        is_reading = question in READING
        answers = []
        for worker, port in self._all_ports(only_ready=is_reading):
            try:
                answers.append(port.ask(question, parts, namespace, number))
            except WorkerLost:
                if not is_reading and self._is_here(worker, port):
                    raise
        if not answers:
            raise WorkerLost("no worker is ready; try again")
        if question is Question.CLEAR:
            with self._lock:
                self._books.index.clear(namespace)
        return joined_answer(question, answers)

    def delete(self, parts: Sequence[PromptPart], namespace: str) -> None:
        """Drop entries and chains on every worker."""
        with self._lock:
            self._books.index.delete(
                Place(namespace, part.segment_id) for part in parts if part.segment_id is not None
            )
        for _, port in self._all_ports():
            port.delete(parts, namespace)

    def _all_ports(self, *, only_ready: bool = False) -> list[tuple[WorkerId, WorkerPort]]:
        with self._lock:
            ready = self._books.members.loads_ms() if only_ready else {}
            ports = list(self._ports.items())
        return [one for one in ports if one[0] in ready] or ports

    def _is_here(self, worker: WorkerId, port: WorkerPort) -> bool:
        with self._lock:
            return self._ports.get(worker) is port


def placements_of(plan: DispatchPlan) -> tuple[Placement, ...]:
    """A plan's hints for the worker that answers: what to fetch, and from whom."""
    made = [
        Placement(id_, worker)
        for worker, ids in plan.cold.items()
        if worker != plan.combine
        for id_ in ids
    ]
    return (*made, *(Placement(id_, worker) for id_, worker in plan.hits.items()))
