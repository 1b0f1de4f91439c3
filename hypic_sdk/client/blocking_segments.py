"""Registered segments and warm jobs of a server, for callers that wait."""

from __future__ import annotations

import builtins
import queue
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import Any, final

from hypic_sdk.client.async_segments import AsyncSegments, AsyncWarm, Warm, WarmPriority
from hypic_sdk.client.async_warm_job import AsyncWarmJob, ProgressListener
from hypic_sdk.client.loop_thread import LoopThread
from hypic_sdk.wire.segment_page import AsyncSegmentPage, SegmentPage
from hypic_sdk.wire.segments import (
    DeletedSegment,
    MetadataValue,
    SegmentList,
    SegmentObject,
    SegmentState,
    WarmJobObject,
)
from hypic_sdk.wire.shorthand import SegmentRef


@final
class Segments:
    """See `AsyncSegments`."""

    def __init__(self, inner: AsyncSegments, loop: LoopThread) -> None:
        self.warm = Warming(inner.warm, loop)
        self._inner = inner
        self._loop = loop

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
        """Register one text; see `AsyncSegments.create`."""
        return self._loop.run(
            self._inner.create(
                text,
                external_id=external_id,
                title=title,
                metadata=metadata,
                ttl=ttl,
                priority=priority,
                replace_external=replace_external,
                warm=warm,
            )
        )

    def create_many(
        self,
        texts: Iterable[str | Mapping[str, Any]],
        *,
        replace_external: bool = False,
        warm: Warm = "none",
    ) -> tuple[SegmentObject, ...]:
        """Register texts in order; see `AsyncSegments.create_many`."""
        return self._loop.run(
            self._inner.create_many(texts, replace_external=replace_external, warm=warm)
        )

    def retrieve(self, segment: SegmentRef) -> SegmentObject:
        """One segment by its id.  Raises SegmentNotFound."""
        return self._loop.run(self._inner.retrieve(segment))

    def find(self, external_id: str) -> SegmentObject:
        """One segment by the caller's own id.  Raises SegmentNotFound."""
        return self._loop.run(self._inner.find(external_id))

    def list(
        self,
        *,
        after: str | None = None,
        limit: int = 100,
        metadata: Mapping[str, MetadataValue] | None = None,
    ) -> SegmentPage:
        """A page of the registered segments, oldest first; iterated, all from there on."""

        async def ask() -> AsyncSegmentPage:
            return await self._inner.list(after=after, limit=limit, metadata=metadata)

        return self._page(self._loop.run(ask()))

    def _page(self, page: AsyncSegmentPage) -> SegmentPage:
        def following(after: str) -> SegmentPage:
            found = self._loop.run(page.next_page())
            assert found is not None, f"a page follows {after}"
            return self._page(found)

        found = SegmentList(data=page.data, has_more=page.has_more, last_id=page.last_id)
        return SegmentPage(found, following)

    def lookup(self, segments: Iterable[SegmentRef]) -> dict[str, SegmentState]:
        """Which are registered, and which are warm now; nothing is touched."""
        return self._loop.run(self._inner.lookup(segments))

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
        return self._loop.run(
            self._inner.update(
                segment,
                external_id=external_id,
                title=title,
                metadata=metadata,
                ttl=ttl,
                priority=priority,
                replace_external=replace_external,
            )
        )

    def pin(self, segment: SegmentRef, *, ttl: int | str | None = None) -> SegmentObject:
        """Keep a segment's entry from eviction; see `AsyncSegments.pin`."""
        return self._loop.run(self._inner.pin(segment, ttl=ttl))

    def unpin(self, segment: SegmentRef) -> SegmentObject:
        """Let a segment's entry be evicted again."""
        return self._loop.run(self._inner.unpin(segment))

    def delete(self, segment: SegmentRef) -> DeletedSegment:
        """Forget a segment: its text, its entry, every chain that contains it."""
        return self._loop.run(self._inner.delete(segment))

    def delete_many(
        self,
        segments: Iterable[SegmentRef] | None = None,
        *,
        external_ids: Iterable[str] | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
    ) -> builtins.list[DeletedSegment]:
        """Forget several, named in one of three ways; see `AsyncSegments.delete_many`."""
        deleting = self._inner.delete_many(segments, external_ids=external_ids, metadata=metadata)
        return self._loop.run(deleting)


@final
class Warming:
    """Warm jobs."""

    def __init__(self, inner: AsyncWarm, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def create(
        self, segments: Iterable[SegmentRef], *, priority: WarmPriority = "normal"
    ) -> WarmJob:
        """Put registered segments into the public pool; see `AsyncWarm.create`."""
        inner = self._loop.run(self._inner.create(segments, priority=priority))
        return WarmJob(inner, self._loop)

    def retrieve(self, job_id: str) -> WarmJob:
        """A job that was begun before.  Raises JobNotFound."""
        return WarmJob(self._loop.run(self._inner.retrieve(job_id)), self._loop)

    def list(self) -> builtins.list[WarmJobObject]:
        """The jobs that are readable, newest first."""
        return self._loop.run(self._inner.list())


@final
class WarmJob:
    """See `AsyncWarmJob`."""

    def __init__(self, inner: AsyncWarmJob, loop: LoopThread) -> None:
        self.id = inner.id
        self._inner = inner
        self._loop = loop

    @property
    def status(self) -> str:
        """running, succeeded, failed or cancelled, as last heard of."""
        return self._inner.status

    def snapshot(self) -> WarmJobObject:
        """The job as it stands now."""
        return self._loop.run(self._inner.snapshot())

    def events(self) -> Iterator[WarmJobObject]:
        """The job whenever it has changed, until it is over."""
        events = self._inner.events()

        async def following() -> WarmJobObject | None:
            return await anext(events, None)

        try:
            while (job := self._loop.run(following())) is not None:
                yield job
        finally:
            self._loop.run(_ended(events))

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
        told: queue.SimpleQueue[WarmJobObject | None] = queue.SimpleQueue()
        waiting = self._loop.submit(self._inner.wait(timeout_s, told.put))
        waiting.add_done_callback(lambda done: told.put(None))
        try:
            while (job := told.get()) is not None:
                if on_progress is not None:
                    on_progress(job)
        except BaseException:
            waiting.cancel()
            raise
        return waiting.result()

    def cancel(self) -> WarmJobObject:
        """Ask for its end; what is warm by then stays.  A job that is over is left as it is."""
        return self._loop.run(self._inner.cancel())


async def _ended(events: AsyncGenerator[WarmJobObject, None]) -> None:
    await events.aclose()
