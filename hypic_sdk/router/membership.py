"""Which workers there are, whether they can be given work, and what each has before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import final

from hypic_sdk.router.assignment import WorkerId

SILENT_AFTER_S = 3.0
"""A worker that said nothing for so long gets no new work until it speaks again."""


class WorkerState(Enum):
    """What a worker can be asked for."""

    JOINING = "joining"  # loads its weights; knows nothing yet
    READY = "ready"
    SILENT = "silent"  # no sign of life of late: gets nothing new, keeps what it has
    LEAVING = "leaving"  # ends what it has, gets nothing new


@dataclass(slots=True)
class _Worker:
    state: WorkerState
    heard_s: float
    load_ms: float = 0.0  # of work that was given to it and has not ended
    tasks: dict[str, float] = field(default_factory=dict)  # the same by task


@final
class Membership:
    """Workers by id.  A worker that comes back is another worker: it holds nothing.

    Single-threaded.
    """

    def __init__(
        self,
        *,
        silent_after_s: float = SILENT_AFTER_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._silent_after_s = silent_after_s
        self._now_s = now_s
        self._workers: dict[WorkerId, _Worker] = {}

    def __contains__(self, worker: WorkerId) -> bool:
        return worker in self._workers

    def __len__(self) -> int:
        return len(self._workers)

    def states(self) -> Mapping[WorkerId, WorkerState]:
        """Every worker as it stands now."""
        return {worker: self._state(known) for worker, known in self._workers.items()}

    def join(self, worker: WorkerId) -> None:
        """A worker announced itself; it gets work once it is `ready`."""
        assert worker not in self._workers, f"{worker} is here already: ids are used once"
        self._workers[worker] = _Worker(WorkerState.JOINING, self._now_s())

    def ready(self, worker: WorkerId) -> None:
        """It can be given work from now on."""
        known = self._workers[worker]
        known.state, known.heard_s = WorkerState.READY, self._now_s()

    def heard(self, worker: WorkerId) -> None:
        """It gave a sign of life.  One that is unknown is none of ours any more."""
        if worker in self._workers:
            self._workers[worker].heard_s = self._now_s()

    def drain(self, worker: WorkerId) -> None:
        """Give it nothing new."""
        self._workers[worker].state = WorkerState.LEAVING

    def leave(self, worker: WorkerId) -> tuple[str, ...]:
        """It is gone.  Returns the tasks that it leaves undone."""
        known = self._workers.pop(worker, None)
        return () if known is None else tuple(known.tasks)

    def begin(self, worker: WorkerId, task: str, cost_ms: float) -> None:
        """Work was given to it."""
        known = self._workers[worker]
        assert task not in known.tasks, f"{task} was given to {worker} before"
        known.tasks[task] = cost_ms
        known.load_ms += cost_ms

    def end(self, worker: WorkerId, task: str) -> None:
        """Work ended, well or not.  Unknown workers and tasks are over already."""
        known = self._workers.get(worker)
        if known is None or task not in known.tasks:
            return
        known.load_ms -= known.tasks.pop(task)
        if not known.tasks:
            known.load_ms = 0.0  # sums of floats leave crumbs

    def loads_ms(self) -> dict[WorkerId, float]:
        """What each worker that can be given work has before it, in the order of joining."""
        return {
            worker: known.load_ms
            for worker, known in self._workers.items()
            if self._state(known) is WorkerState.READY
        }

    def _state(self, known: _Worker) -> WorkerState:
        if known.state is not WorkerState.READY:
            return known.state
        silent = self._now_s() - known.heard_s > self._silent_after_s
        return WorkerState.SILENT if silent else WorkerState.READY
