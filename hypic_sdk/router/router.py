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
from typing import Any, final

from hypic_sdk.errors import RequestError, WorkerLost
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentId
from hypic_sdk.router.answers import joined_answer
from hypic_sdk.router.assignment import Assign, WorkerId, longest_first
from hypic_sdk.router.costs import CostModel
from hypic_sdk.router.dispatch import DispatchPlan, Segment, plan_dispatch
from hypic_sdk.router.membership import Membership, WorkerState
from hypic_sdk.router.placement_index import Place, PlacementIndex
from hypic_sdk.router.warm_split import WarmSplit
from hypic_sdk.transport.control import Question
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


@dataclass(frozen=True, slots=True)
class _Dispatched:
    """One request in flight."""

    message: EngineRequest
    worker: WorkerId
    plan: DispatchPlan


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
        self._in_flight: dict[str, _Dispatched] = {}
        self._splits: dict[str, WarmSplit] = {}
        self._sessions: OrderedDict[tuple[str, str], WorkerId] = OrderedDict()

    # -- workers

    def join(self, worker: WorkerId, port: WorkerPort) -> None:
        """A worker is ready for work."""
        with self._lock:
            self._ports[worker] = port
            self._members.join(worker)
            self._members.ready(worker)

    def heard(self, worker: WorkerId) -> None:
        """A worker gave a sign of life."""
        with self._lock:
            self._members.heard(worker)

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
            port = self._ports[plan.combine]
            self._begin(message, plan)
        logger.info(
            "dispatched request=%s worker=%s cold=%d elsewhere=%d predicted_ms=%.0f",
            message.request_id,
            plan.combine,
            sum(map(len, plan.cold.values())),
            len(plan.hits),
            plan.predicted_ms,
        )
        hinted = replace(message, placements=placements_of(plan))
        port.submit(hinted, lambda event: self._take(event, listener))

    def plan(self, message: EngineRequest) -> DispatchPlan:
        """How a request would be dispatched now.  Raises WorkerLost: no worker is ready."""
        with self._lock:
            loads_ms = self._members.loads_ms()
            if not loads_ms:
                raise WorkerLost("no worker is ready; try again")
            session = (message.namespace, message.session_id or "")
            segments = self._segments(message) if message.reuse else {}
            in_segments = sum(segment.num_tokens for segment in segments.values())
            return plan_dispatch(
                segments.values(),
                message.prompt.num_tokens - in_segments,
                loads_ms,
                self._costs,
                preferred=self._sessions.get(session),
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

    def _begin(self, message: EngineRequest, plan: DispatchPlan) -> None:
        """Book a plan: who makes what, and what everybody has before it now."""
        tokens = {
            part.segment_id: len(part.token_ids)
            for part in message.prompt.parts
            if part.segment_id is not None
        }
        self._in_flight[message.request_id] = _Dispatched(message, plan.combine, plan)
        for worker, ids in plan.cold.items():
            cost_ms = sum(self._costs.cold(tokens[id_]) for id_ in ids)
            self._members.begin(worker, f"{message.request_id}/cold", cost_ms)
            for id_ in ids:
                self._index.begin(Place(message.namespace, id_), worker)
        live_ms = self._costs.live(message.prompt.num_tokens - sum(tokens.values()))
        self._members.begin(plan.combine, message.request_id, live_ms)
        if message.session_id is not None:
            session = (message.namespace, message.session_id)
            self._sessions[session] = plan.combine
            self._sessions.move_to_end(session)
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)

    def _take(self, event: Event, listener: Callable[[Event], None]) -> None:
        """Learn from an event of a request, and hand it on."""
        assert isinstance(event, TokenEvent), "a request has token events"
        with self._lock:
            known = self._in_flight.get(event.request_id)
            if known is not None:
                self._members.heard(known.worker)
                if event.token_ids or is_last(event):
                    self._made(known, event)
                if is_last(event):
                    del self._in_flight[event.request_id]
                    self._members.end(known.worker, event.request_id)
        listener(event)

    def _made(self, known: _Dispatched, event: TokenEvent) -> None:
        """The first token is there, so every cold segment is; or the request failed."""
        namespace = known.message.namespace
        for worker, ids in known.plan.cold.items():
            self._members.end(worker, f"{event.request_id}/cold")
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
        port = self._port_of(request_id)
        if port is not None:
            port.cancel(request_id)
        with self._lock:
            split = self._splits.get(request_id)
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
        held = [False] * len(parts)
        for port in self._all_ports():
            held = [a or b for a, b in zip(held, port.probe(parts, namespace), strict=True)]
        return held

    def ask(
        self,
        question: Question,
        parts: Sequence[PromptPart] = (),
        namespace: str = "",
        number: int = 0,
    ) -> Any:
        """Ask every worker, and join their answers."""
        ports = self._all_ports()
        if not ports:
            raise WorkerLost("no worker is ready; try again")
        return joined_answer(
            question, [port.ask(question, parts, namespace, number) for port in ports]
        )

    def delete(self, parts: Sequence[PromptPart], namespace: str) -> None:
        """Drop entries and chains on every worker."""
        with self._lock:
            self._index.delete(
                Place(namespace, part.segment_id) for part in parts if part.segment_id is not None
            )
        for port in self._all_ports():
            port.delete(parts, namespace)

    def _all_ports(self) -> list[WorkerPort]:
        with self._lock:
            return list(self._ports.values())


def placements_of(plan: DispatchPlan) -> tuple[Placement, ...]:
    """A plan's hints for the worker that answers: what to fetch, and from whom."""
    made = [
        Placement(id_, worker)
        for worker, ids in plan.cold.items()
        if worker != plan.combine
        for id_ in ids
    ]
    return (*made, *(Placement(id_, worker) for id_, worker in plan.hits.items()))
