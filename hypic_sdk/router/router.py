"""Several workers behind one port: chooses who answers, and hints who holds or makes what.

The worker that answers stays the authority: it looks up, fetches or makes what it needs, and a
wrong hint costs a computation of its own, never an answer.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

from hypic_sdk.errors import HypicError, RequestError, WorkerLost
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentId
from hypic_sdk.router.answers import joined_answer
from hypic_sdk.router.assignment import Assign, WorkerId, longest_first
from hypic_sdk.router.costs import CostModel
from hypic_sdk.router.dispatch import DispatchPlan, Segment, plan_dispatch
from hypic_sdk.router.in_flight import Dispatched, WorkerTally
from hypic_sdk.router.membership import Membership, WorkerState
from hypic_sdk.router.placement_index import Place, PlacementIndex
from hypic_sdk.router.warm_split import WarmSplit
from hypic_sdk.transport.control import Alive, EntriesChanged, Question
from hypic_sdk.transport.events import Event, events_until_last, failed, is_last
from hypic_sdk.transport.messages import (
    EngineRequest,
    Placement,
    SegmentStatus,
    TokenEvent,
    WarmRequest,
)
from hypic_sdk.transport.worker_port import WorkerPort

logger = logging.getLogger(__name__)

MAX_SESSIONS = 100_000
"""Sessions whose worker is remembered."""


READING = frozenset({Question.PROBE, Question.USAGE, Question.LOOK, Question.HOLDINGS})
"""Questions that change nothing: who does not answer now is left out."""


@dataclass(frozen=True, slots=True)
class _Session:
    """Where a session's chain lies, and how much of the next prompt it stands for."""

    worker: WorkerId
    live_tokens: int


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
        self._costs = costs or CostModel()
        self._assign = assign
        self._lock = threading.RLock()
        self._members = members or Membership()
        self._index = PlacementIndex()
        self._ports: dict[WorkerId, WorkerPort] = {}
        self._in_flight: dict[str, Dispatched] = {}
        self._tallies: dict[WorkerId, WorkerTally] = {}
        self._splits: dict[str, WarmSplit] = {}
        self._sessions: OrderedDict[tuple[str, str], _Session] = OrderedDict()

    # -- workers

    def join(self, worker: WorkerId, port: WorkerPort) -> None:
        """A worker is ready for work."""
        with self._lock:
            self._ports[worker] = port
            self._members.join(worker)
            self._members.ready(worker)

    def heard(self, worker: WorkerId, alive: Alive | None = None) -> None:
        """A worker gave a sign of life, perhaps with what it counts."""
        with self._lock:
            self._members.heard(worker)
            if alive is not None:
                self._tallies[worker] = self._tally(worker).heard(alive)

    def entries_changed(self, worker: WorkerId, changed: EntriesChanged) -> None:
        """A worker tells what it holds now, and what no more."""
        with self._lock:
            if worker not in self._ports:  # it is gone: what it held went with it
                return
            for name in changed.made:
                self._index.hold(Place(name.namespace, name.segment_id), worker)
            for name in changed.gone:
                self._index.drop(Place(name.namespace, name.segment_id), worker)

    def tallies(self) -> dict[WorkerId, WorkerTally]:
        """What each worker did so far; those that are gone stay in the list."""
        with self._lock:
            return dict(self._tallies)

    def _tally(self, worker: WorkerId) -> WorkerTally:
        return self._tallies.get(worker, WorkerTally())

    def drain(self, worker: WorkerId) -> None:
        """Give a worker nothing new."""
        with self._lock:
            self._members.drain(worker)

    def leave(self, worker: WorkerId) -> None:
        """A worker is gone.  Its port has told, or tells, every request of its end."""
        with self._lock:
            self._ports.pop(worker, None)
            self._members.leave(worker)
            self._index.lose(worker)

    def states(self) -> dict[WorkerId, WorkerState]:
        """Every worker as it stands."""
        with self._lock:
            return dict(self._members.states())

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
            self._begin(known)
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
                self._over(known)
            raise
        if known.is_cancelled and port is not None:  # before there was anything to cancel
            port.cancel(message.request_id)

    def _send_again(self, known: Dispatched, lost: TokenEvent) -> None:
        """Another worker answers instead, by itself: what killed one worker meets no third.

        The time of the request runs on.  Without another worker it ends.
        """
        with self._lock:
            loads_ms = self._members.loads_ms()
            loads_ms.pop(known.worker, None)
            if known.is_cancelled or not loads_ms:
                self._in_flight.pop(known.message.request_id, None)
                known.num_tries += 1
                loads_ms = {}
            else:
                worker = min(loads_ms, key=lambda worker: loads_ms[worker])
                segments = self._segments(known.message) if known.message.reuse else {}
                cold = tuple(i for i, one in segments.items() if worker not in one.holders)
                known.plan = DispatchPlan(worker, {worker: cold} if cold else {}, {}, 0.0)
                known.worker = worker
                known.num_tries += 1
                self._begin(known)
        if loads_ms:
            self._send(known, known.timed())
        else:
            known.listener(lost)

    def plan(self, message: EngineRequest) -> DispatchPlan:
        """How a request would be dispatched now.  Raises WorkerLost: no worker is ready."""
        with self._lock:
            loads_ms = self._members.loads_ms()
            if not loads_ms:
                raise WorkerLost("no worker is ready; try again")
            session = self._sessions.get((message.namespace, message.session_id or ""))
            segments = self._segments(message) if message.reuse else {}
            in_segments = sum(segment.num_tokens for segment in segments.values())
            return plan_dispatch(
                segments.values(),
                message.prompt.num_tokens - in_segments,
                loads_ms,
                self._costs,
                preferred=None if session is None else session.worker,
                chained_tokens=0 if session is None else session.live_tokens,
                assign=self._assign,
            )

    def _segments(self, message: EngineRequest) -> dict[SegmentId, Segment]:
        """The request's inner segments, each text once."""
        found = {}
        for part in message.prompt.parts:
            if part.role is Role.INNER and part.segment_id is not None:
                place = Place(message.namespace, part.segment_id)
                found[part.segment_id] = Segment(
                    part.segment_id,
                    len(part.token_ids),
                    self._index.holders(place),
                    self._index.maker(place),
                )
        return found

    def _begin(self, known: Dispatched) -> None:
        """Book a plan: who makes what, and what everybody has before it now."""
        message, plan = known.message, known.plan
        tally = self._tally(plan.combine)
        self._tallies[plan.combine] = replace(tally, num_dispatched=tally.num_dispatched + 1)
        tokens = {
            part.segment_id: len(part.token_ids)
            for part in message.prompt.parts
            if part.segment_id is not None
        }
        for worker, ids in plan.cold.items():
            cost_ms = sum(self._costs.cold(tokens[id_]) for id_ in ids)
            self._members.begin(worker, f"cold/{message.request_id}", cost_ms)
            for id_ in ids:
                self._index.begin(Place(message.namespace, id_), worker)
        live_tokens = message.prompt.num_tokens - sum(tokens.values())
        live_ms = self._costs.live(live_tokens)
        self._members.begin(plan.combine, f"answer/{message.request_id}", live_ms)
        if message.session_id is not None:
            session = (message.namespace, message.session_id)
            self._sessions[session] = _Session(plan.combine, live_tokens)
            self._sessions.move_to_end(session)
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)

    def _take(self, known: Dispatched, num_tries: int, event: Event) -> None:
        """Learn from an event of a request, and hand it on."""
        assert isinstance(event, TokenEvent), "a request has token events"
        with self._lock:
            if known.num_tries != num_tries:  # it went to another worker
                return
            goes_again = is_last(event) and known.may_go_again(event)
            if event.error is None:
                self._members.heard(known.worker)
            if event.token_ids or is_last(event):
                self._made(known, event)
            if is_last(event):
                self._note_end(known, event)
                self._over(known, keep=goes_again)
            known.has_spoken = True
        if goes_again:
            self._send_again(known, event)
        else:
            known.listener(event)

    def _note_end(self, known: Dispatched, event: TokenEvent) -> None:
        code = None if event.error is None else event.error["code"]
        if code in (WorkerError.code, WorkerLost.code):
            tally = self._tally(known.worker)
            self._tallies[known.worker] = replace(tally, num_failed=tally.num_failed + 1)

    def _over(self, known: Dispatched, *, keep: bool = False) -> None:
        """Its worker has nothing of it before it any more; unless kept, it is no longer known."""
        request_id = known.message.request_id
        for worker in known.plan.cold:
            self._members.end(worker, f"cold/{request_id}")
        self._members.end(known.worker, f"answer/{request_id}")
        if not keep and self._in_flight.get(request_id) is known:
            del self._in_flight[request_id]

    def _made(self, known: Dispatched, event: TokenEvent) -> None:
        """The first token is there, so every cold segment is; or the request failed."""
        namespace = known.message.namespace
        for worker, ids in known.plan.cold.items():
            self._members.end(worker, f"cold/{event.request_id}")
            for id_ in ids:
                if self._index.maker(Place(namespace, id_)) == worker:
                    self._index.drop(Place(namespace, id_), worker)
                    if event.error is None:
                        self._index.hold(Place(namespace, id_), worker)
        for segment in event.report.segments if event.report is not None else ():
            place = Place(namespace, segment.segment_id)
            if segment.status in (SegmentStatus.HIT, SegmentStatus.COLD):
                self._index.hold(place, known.worker)

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
            loads_ms = self._members.loads_ms()
            if not loads_ms:
                raise WorkerLost("no worker is ready; try again")
            by_id = {part.segment_id: part for part in message.segments if part.segment_id}
            held, costs = self._warm_where(message, by_id, loads_ms)
            given = longest_first(costs, loads_ms)
            work: dict[WorkerId, list[PromptPart]] = {}
            for worker, ids in [*held.items(), *given.work.items()]:
                work.setdefault(worker, []).extend(by_id[id_] for id_ in ids)
            ports = {worker: self._ports[worker] for worker in work}
            split = WarmSplit(message, work, ports, listener, self._warmed)
            self._splits[message.request_id] = split
        split.begin()

    def _warm_where(
        self,
        message: WarmRequest,
        by_id: dict[SegmentId, PromptPart],
        loads_ms: dict[WorkerId, float],
    ) -> tuple[dict[WorkerId, list[SegmentId]], dict[SegmentId, float]]:
        """What somebody is thought to hold, by holder; what the rest costs."""
        held: dict[WorkerId, list[SegmentId]] = {}
        costs: dict[SegmentId, float] = {}
        for id_, part in by_id.items():
            holders = self._index.holders(Place(message.namespace, id_)) & loads_ms.keys()
            if holders:
                held.setdefault(min(holders), []).append(id_)
            else:
                costs[id_] = self._costs.cold(len(part.token_ids))
        return held, costs

    def _warmed(self, split: WarmSplit, worker: WorkerId, id_: SegmentId | None) -> None:
        """A segment of a warm request is there; none: the whole request ended."""
        with self._lock:
            if id_ is None:
                self._splits.pop(split.request_id, None)
            else:
                self._index.hold(Place(split.namespace, id_), worker)

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
            self._forget_namespace(namespace)
        return joined_answer(question, answers)

    def delete(self, parts: Sequence[PromptPart], namespace: str) -> None:
        """Drop entries and chains on every worker."""
        with self._lock:
            self._index.delete(
                Place(namespace, part.segment_id) for part in parts if part.segment_id is not None
            )
        for _, port in self._all_ports():
            port.delete(parts, namespace)

    def _all_ports(self, *, only_ready: bool = False) -> list[tuple[WorkerId, WorkerPort]]:
        with self._lock:
            ready = self._members.loads_ms() if only_ready else {}
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
