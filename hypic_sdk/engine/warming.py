"""Warm requests: segments put into the pool ahead of need, a few at a time."""

from __future__ import annotations

from typing import final

from hypic_sdk.engine.cold_job import ColdJob
from hypic_sdk.engine.cold_queue import ColdQueue
from hypic_sdk.engine.plan import Gap, entry_part, gap_of
from hypic_sdk.engine.settings import EngineSettings
from hypic_sdk.engine.warm_run import WarmRun
from hypic_sdk.errors import HypicError, PoolExhausted, RequestCancelled
from hypic_sdk.prompt.segment import PromptPart
from hypic_sdk.store.entries import EntrySpec, Need
from hypic_sdk.store.store import Store
from hypic_sdk.transport.messages import SegmentStatus, WarmEvent


@final
class Warming:
    """Feeds the cold queue from warm requests, first come first served, background ones last.

    Segments are admitted one by one, while those in the queue would fill less than one step, and
    never while a request waits for room.
    """

    def __init__(
        self, store: Store, cold: ColdQueue, settings: EngineSettings, *, timeout_s: float
    ) -> None:
        self._store = store
        self._cold = cold
        self._settings = settings
        self._timeout_s = timeout_s
        self._runs: dict[str, WarmRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._runs

    def add(self, run: WarmRun) -> None:
        """Queue a warm request."""
        self._runs[run.request_id] = run

    def advance(self, *, room_is_wanted: bool, now_s: float, stamp: int) -> list[WarmEvent]:
        """Look at the next segments of every run, as far as the queue takes them."""
        events: list[WarmEvent] = []
        # sorting is stable: first come, first served among those of one kind
        for run in sorted(self._runs.values(), key=_rank):
            self._advance_run(run, events, room_is_wanted=room_is_wanted, now_s=now_s, stamp=stamp)
        return events + self._finished()

    def _advance_run(
        self,
        run: WarmRun,
        events: list[WarmEvent],
        *,
        room_is_wanted: bool,
        now_s: float,
        stamp: int,
    ) -> None:
        background = run.message.background
        while run.parts and (
            run.message.for_request
            or self._cold.warm_tokens(background=background) < self._settings.step_tokens
        ):
            part = run.parts[0]
            try:
                settled = self._look_at(run, part, may_begin=not room_is_wanted, stamp=stamp)
            except PoolExhausted as error:
                settled = failure(run, part, error)
            if settled is None:
                if run.blocked_since_s is None:
                    run.blocked_since_s = now_s
                if now_s - run.blocked_since_s <= self._timeout_s:
                    return
                settled = failure(run, part, self._no_room(run, part))
            run.blocked_since_s = None
            run.parts.popleft()
            events.extend(settled)

    def _look_at(
        self, run: WarmRun, part: PromptPart, *, may_begin: bool, stamp: int
    ) -> list[WarmEvent] | None:
        """Events of the segment: empty while it is being made, none if it must wait for room."""
        gap = self._gap(run, part)
        if gap is None:
            return [_event(run, part, SegmentStatus.LIVE)]
        source = entry_part(part, gap)
        if self._store.probe(gap.key, source.packed):
            return [_event(run, part, SegmentStatus.HIT)]
        job = self._cold.job_of(gap.key)
        if job is None:
            if not may_begin:
                return None
            lease = self._store.admit(_need(run, gap, source))
            if lease is None:
                return None
            with lease:
                job = self._cold.add(source, lease.detach(gap.key), stamp)
        job.warm_runs.append(run)
        run.pending.setdefault(gap.key, []).append(part)
        return []

    def _gap(self, run: WarmRun, part: PromptPart) -> Gap | None:
        """What is kept of a segment; none: nothing."""
        settings = self._settings
        namespace = settings.cache_namespace(run.message.namespace)
        return gap_of(part, 0, 0, settings.reuse, settings.conv_width, namespace)

    def _no_room(self, run: WarmRun, part: PromptPart) -> PoolExhausted:
        gap = self._gap(run, part)
        assert gap is not None, "a segment that is not kept waits for no room"
        return self._store.no_room(
            _need(run, gap, entry_part(part, gap)),
            f"no room for the segment within {self._timeout_s:g} s",
            instead="warm when fewer requests run",
        )

    def committed(self, job: ColdJob) -> list[WarmEvent]:
        """An entry is there: tell those who wait."""
        return [
            _event(run, part, SegmentStatus.COLD, cold_ms=job.cold_ms)
            for run in job.warm_runs
            for part in run.pending.pop(job.key, ())
        ]

    def failed(self, job: ColdJob, error: HypicError) -> list[WarmEvent]:
        """An entry will not be there."""
        return [
            event
            for run in job.warm_runs
            for part in run.pending.pop(job.key, ())
            for event in failure(run, part, error)
        ]

    def cancel(self, request_id: str) -> list[WarmEvent]:
        """Give up what nobody else waits for."""
        return self._end(request_id, RequestCancelled("the warm request was cancelled"))

    def abort(self, error: HypicError) -> list[WarmEvent]:
        """Give up everything."""
        return [event for request_id in list(self._runs) for event in self._end(request_id, error)]

    def _end(self, request_id: str, error: HypicError) -> list[WarmEvent]:
        self._cold.leave(self._runs.pop(request_id))
        payload = {**error.to_payload(), "request_id": request_id}
        return [WarmEvent(request_id, error=payload, done=True)]

    def _finished(self) -> list[WarmEvent]:
        over = [run for run in self._runs.values() if not run.parts and not run.pending]
        for run in over:
            del self._runs[run.request_id]
        return [WarmEvent(run.request_id, done=True) for run in over]


def _rank(run: WarmRun) -> int:
    """What a request waits for comes first, background work last."""
    return 0 if run.message.for_request else 1 + run.message.background


def _need(run: WarmRun, gap: Gap, source: PromptPart) -> Need:
    """Room for the entry of a gap, which is computed from `source`."""
    namespace = run.message.namespace
    spec = EntrySpec(gap.key, gap.entry_tokens, gap.entry_seam, namespace, source.packed)
    return Need(new_entries=(spec,))


def _event(
    run: WarmRun, part: PromptPart, status: SegmentStatus, *, cold_ms: float = 0.0
) -> WarmEvent:
    return WarmEvent(
        run.request_id, part.segment_id, status, num_tokens=len(part.token_ids), cold_ms=cold_ms
    )


def failure(run: WarmRun, part: PromptPart, error: HypicError) -> list[WarmEvent]:
    """The events of a segment that can not be made."""
    return [
        WarmEvent(
            run.request_id,
            part.segment_id,
            num_tokens=len(part.token_ids),
            error={**error.to_payload(), "request_id": run.request_id},
        )
    ]
