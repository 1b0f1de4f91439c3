"""From the segments of one request to a plan: who answers, who makes what, who has what."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hypic_sdk.prompt.segment import SegmentId
from hypic_sdk.router.assignment import Assign, WorkerId, longest_first
from hypic_sdk.router.costs import CostModel

LEAST_GAIN = 0.10
"""Share of the time on one worker that spreading must save: below it, moving parts cost more."""

MAX_CANDIDATES = 8
"""Workers that are weighed as the one to answer: with a thousand workers, not all of them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What a plan needs to know of one segment of a request."""

    segment_id: SegmentId
    num_tokens: int
    holders: frozenset[WorkerId] = frozenset()  # thought to hold it
    maker: WorkerId | None = None  # thought to make it now


@dataclass(frozen=True, slots=True)
class DispatchPlan:
    """Who answers a request, and hints for it.  One worker is no special case."""

    combine: WorkerId
    cold: Mapping[WorkerId, tuple[SegmentId, ...]]  # to be made, by whom, longest first
    hits: Mapping[SegmentId, WorkerId]  # lies, or is being made, at another worker than `combine`
    predicted_ms: float

    @property
    def is_spread(self) -> bool:
        """Whether another worker than the one that answers computes anything."""
        return any(worker != self.combine for worker in self.cold)


def plan_dispatch(
    segments: Iterable[Segment],
    live_tokens: int,
    loads_ms: Mapping[WorkerId, float],
    costs: CostModel,
    *,
    preferred: WorkerId | None = None,
    chained_tokens: int = 0,
    assign: Assign[SegmentId] = longest_first,
) -> DispatchPlan:
    """Choose the worker that answers, and spread the cold segments where that pays.

    Args:
        segments: of the request, in prompt order; a text that stands twice counts once.
        live_tokens: of the assembly.
        loads_ms: what each ready worker has before it already.  At least one worker.
        preferred: where the session's chain lies; taken unless another is sooner.
        chained_tokens: of the live tokens, those that the chain stands for there.
        assign: how cold segments are given out.
    """
    assert loads_ms, "no worker is ready"
    by_id = {segment.segment_id: segment for segment in segments}
    candidates = _candidates(by_id, loads_ms, preferred)
    plans = []
    for combine in candidates:
        chained = min(chained_tokens, live_tokens) if combine == preferred else 0
        live_ms = costs.live(live_tokens - chained)
        plans.append(_alone(combine, by_id, live_ms, loads_ms, costs))
        if len(loads_ms) > 1:
            plans.append(_spread(combine, by_id, live_ms, loads_ms, costs, assign))
    # the first of equals: candidates stand in order of preference, one worker before many
    best = plans[0]
    for plan in plans[1:]:
        limit = best.predicted_ms * (1 - LEAST_GAIN if plan.is_spread > best.is_spread else 1)
        if plan.predicted_ms < limit:
            best = plan
    return best


def _candidates(
    by_id: Mapping[SegmentId, Segment],
    loads_ms: Mapping[WorkerId, float],
    preferred: WorkerId | None,
) -> list[WorkerId]:
    """Workers worth weighing: the session's, those that hold most, those that are least busy."""
    held: dict[WorkerId, int] = {}
    for segment in by_id.values():
        for worker in segment.holders & loads_ms.keys():
            held[worker] = held.get(worker, 0) + segment.num_tokens
    most = sorted(held, key=lambda worker: (-held[worker], loads_ms[worker]))
    idle = heapq.nsmallest(MAX_CANDIDATES, loads_ms, key=lambda worker: loads_ms[worker])
    first = [preferred] if preferred in loads_ms and preferred is not None else []
    half = MAX_CANDIDATES // 2
    return list(dict.fromkeys([*first, *most[:half], *idle[:half]]))


def _missing(
    by_id: Mapping[SegmentId, Segment], combine: WorkerId, loads_ms: Mapping[WorkerId, float]
) -> tuple[dict[SegmentId, WorkerId], dict[SegmentId, int]]:
    """What `combine` can have from a peer, and what nobody has (id to tokens)."""
    elsewhere: dict[SegmentId, WorkerId] = {}
    cold: dict[SegmentId, int] = {}
    for id_, segment in by_id.items():
        if combine in segment.holders:
            continue
        ready = [worker for worker in segment.holders if worker in loads_ms]
        if ready:
            elsewhere[id_] = min(ready, key=lambda worker: (loads_ms[worker], worker))
        elif segment.maker is not None and segment.maker in loads_ms:
            if segment.maker != combine:
                elsewhere[id_] = segment.maker
        else:
            cold[id_] = segment.num_tokens
    return elsewhere, cold


def _alone(
    combine: WorkerId,
    by_id: Mapping[SegmentId, Segment],
    live_ms: float,
    loads_ms: Mapping[WorkerId, float],
    costs: CostModel,
) -> DispatchPlan:
    """All cold work where the answer is made; hits come from peers where that is sooner."""
    elsewhere, cold = _missing(by_id, combine, loads_ms)
    hits, pulled_ms = {}, 0.0
    for id_, holder in elsewhere.items():
        num_tokens = by_id[id_].num_tokens
        if costs.transfer(num_tokens) < costs.cold(num_tokens):
            hits[id_] = holder
            pulled_ms += costs.transfer(num_tokens)
        else:
            cold[id_] = num_tokens
    work_ms = sum(costs.cold(num_tokens) for num_tokens in cold.values())
    total_ms = loads_ms[combine] + max(work_ms, pulled_ms) + live_ms
    order = tuple(sorted(cold, key=lambda id_: -cold[id_]))
    return DispatchPlan(combine, {combine: order} if order else {}, hits, total_ms)


def _spread(
    combine: WorkerId,
    by_id: Mapping[SegmentId, Segment],
    live_ms: float,
    loads_ms: Mapping[WorkerId, float],
    costs: CostModel,
    assign: Assign[SegmentId],
) -> DispatchPlan:
    """Cold work on all workers; each entry is sent on while the next is computed."""
    elsewhere, cold = _missing(by_id, combine, loads_ms)
    given = assign({id_: costs.cold(n) for id_, n in cold.items()}, loads_ms)
    # the last entry of a worker comes when it is made, and then needs its way
    ends_ms = [loads_ms[combine]]
    ends_ms += [
        given.loads[worker] + (0.0 if worker == combine else costs.transfer(cold[keys[-1]]))
        for worker, keys in given.work.items()
    ]
    # one link takes one entry at a time
    arriving = [
        *elsewhere,
        *(key for worker, keys in given.work.items() if worker != combine for key in keys),
    ]
    link_ms = sum(costs.transfer(by_id[id_].num_tokens) for id_ in arriving)
    total_ms = max(*ends_ms, link_ms) + live_ms
    return DispatchPlan(combine, given.work, elsewhere, total_ms)
