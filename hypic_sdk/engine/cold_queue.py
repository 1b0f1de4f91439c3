"""The one queue of cold work: misses of requests and warm jobs alike (design 3.6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from hypic_sdk.engine.batch import ColdStep
from hypic_sdk.engine.cold_job import ColdJob
from hypic_sdk.engine.cold_memory import ColdArea
from hypic_sdk.engine.request import Request
from hypic_sdk.engine.run_table import ColdChunk
from hypic_sdk.engine.warm_run import WarmRun
from hypic_sdk.prompt.segment import PromptPart, SegmentKey
from hypic_sdk.store.filling import Filling
from hypic_sdk.store.store import Store


@final
class ColdQueue:
    """Cold jobs from their admission to their commit; a key has one job, whoever waits for it."""

    def __init__(self, store: Store, area: ColdArea, *, chunk_tokens: int) -> None:
        self._store = store
        self._area = area
        self._chunk_tokens = chunk_tokens
        self._drop_fetch: Callable[[ColdJob], None] | None = None
        self._jobs: list[ColdJob] = []
        self._by_key: dict[SegmentKey, ColdJob] = {}

    def __contains__(self, job: ColdJob) -> bool:
        return job in self._jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def warm_tokens(self, *, background: bool) -> int:
        """Tokens still to be computed that no request waits for: of all warm jobs, or, for those
        that are not background ones, of their own kind."""
        return sum(
            job.remaining_tokens
            for job in self._jobs
            if not job.requests and (background or not job.is_background)
        )

    def job_of(self, key: SegmentKey) -> ColdJob | None:
        """The job to wait for instead of making the entry again.

        A job whose key was deleted meanwhile serves those who wait already, and nobody else.
        """
        job = self._by_key.get(key)
        return job if job is not None and job.filling.findable else None

    def on_drop(self, drop_fetch: Callable[[ColdJob], None]) -> None:
        """Call `drop_fetch` for a job that ends while its entry is on the way."""
        self._drop_fetch = drop_fetch

    def add(self, part: PromptPart, filling: Filling, stamp: int) -> ColdJob:
        """Queue an entry whose room was granted."""
        job = ColdJob(part, filling, stamp)
        self._jobs.append(job)
        self._by_key[job.key] = job
        return job

    @property
    def jobs(self) -> Sequence[ColdJob]:
        """All jobs that are computed here, in the order in which they came."""
        return [job for job in self._jobs if job.fetch is None]

    def chunk_tokens_of(self, job: ColdJob) -> int:
        """Rows of the job's next grid chunk."""
        return min(self._chunk_tokens, job.remaining_tokens)

    def take_chunk(self, job: ColdJob) -> ColdStep | None:
        """The job's next grid chunk; none while it must wait for work memory."""
        if job.memory is None and job.num_tokens > self._chunk_tokens:
            job.memory = self._area.take(job.num_tokens)
            if job.memory is None:
                return None
        start = job.done_tokens
        stop = start + self.chunk_tokens_of(job)
        chunk = ColdChunk(job.token_ids[start:stop], start, job.filling.entry, job.memory)
        return ColdStep(job, chunk, stop == job.num_tokens)

    def advance(self, step: ColdStep, *, cold_ms: float, stamp: int) -> None:
        """The chunk went through the model."""
        job = step.job
        job.done_tokens += len(step.chunk.token_ids)
        job.cold_ms += cold_ms
        job.stamp = stamp

    def commit(self, job: ColdJob) -> None:
        """The entry is complete: visible from now on, pinned for every request that waits."""
        self._remove(job)
        leases = [request.held.lease for request in job.requests]
        self._store.commit(job.filling, leases, cost_ms=job.cold_ms)

    def abandon(self, job: ColdJob) -> None:
        """Leave no entry."""
        self._remove(job)
        job.filling.close()

    def _remove(self, job: ColdJob) -> None:
        self._jobs.remove(job)
        if job.fetch is not None and self._drop_fetch is not None:
            self._drop_fetch(job)
        if self._by_key.get(job.key) is job:
            del self._by_key[job.key]
        if job.memory is not None:
            self._area.give_back(job.memory, job.num_tokens)
            job.memory = None

    def leave(self, waiter: Request | WarmRun) -> None:
        """The waiter ended; a job that nobody else waits for is given up."""
        for job in list(self._jobs):
            job.requests = [request for request in job.requests if request is not waiter]
            job.warm_runs = [run for run in job.warm_runs if run is not waiter]
            if not job.is_wanted:
                self.abandon(job)
