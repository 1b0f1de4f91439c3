"""What a router knows and has promised: workers, their loads, who holds what, whose session."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import final

from hypic_sdk.errors import WorkerError, WorkerLost
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentId
from hypic_sdk.router.assignment import Assign, WorkerId, longest_first
from hypic_sdk.router.costs import CostModel
from hypic_sdk.router.dispatch import DispatchPlan, Segment, plan_dispatch
from hypic_sdk.router.in_flight import Dispatched, WorkerTally
from hypic_sdk.router.membership import Membership
from hypic_sdk.router.placement_index import Place, PlacementIndex
from hypic_sdk.transport.control import Alive, EntriesChanged
from hypic_sdk.transport.messages import EngineRequest, SegmentStatus, TokenEvent, WarmRequest

MAX_SESSIONS = 100_000
"""Sessions whose worker is remembered."""


@dataclass(frozen=True, slots=True)
class _Session:
    """Where a session's chain lies, and how much of the next prompt it stands for."""

    worker: WorkerId
    live_tokens: int


@final
class Books:
    """Plans of dispatch, and what becomes of them.  Single-threaded: under the router's lock."""

    def __init__(self, costs: CostModel, assign: Assign[SegmentId], members: Membership) -> None:
        self.costs = costs
        self.members = members
        self.index = PlacementIndex()
        self.tallies: dict[WorkerId, WorkerTally] = {}
        self._assign = assign
        self._sessions: OrderedDict[tuple[str, str], _Session] = OrderedDict()

    # -- what workers tell

    def heard(self, worker: WorkerId, alive: Alive | None) -> None:
        """A sign of life, perhaps with what the worker counts."""
        self.members.heard(worker)
        if alive is not None:
            self.tallies[worker] = self._tally(worker).heard(alive)

    def entries_changed(self, worker: WorkerId, changed: EntriesChanged) -> None:
        """Entries that a worker holds now, and such as it holds no more."""
        for name in changed.made:
            self.hold(Place(name.namespace, name.segment_id), worker)
        for name in changed.gone:
            self.index.drop(Place(name.namespace, name.segment_id), worker)

    def hold(self, place: Place, worker: WorkerId) -> None:
        """A worker holds a segment; nobody holds anything who is gone."""
        if worker in self.members:
            self.index.hold(place, worker)

    def _tally(self, worker: WorkerId) -> WorkerTally:
        return self.tallies.get(worker, WorkerTally())

    # -- one request

    def plan(self, message: EngineRequest) -> DispatchPlan:
        """How a request would be dispatched now.  Raises WorkerLost: no worker is ready."""
        loads_ms = self._loads_ms()
        session = self._sessions.get((message.namespace, message.session_id or ""))
        segments = self._segments(message)
        return plan_dispatch(
            segments.values(),
            _live_tokens(message, segments),
            loads_ms,
            self.costs,
            preferred=None if session is None else session.worker,
            chained_tokens=0 if session is None else session.live_tokens,
            assign=self._assign,
        )

    def _loads_ms(self) -> dict[WorkerId, float]:
        """What each ready worker has before it, whoever holds least first.

        Plans settle ties by this order: else all that is asked for one by one would lie with the
        first worker, and the caches of the others would stay empty.

        Raises:
            WorkerLost: no worker is ready.
        """
        loads_ms = self.members.loads_ms()
        if not loads_ms:
            raise WorkerLost("no worker is ready; try again")
        emptiest_first = sorted(loads_ms, key=self.index.num_places)
        return {worker: loads_ms[worker] for worker in emptiest_first}

    def plan_again(self, known: Dispatched) -> DispatchPlan | None:
        """A request whose worker is gone, on another one that asks nobody for anything.

        What killed one worker is to meet no third.  None: nobody else is there.
        """
        loads_ms = self.members.loads_ms()
        loads_ms.pop(known.worker, None)
        if not loads_ms:
            return None
        worker = min(loads_ms, key=lambda worker: loads_ms[worker])
        segments = self._segments(known.message)
        cold = tuple(id_ for id_, one in segments.items() if worker not in one.holders)
        return DispatchPlan(worker, {worker: cold} if cold else {}, {}, loads_ms[worker])

    def _segments(self, message: EngineRequest) -> dict[SegmentId, Segment]:
        """The request's inner segments, each text once."""
        found = {}
        for part in message.prompt.parts if message.reuse else ():
            if part.role is Role.INNER and part.segment_id is not None:
                place = Place(message.namespace, part.segment_id)
                found[part.segment_id] = Segment(
                    part.segment_id,
                    len(part.token_ids),
                    self.index.holders(place),
                    self.index.maker(place),
                )
        return found

    def begin(self, known: Dispatched) -> None:
        """Book a plan: who makes what, and what everybody has before it now."""
        message, plan = known.message, known.plan
        tally = self._tally(plan.combine)
        self.tallies[plan.combine] = replace(tally, num_dispatched=tally.num_dispatched + 1)
        segments = self._segments(message)
        for worker, ids in plan.cold.items():
            cost_ms = sum(self.costs.cold(segments[id_].num_tokens) for id_ in ids)
            self.members.begin(worker, f"cold/{message.request_id}", cost_ms)
            for id_ in ids:
                self.index.begin(Place(message.namespace, id_), worker)
        live_tokens = _live_tokens(message, segments)
        live_ms = self.costs.live(live_tokens)
        self.members.begin(plan.combine, f"answer/{message.request_id}", live_ms)
        if message.session_id is not None:
            self._remember((message.namespace, message.session_id), plan.combine, live_tokens)

    def _remember(self, session: tuple[str, str], worker: WorkerId, live_tokens: int) -> None:
        self._sessions[session] = _Session(worker, live_tokens)
        self._sessions.move_to_end(session)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def spoke(self, known: Dispatched, event: TokenEvent) -> None:
        """An event of a request: with its first token every cold segment is there."""
        if event.error is None:
            self.members.heard(known.worker)
        namespace = known.message.namespace
        for worker, ids in known.plan.cold.items() if not known.has_spoken else ():
            self.members.end(worker, f"cold/{event.request_id}")
            self._settle(namespace, worker, ids, is_made=event.error is None)
        for segment in event.report.segments if event.report is not None else ():
            if segment.status in (SegmentStatus.HIT, SegmentStatus.COLD):
                self.hold(Place(namespace, segment.segment_id), known.worker)

    def _settle(
        self, namespace: str, worker: WorkerId, ids: Iterable[SegmentId], *, is_made: bool
    ) -> None:
        """Cold segments of a plan are made, or nobody is to wait for them."""
        for id_ in ids:
            place = Place(namespace, id_)
            if self.index.maker(place) == worker:
                if is_made:
                    self.hold(place, worker)
                else:
                    self.index.give_up(place, worker)

    def end(self, known: Dispatched, event: TokenEvent | None) -> None:
        """Its worker has nothing of it before it any more."""
        request_id = known.message.request_id
        for worker, ids in known.plan.cold.items():
            self.members.end(worker, f"cold/{request_id}")
            if not known.has_spoken:  # else that is settled
                self._settle(known.message.namespace, worker, ids, is_made=False)
        self.members.end(known.worker, f"answer/{request_id}")
        code = None if event is None or event.error is None else event.error["code"]
        if code in (WorkerError.code, WorkerLost.code):
            tally = self._tally(known.worker)
            self.tallies[known.worker] = replace(tally, num_failed=tally.num_failed + 1)

    # -- one warm request

    def begin_warm(self, message: WarmRequest) -> dict[WorkerId, tuple[PromptPart, ...]]:
        """Spread a warm request, and book it: what somebody holds or makes already goes there.

        Raises:
            WorkerLost: no worker is ready.
        """
        loads_ms = self._loads_ms()
        by_id = {part.segment_id: part for part in message.segments if part.segment_id is not None}
        work: dict[WorkerId, list[SegmentId]] = {}
        costs: dict[SegmentId, float] = {}
        for id_, part in by_id.items():
            place = Place(message.namespace, id_)
            maker = self.index.maker(place)
            if holders := self.index.holders(place) & loads_ms.keys():
                work.setdefault(min(holders), []).append(id_)
            elif maker is not None and maker in loads_ms:
                work.setdefault(maker, []).append(id_)
            else:
                costs[id_] = self.costs.cold(len(part.token_ids))
        for worker, ids in longest_first(costs, loads_ms).work.items():
            work.setdefault(worker, []).extend(ids)
            for id_ in ids:
                self.index.begin(Place(message.namespace, id_), worker)
                if not message.background:  # requests do not wait for background work
                    self.members.begin(worker, _warm_task(message, id_), costs[id_])
        return {worker: tuple(by_id[id_] for id_ in ids) for worker, ids in work.items()}

    def warmed(self, message: WarmRequest, worker: WorkerId, id_: SegmentId) -> None:
        """A segment of a warm request is there."""
        self.members.end(worker, _warm_task(message, id_))
        self.hold(Place(message.namespace, id_), worker)

    def end_warm(self, message: WarmRequest, worker: WorkerId, ids: Iterable[SegmentId]) -> None:
        """A worker makes nothing more of a warm request; `ids` are those that are not there."""
        for id_ in ids:
            self.members.end(worker, _warm_task(message, id_))
            self.index.give_up(Place(message.namespace, id_), worker)


def _live_tokens(message: EngineRequest, segments: Mapping[SegmentId, Segment]) -> int:
    """Tokens of a request that are computed for it alone; a text that stands twice is kept once."""
    return message.prompt.num_tokens - sum(segment.num_tokens for segment in segments.values())


def _warm_task(message: WarmRequest, id_: SegmentId) -> str:
    return f"warm/{message.request_id}/{id_}"
