"""Which worker computes which cold segments (design 10, 13): longest first, or in turn."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NewType, TypeVar

WorkerId = NewType("WorkerId", str)
"""Names one engine process for as long as it lives; a restarted one has a new id."""

Key = TypeVar("Key", bound=Hashable)

Assign = Callable[[Mapping[Key, float], Mapping[WorkerId, float]], "Assignment[Key]"]
"""A rule: what each key costs, and what each worker has before it already, to an assignment."""


@dataclass(frozen=True, slots=True)
class Assignment(Generic[Key]):
    """Work by worker, each worker's in the order in which it is to be done."""

    work: Mapping[WorkerId, tuple[Key, ...]]  # workers without work are not named
    loads: Mapping[WorkerId, float]  # what each of them has in the end, with what it had before

    @property
    def makespan(self) -> float:
        """When the last of them is done; 0 without work."""
        return max(self.loads.values(), default=0.0)


def longest_first(costs: Mapping[Key, float], loads: Mapping[WorkerId, float]) -> Assignment[Key]:
    """Give each key, the costliest first, to the worker that is done first (LPT).

    From empty loads on m workers the makespan is at most sum/m + (1 - 1/m) longest, and at most
    4/3 - 1/(3m) of the best there is (Graham, 1969).  Ties go by the order of `costs` and `loads`.

    Args:
        costs: what each key takes, in any one unit.
        loads: what each worker has before it already, in the same unit.  At least one worker.
    """
    order = sorted(costs, key=lambda key: -costs[key])
    # n keys reach no worker but the n least busy; the place in `loads` settles ties
    heap = heapq.nsmallest(
        max(1, len(order)),
        ((load, place, worker) for place, (worker, load) in enumerate(loads.items())),
    )
    work: dict[WorkerId, list[Key]] = {}
    for key in order:
        load, place, worker = heap[0]
        work.setdefault(worker, []).append(key)
        heapq.heapreplace(heap, (load + costs[key], place, worker))
    return _assignment(work, costs, loads)


def in_turn(costs: Mapping[Key, float], loads: Mapping[WorkerId, float]) -> Assignment[Key]:
    """Give the keys to the workers one after the other (round robin), whatever they cost.

    Here for comparison: the rule that longest first is measured against.
    """
    workers: Sequence[WorkerId] = tuple(loads)
    work: dict[WorkerId, list[Key]] = {}
    for place, key in enumerate(costs):
        work.setdefault(workers[place % len(workers)], []).append(key)
    return _assignment(work, costs, loads)


def _assignment(
    work: Mapping[WorkerId, list[Key]],
    costs: Mapping[Key, float],
    loads: Mapping[WorkerId, float],
) -> Assignment[Key]:
    return Assignment(
        {worker: tuple(keys) for worker, keys in work.items()},
        {w: loads[w] + sum(costs[key] for key in keys) for w, keys in work.items()},
    )
