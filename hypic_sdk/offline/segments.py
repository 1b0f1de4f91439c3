"""Registered segments and warm jobs of a service in this process, with the client's calls."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Literal, final

from hypic_sdk.errors import JobNotFound, from_payload
from hypic_sdk.service import Service, WarmJob
from hypic_sdk.service.warm_job import ProgressListener
from hypic_sdk.wire.limits import MAX_SEGMENTS_PER_CALL
from hypic_sdk.wire.segment_page import SegmentPage
from hypic_sdk.wire.segment_shorthand import (
    checked_limit,
    raise_failure,
    register_request,
    segment_items,
    segment_update,
    selection,
    warm_request,
)
from hypic_sdk.wire.segments import (
    DeletedSegment,
    MetadataValue,
    RegisterFailure,
    SegmentObject,
    SegmentState,
    WarmJobObject,
)
from hypic_sdk.wire.shorthand import SegmentRef, checked_id, segment_ids

Warm = Literal["none", "async", "wait"]
WarmPriority = Literal["background", "normal"]

_JOBS_KEPT = 256  # warm jobs that are readable, the latest ones


@final
class LocalSegments:
    """Registered segments; the calls are those of the client's `segments`."""

    def __init__(self, service: Service) -> None:
        self.warm = LocalWarm(service)
        self._service = service

    def create(
        self,
        text: str,
        *,
        external_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
        ttl: int | str | None = None,
        priority: int | None = None,
        replace_external: bool = False,
        warm: Warm = "none",
    ) -> SegmentObject:
        """Register one text; again, it is the same segment.

        Args:
            ttl: how long it is kept, seconds or a text like `12h`; "never" takes an end back.
            priority: 0 to 99: entries of lower priority go first when room is needed.
            warm: also put it into the public pool: in the background, or before this returns.
        """
        item = {
            "text": text,
            "external_id": external_id,
            "title": title,
            "metadata": metadata,
            "ttl": ttl,
            "priority": priority,
        }
        [segment] = self.create_many([item], replace_external=replace_external, warm=warm)
        return segment

    def create_many(
        self,
        texts: Iterable[str | Mapping[str, Any]],
        *,
        replace_external: bool = False,
        warm: Warm = "none",
    ) -> tuple[SegmentObject, ...]:
        """Register texts in order: strings, or items of the arguments of `create`.

        Raises:
            RequestError, PoolExhausted: of the first that can not be registered; the others are.
            HypicError: with `warm="wait"`, why the first that is not warm is not; all are
                registered.
        """
        # no upkeep runs in this process: what is over goes when something comes
        self._service.segments.keeper.sweep()
        items = segment_items(texts)
        segments: list[SegmentObject] = []
        failures: list[RegisterFailure] = []
        while batch := [*islice(items, MAX_SEGMENTS_PER_CALL)]:
            request = register_request(batch, replace_external=replace_external)
            reply = self._service.segments.register_each(request)
            segments.extend(reply.data)
            failures.extend(reply.errors)
        if failures:
            raise from_payload(failures[0].model_dump())
        if segments and warm != "none":
            job = self.warm.create(segments)
            if warm == "wait":
                raise_failure(job.wait())
        return tuple(segments)

    def retrieve(self, segment: SegmentRef) -> SegmentObject:
        """One segment by its id.  Raises SegmentNotFound."""
        return self._service.segments.retrieve(checked_id(segment))

    def find(self, external_id: str) -> SegmentObject:
        """One segment by the caller's own id.  Raises SegmentNotFound."""
        return self._service.segments.find_external(external_id)

    def list(
        self,
        *,
        after: str | None = None,
        limit: int = 100,
        metadata: Mapping[str, MetadataValue] | None = None,
    ) -> SegmentPage:
        """A page of the registered segments, oldest first; iterated, all from there on.

        Args:
            metadata: those whose metadata say all of this.
        """
        checked_limit(limit)
        found = self._service.segments.list_segments(after=after, limit=limit, says=metadata)
        following = partial(self.list, limit=limit, metadata=metadata)
        return SegmentPage(found, lambda last_id: following(after=last_id))

    def lookup(self, segments: Iterable[SegmentRef]) -> dict[str, SegmentState]:
        """Which are registered, and which are warm now; nothing is touched."""
        return self._service.segments.lookup(segment_ids(segments))

    def update(
        self,
        segment: SegmentRef,
        *,
        external_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
        ttl: int | str | None = None,
        priority: int | None = None,
        replace_external: bool = False,
    ) -> SegmentObject:
        """Say something else about a segment; what is left out stays as it is."""
        values = {
            "external_id": external_id,
            "title": title,
            "metadata": metadata,
            "ttl": ttl,
            "priority": priority,
            "replace_external": replace_external,
        }
        return self._service.segments.update(checked_id(segment), segment_update(values))

    def pin(self, segment: SegmentRef, *, ttl: int | str | None = None) -> SegmentObject:
        """Keep a segment's entry from eviction, for some time or until it is unpinned.

        Raises:
            PinBudgetExhausted: as much is pinned as may be.
        """
        update = segment_update({"pin": {"ttl": ttl}})
        return self._service.segments.update(checked_id(segment), update)

    def unpin(self, segment: SegmentRef) -> SegmentObject:
        """Let a segment's entry be evicted again."""
        return self._service.segments.update(checked_id(segment), segment_update({"pin": False}))

    def delete(self, segment: SegmentRef) -> DeletedSegment:
        """Forget a segment: its text, its entry, every chain that contains it."""
        return self._service.segments.delete(checked_id(segment))

    def delete_many(
        self,
        segments: Iterable[SegmentRef] | None = None,
        *,
        external_ids: Iterable[str] | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
    ) -> builtins.list[DeletedSegment]:
        """Forget several, named in one of three ways; unknown ones are told as not deleted."""
        chosen = selection(segments, external_ids, metadata)
        return self._service.segments.delete_many(chosen).data


@final
class LocalWarm:
    """Warm jobs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._jobs: dict[str, LocalWarmJob] = {}
        self._lock = threading.Lock()

    def create(
        self, segments: Iterable[SegmentRef], *, priority: WarmPriority = "normal"
    ) -> LocalWarmJob:
        """Put registered segments into the public pool, in the background.

        Args:
            priority: a "background" job yields to requests.
        """
        job = LocalWarmJob(self._service.segments.warm(warm_request(segments, priority=priority)))
        with self._lock:
            self._jobs[job.id] = job
            while len(self._jobs) > _JOBS_KEPT:
                del self._jobs[next(iter(self._jobs))]
        return job

    def retrieve(self, job_id: str) -> LocalWarmJob:
        """A job that was begun before.  Raises JobNotFound."""
        with self._lock:
            job = self._jobs.get(job_id)
        if job is None:
            raise JobNotFound(f"no warm job {job_id!r}", job_id=job_id)
        return job

    def list(self) -> builtins.list[WarmJobObject]:
        """The jobs that are readable, newest first."""
        with self._lock:
            jobs = [*self._jobs.values()]
        return [job.snapshot() for job in reversed(jobs)]


@final
class LocalWarmJob:
    """A job as the client tells of it: `status`, `snapshot`, `events`, `wait`, `cancel`."""

    def __init__(self, job: WarmJob) -> None:
        self.id = job.id
        self._job = job

    @property
    def status(self) -> str:
        """running, succeeded, failed or cancelled."""
        return self._job.status

    def snapshot(self) -> WarmJobObject:
        """The job as it stands now."""
        return self._job.snapshot()

    def events(self) -> Iterator[WarmJobObject]:
        """The job whenever it has changed, until it is over."""
        for _ in self._job.events():
            now = self._job.snapshot()
            yield now
            if now.status != "running":
                return

    def wait(
        self, timeout_s: float | None = None, on_progress: ProgressListener | None = None
    ) -> WarmJobObject:
        """Wait for the end of the job.

        Args:
            on_progress: called on this thread with the job as it stands, whenever it has changed
                and at the end.
        Raises:
            DeadlineExceeded: not over after `timeout_s`; the job goes on.
        """
        return self._job.wait(timeout_s, on_progress)

    def cancel(self) -> WarmJobObject:
        """Ask for its end; what is warm by then stays.  A job that is over is left as it is."""
        self._job.cancel()
        return self._job.snapshot()
