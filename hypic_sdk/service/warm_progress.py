"""How far a warm job is, counted from its events.  No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, final

from hypic_sdk.transport.messages import SegmentStatus, WarmEvent
from hypic_sdk.wire.segments import WarmCounts, WarmFailure, WarmJobObject, WarmTokens

_MAX_ERRORS = 100  # that are told; all are counted


@final
class WarmProgress:
    """Feeds on a warm job's events; `snapshot` is the job as it stands."""

    def __init__(
        self,
        job_id: str,
        *,
        num_segments: int,
        num_tokens: int,
        created_at: int,
        background: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._started_s = clock()
        self._job_id = job_id
        self._created_at = created_at
        self._background = background
        self._num_segments = num_segments
        self._num_tokens = num_tokens
        self._counts = dict.fromkeys(SegmentStatus, 0)
        self._tokens = dict.fromkeys(SegmentStatus, 0)
        self._num_failed = 0
        self._cold_ms = 0.0
        self._errors: list[WarmFailure] = []
        self._status: Literal["running", "succeeded", "failed", "cancelled"] = "running"

    @property
    def is_over(self) -> bool:
        """Whether the last event has come."""
        return self._status != "running"

    def feed(self, event: WarmEvent) -> None:
        """Count one event."""
        if event.error is not None:
            self._note_error(event.segment_id, event.error)
        elif event.status is not None:
            self._counts[event.status] += 1
            self._tokens[event.status] += event.num_tokens
            self._cold_ms += event.cold_ms
        if event.segment_id is not None and event.error is not None:
            self._num_failed += 1
        if event.done:
            self._status = self._final_status(event)

    def _final_status(self, event: WarmEvent) -> Literal["succeeded", "failed", "cancelled"]:
        if event.error is not None:
            was_cancelled = event.error.get("code") == "request_cancelled"
            return "cancelled" if was_cancelled else "failed"
        return "failed" if self._num_failed else "succeeded"

    def _note_error(self, segment_id: str | None, error: dict[str, object]) -> None:
        if len(self._errors) < _MAX_ERRORS:
            self._errors.append(
                WarmFailure(
                    segment_id=segment_id,
                    code=str(error.get("code")),
                    message=str(error.get("message")),
                )
            )

    def _eta_s(self) -> float | None:
        """By the tokens that were computed so far; those that were there cost nothing."""
        computed = self._tokens[SegmentStatus.COLD]
        if self.is_over or not computed:
            return None
        left = max(0, self._num_tokens - sum(self._tokens.values()))
        return (self._clock() - self._started_s) * left / computed

    def snapshot(self) -> WarmJobObject:
        """The job as it stands; after a cancel, what was not reached counts as cancelled."""
        done = sum(self._counts.values()) + self._num_failed
        return WarmJobObject(
            id=self._job_id,
            status=self._status,
            priority="background" if self._background else "normal",
            created_at=self._created_at,
            counts=WarmCounts(
                total=self._num_segments,
                done=self._counts[SegmentStatus.COLD],
                already_warm=self._counts[SegmentStatus.HIT],
                not_kept=self._counts[SegmentStatus.LIVE],
                failed=self._num_failed,
                cancelled=self._num_segments - done if self._status == "cancelled" else 0,
            ),
            tokens=WarmTokens(
                total=self._num_tokens,
                computed=self._tokens[SegmentStatus.COLD],
                reused=self._tokens[SegmentStatus.HIT],
            ),
            cold_ms=self._cold_ms,
            eta_s=self._eta_s(),
            errors=tuple(self._errors),
        )
