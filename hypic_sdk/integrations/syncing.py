"""Many texts registered and warm: progress is told, it can be stopped, a second time is free."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, final

from hypic_sdk.errors import DeadlineExceeded
from hypic_sdk.wire.limits import MAX_IDS_PER_CALL, MAX_SEGMENTS_PER_CALL
from hypic_sdk.wire.segments import WarmJobObject

_CALL_IDS = MAX_IDS_PER_CALL
_CANCEL_POLL_S = 1.0  # how long a warm job may be silent before a cancel is seen

Item = str | Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True)
class SyncReport:
    """How far a `sync` has come, or how it ended.

    `num_warm` counts segments in the pool (also those that were there before), `num_not_kept` those
    too short for it; `computed_tokens` is what warming cost.
    """

    num_texts: int
    num_registered: int = 0
    num_created: int = 0  # of the registered, those that the server did not know
    num_warm: int = 0
    num_not_kept: int = 0
    num_failed: int = 0
    computed_tokens: int = 0
    reused_tokens: int = 0
    is_cancelled: bool = False


ProgressListener = Callable[[SyncReport], None]


@final
class Sync:
    """One run."""

    def __init__(
        self,
        segments: Any,
        on_progress: ProgressListener | None = None,
        cancel: threading.Event | None = None,
    ) -> None:
        """
        Args:
            segments: those of a client that waits.
            on_progress: called on this thread whenever something has changed, and at the end.
            cancel: set it, from any thread, to stop; what is done by then stays.
        """
        self._segments = segments
        self._on_progress = on_progress
        self._cancel = cancel or threading.Event()
        self._report = SyncReport(0)

    def run(self, items: Sequence[Item], *, warm: bool = True) -> tuple[SyncReport, list[Any]]:
        """Register texts and put them into the pool: how it ended, and the registered segments.

        Raises:
            HypicError: the server does not take them.
        """
        self._report = SyncReport(len(items))
        made = self._register(iter(items))
        ids = [one.id for one in made]
        for at in range(0, len(ids) if warm else 0, _CALL_IDS):
            if not self._cancel.is_set():
                self._warm(ids[at : at + _CALL_IDS])
        if self._cancel.is_set():
            self._tell(is_cancelled=True)
        return self._report, made

    def _tell(self, **changes: Any) -> None:
        self._report = replace(self._report, **changes)
        if self._on_progress is not None:
            self._on_progress(self._report)

    def _register(self, items: Iterator[Item]) -> list[Any]:
        made: list[Any] = []
        while not self._cancel.is_set() and (batch := [*islice(items, MAX_SEGMENTS_PER_CALL)]):
            fresh = self._segments.create_many(batch)
            made.extend(fresh)
            num_created = self._report.num_created + sum(bool(one.created) for one in fresh)
            self._tell(num_registered=len(made), num_created=num_created)
        return made

    def _warm(self, ids: list[str]) -> None:
        before, job = self._report, self._segments.warm.create(ids)

        def told(now: WarmJobObject) -> None:
            if self._cancel.is_set() and now.status == "running":
                job.cancel()
            self._tell(
                **{name: getattr(before, name) + num for name, num in _progress(now).items()}
            )

        while True:
            try:
                job.wait(_CANCEL_POLL_S, told)
                return
            except DeadlineExceeded:
                if self._cancel.is_set():
                    job.cancel()


def _progress(job: WarmJobObject) -> dict[str, int]:
    counts = job.counts
    return {
        "num_warm": counts.done + counts.already_warm,
        "num_not_kept": counts.not_kept,
        "num_failed": counts.failed,
        "computed_tokens": job.tokens.computed,
        "reused_tokens": job.tokens.reused,
    }
