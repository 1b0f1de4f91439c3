"""A cluster on paper: the router's own plans, with workers, caches and links as queues of time.

Discrete events.  A worker does one thing at a time, in order; an entry is sent on when it is made;
a worker takes in one entry at a time.  Costs are those of a `CostModel`, times a worker's slowness.
"""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import final

from hypic_sdk.bench.cluster_trace import Arrival
from hypic_sdk.prompt.segment import SegmentId
from hypic_sdk.router.assignment import Assign, WorkerId, longest_first
from hypic_sdk.router.costs import CostModel
from hypic_sdk.router.dispatch import DispatchPlan, Segment, plan_dispatch
from hypic_sdk.router.membership import Membership
from hypic_sdk.router.placement_index import Place, PlacementIndex


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """What the workers are like."""

    num_workers: int = 4
    cache_tokens: int = 200_000  # of entries that one worker holds
    straggler_share: float = 0.0  # of the workers, slower than the others
    straggler_slowness: float = 4.0
    spreads: bool = True  # false: each request stays with one worker
    assign: Assign[SegmentId] = longest_first
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """What a trace came to."""

    num_requests: int
    ttft_ms: tuple[float, ...]  # sorted
    hit_share: float  # of tokens of documents that nobody had to compute for the request
    busy_share: float  # of the workers' time from the first arrival to the last answer
    spread_share: float  # of requests that more than one worker computed for
    sent_tokens: int  # of entries that went from one worker to another
    plan_us: float  # median time of one plan, on this machine

    def quantile_ms(self, share: float) -> float:
        """The time to the first token that `share` of the requests stay within."""
        return self.ttft_ms[min(len(self.ttft_ms) - 1, int(share * len(self.ttft_ms)))]


@dataclass(slots=True)
class _Worker:
    slowness: float
    free_ms: float = 0.0  # when its last piece of work ends
    link_free_ms: float = 0.0  # when the last entry on its way has come
    busy_ms: float = 0.0
    held: OrderedDict[SegmentId, int] = field(default_factory=OrderedDict)
    held_tokens: int = 0


@final
class Simulation:
    """One cluster; `run` it over a trace."""

    def __init__(self, shape: ClusterShape, costs: CostModel) -> None:
        self._shape = shape
        self._costs = costs
        self._now_ms = 0.0
        self._members = Membership(now_s=lambda: self._now_ms / 1000, silent_after_s=float("inf"))
        self._index = PlacementIndex()
        rng = random.Random(shape.seed)
        self._workers: dict[WorkerId, _Worker] = {}
        for number in range(shape.num_workers):
            worker = WorkerId(f"w{number}")
            is_slow = rng.random() < shape.straggler_share
            self._workers[worker] = _Worker(shape.straggler_slowness if is_slow else 1.0)
            self._members.join(worker)
            self._members.ready(worker)
        self._making: dict[SegmentId, float] = {}  # when an entry that is being made is there
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._tasks = itertools.count()

    def run(self, trace: Iterable[Arrival]) -> ClusterResult:
        """Serve a trace from empty caches."""
        ttft_ms, plan_us, spread, hit, asked, sent, start_ms = [], [], 0, 0, 0, 0, None
        for arrival in trace:
            self._advance(arrival.at_ms)
            start_ms = arrival.at_ms if start_ms is None else start_ms
            began_s = time.perf_counter()
            plan = self._plan(arrival)
            plan_us.append((time.perf_counter() - began_s) * 1e6)
            tokens = dict(arrival.documents)
            made = {id_ for ids in plan.cold.values() for id_ in ids}
            hit += sum(n for id_, n in arrival.documents if id_ not in made)
            asked += sum(tokens.values())
            spread += plan.is_spread
            sent += sum(tokens[id_] for id_ in plan.hits)
            sent += sum(
                tokens[id_] for w, ids in plan.cold.items() if w != plan.combine for id_ in ids
            )
            ttft_ms.append(self._serve(arrival, plan) - arrival.at_ms)
        last_ms = max(worker.free_ms for worker in self._workers.values())
        wall_ms = max(last_ms - (start_ms or 0.0), 1e-9) * len(self._workers)
        return ClusterResult(
            num_requests=len(ttft_ms),
            ttft_ms=tuple(sorted(ttft_ms)),
            hit_share=hit / max(asked, 1),
            busy_share=sum(worker.busy_ms for worker in self._workers.values()) / wall_ms,
            spread_share=spread / max(len(ttft_ms), 1),
            sent_tokens=sent,
            plan_us=statistics.median(plan_us),
        )

    # -- one request

    def _plan(self, arrival: Arrival) -> DispatchPlan:
        segments = []
        for id_, num_tokens in arrival.documents:
            place = Place("", id_)
            holders, maker = self._index.holders(place), self._index.maker(place)
            segments.append(Segment(id_, num_tokens, holders, maker))
        loads = self._members.loads_ms()
        if not self._shape.spreads:
            held: dict[WorkerId, int] = dict.fromkeys(loads, 0)
            for segment in segments:
                for worker in segment.holders:
                    held[worker] += segment.num_tokens
            best = min(loads, key=lambda w: loads[w] - self._costs.prefill_ms_per_token * held[w])
            loads = {best: loads[best]}
        return plan_dispatch(
            segments, arrival.live_tokens, loads, self._costs, assign=self._shape.assign
        )

    def _serve(self, arrival: Arrival, plan: DispatchPlan) -> float:
        """Book the work of a plan; return when the first token is there."""
        tokens = dict(arrival.documents)
        combine = self._workers[plan.combine]
        ready_ms = arrival.at_ms
        for id_, holder in plan.hits.items():
            there_ms = max(arrival.at_ms, self._making.get(id_, 0.0))
            ready_ms = max(ready_ms, self._send(id_, tokens[id_], plan.combine, there_ms, holder))
        for worker, ids in plan.cold.items():
            for id_ in ids:
                made_ms = self._compute(worker, self._costs.cold(tokens[id_]))
                self._make(id_, tokens[id_], worker, made_ms)
                if worker != plan.combine:
                    made_ms = self._send(id_, tokens[id_], plan.combine, made_ms, worker)
                ready_ms = max(ready_ms, made_ms)
        for id_ in tokens:
            if id_ in combine.held:
                combine.held.move_to_end(id_)
        return self._compute(
            plan.combine, self._costs.live(arrival.live_tokens), not_before=ready_ms
        )

    def _compute(self, worker: WorkerId, cost_ms: float, not_before: float = 0.0) -> float:
        """Append work to a worker's queue; return its end."""
        known = self._workers[worker]
        cost_ms *= known.slowness
        end_ms = max(known.free_ms, self._now_ms, not_before) + cost_ms
        known.free_ms = end_ms
        known.busy_ms += cost_ms
        task = f"t{next(self._tasks)}"
        self._members.begin(worker, task, cost_ms)
        self._at(end_ms, lambda: self._members.end(worker, task))
        return end_ms

    def _make(self, id_: SegmentId, num_tokens: int, worker: WorkerId, made_ms: float) -> None:
        self._index.begin(Place("", id_), worker)
        self._making[id_] = made_ms

        def done() -> None:
            self._making.pop(id_, None)
            self._hold(id_, num_tokens, worker)

        self._at(made_ms, done)

    def _send(
        self, id_: SegmentId, num_tokens: int, to: WorkerId, made_ms: float, source: WorkerId
    ) -> float:
        """Send an entry that is there at `made_ms`; return when it has come."""
        receiver = self._workers[to]
        end_ms = max(made_ms, receiver.link_free_ms, self._now_ms) + self._costs.transfer(
            num_tokens
        )
        receiver.link_free_ms = end_ms
        if id_ in self._workers[source].held:
            self._workers[source].held.move_to_end(id_)
        self._at(end_ms, lambda: self._hold(id_, num_tokens, to))
        return end_ms

    def _hold(self, id_: SegmentId, num_tokens: int, worker: WorkerId) -> None:
        """An entry is there; what was used the longest ago makes room."""
        known = self._workers[worker]
        if id_ not in known.held:
            known.held_tokens += num_tokens
        known.held[id_] = num_tokens
        known.held.move_to_end(id_)
        self._index.hold(Place("", id_), worker)
        while known.held_tokens > self._shape.cache_tokens and len(known.held) > 1:
            gone, freed = known.held.popitem(last=False)
            known.held_tokens -= freed
            self._index.drop(Place("", gone), worker)

    # -- time

    def _at(self, when_ms: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_ms, next(self._order), what))

    def _advance(self, to_ms: float) -> None:
        while self._events and self._events[0][0] <= to_ms:
            self._now_ms, _, what = heapq.heappop(self._events)
            what()
        self._now_ms = to_ms
