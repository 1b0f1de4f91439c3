"""The warm jobs of one tenant: running ones, and for a while those that are over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import final

from hypic_sdk.errors import JobNotFound, QueueFull
from hypic_sdk.service import WarmJob
from hypic_sdk.wire.segments import WarmJobObject

_MIN_INTERVAL_S = 0.1  # between two tellings of one job's progress


@final
class WarmBoard:
    """Used on the event loop only."""

    def __init__(
        self, *, max_running: int, keep_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_running = max_running
        self._keep_s = keep_s
        self._clock = clock
        self._jobs: dict[str, WarmJob] = {}
        self._ended_s: dict[str, float] = {}
        self._num_opening = 0  # that have a place and are not added yet

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one more job, which is added inside of the block or not at all.

        Raises:
            QueueFull: as many jobs run, or are about to, as may run.
        """
        num_running = self.num_running + self._num_opening
        if num_running >= self._max_running:
            raise QueueFull(
                f"{num_running} warm jobs are running, no more may",
                quota="warm_jobs",
                limit=self._max_running,
            )
        self._num_opening += 1
        try:
            yield
        finally:
            self._num_opening -= 1

    @property
    def num_running(self) -> int:
        """Jobs that are not over."""
        self._tidy()
        return len(self._jobs) - len(self._ended_s)

    def add(self, job: WarmJob) -> None:
        """Keep a job that was just begun."""
        self._jobs[job.id] = job

    def find(self, job_id: str) -> WarmJob:
        """Raises JobNotFound."""
        self._tidy()
        job = self._jobs.get(job_id)
        if job is None:
            raise JobNotFound(f"no warm job {job_id!r}", job_id=job_id)
        return job

    def snapshots(self) -> list[WarmJobObject]:
        """All that are readable, newest first."""
        self._tidy()
        return [job.snapshot() for job in reversed(self._jobs.values())]

    def _tidy(self) -> None:
        """Note which jobs are over, and forget those that have been for long."""
        now_s = self._clock()
        for job_id, job in list(self._jobs.items()):
            if job_id not in self._ended_s:
                if job.status != "running":
                    self._ended_s[job_id] = now_s
            elif now_s - self._ended_s[job_id] > self._keep_s:
                del self._jobs[job_id], self._ended_s[job_id]


async def progress(job: WarmJob) -> AsyncIterator[WarmJobObject]:
    """The job as it stands now, and again when it has changed, until it is over."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    unwatch = job.watch(lambda: _tell(loop, changed))
    try:
        while True:
            changed.clear()
            snapshot = job.snapshot()
            yield snapshot
            if snapshot.status != "running":
                return
            await changed.wait()
            # many segments a second are told of as one change
            await asyncio.sleep(_MIN_INTERVAL_S)
    finally:
        unwatch()


def _tell(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(changed.set)


async def ended(job: WarmJob) -> WarmJobObject:
    """Wait for the end of a job."""
    async for snapshot in progress(job):
        last = snapshot
    return last
