"""Steps one after the other, the next launched before the tokens of the one before are read.

A step of nothing but decode rows is launched while the step before it still runs: its ids are those
that were drawn there, taken on the device.  Then the tokens of the step before are read.  So the
host's work hides behind the device's.  A reply whose end is found so has one row too many in the
step that runs by then; what was drawn for it is dropped.  That row wrote behind the reply's last
token, to memory that nobody else has before a later forward writes it, and forwards run in order.

Where the host must know a token before the next row of it is run, or what a forward saves is kept,
a step is read before the next one is composed: it is synchronous, and counted by its reason.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, final

from hypic_sdk.engine.batch import Batch, StepResult
from hypic_sdk.engine.launched import Launched
from hypic_sdk.engine.request import Reply
from hypic_sdk.engine.retention import Retention
from hypic_sdk.engine.runner import Runner
from hypic_sdk.engine.scheduler import Scheduler
from hypic_sdk.errors import HypicError, WorkerError

logger = logging.getLogger(__name__)


class Synchronous(StrEnum):
    """Why a step was read before the next one was launched."""

    OTHER_ROWS = "rows of prompts"  # what they save is looked at, and kept
    KEPT_STATE = "a state that is kept"  # at a reply's end, which must be known before it goes on
    LATE_MASKS = "nothing but late masks"
    LIVE_CHECKS = "live checks"


@dataclass(slots=True)
class StepCounts:
    """Which steps overlapped, since the engine began."""

    num_overlapped: int = 0  # launched before the tokens of the step before were read
    num_dropped: int = 0  # tokens that were drawn behind an end
    synchronous: Counter[Synchronous] = field(default_factory=Counter)

    def facts(self) -> dict[str, Any]:
        """The same as plain values, each reason by its name, also those that never came up."""
        return {
            "num_overlapped": self.num_overlapped,
            "num_dropped": self.num_dropped,
            "synchronous": {
                reason.name.lower(): self.synchronous[reason] for reason in Synchronous
            },
        }


@final
class Pipeline:
    """Runs batches, and books what they gave; at most one of them is not read yet."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        retention: Retention,
        clock: Callable[[], float],
        *,
        overlaps: bool,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._retention = retention
        self._clock = clock
        self._in_flight: Launched | None = None
        self.counts = StepCounts() if overlaps else None  # none: every step is synchronous

    @property
    def is_busy(self) -> bool:
        """Whether tokens are drawn that nobody has read."""
        return self._in_flight is not None

    def settle(self) -> None:
        """Read what is in flight: the next batch depends on it."""
        launched, self._in_flight = self._in_flight, None
        if launched is None:
            return
        for reply in launched.replies:
            reply.pending_row = None
        self._read(launched)

    def run(self, batch: Batch) -> None:
        """One forward; if it fails, so do the requests in it, and nobody else."""
        if self.counts is None:  # so nothing is in flight
            self._run_alone(batch)
            return
        reason = self._why_synchronous(batch)
        if reason is None:
            self._launch_ahead(batch, self.counts)
            return
        self.settle()
        self.counts.synchronous[reason] += 1
        self._run_alone(batch)

    def _why_synchronous(self, batch: Batch) -> Synchronous | None:
        if self._runner.on_logits is not None:
            return Synchronous.LIVE_CHECKS
        if not batch.is_drawing_only:
            return Synchronous.OTHER_ROWS
        if not batch.decodes:
            return Synchronous.LATE_MASKS
        if any(reply.is_kept for reply in batch.decodes):
            return Synchronous.KEPT_STATE
        return None

    def _launch_ahead(self, batch: Batch, counts: StepCounts) -> None:
        """Launch; then read the step before."""
        before, self._in_flight = self._in_flight, None
        try:
            launched = self._runner.launch(batch)
        except Exception as error:
            if before is not None:
                self._read(before)
            self._fail(batch, error)
            return
        counts.num_overlapped += before is not None
        self._scheduler.launched(batch, launched.replies, launched.held)
        for reply in batch.decodes:
            reply.pending_row = None
        for row, reply in enumerate(launched.replies):
            reply.pending_row = row
        self._in_flight = launched
        if before is not None:
            self._read(before)

    def _read(self, launched: Launched) -> None:
        """Wait for its tokens, and book them."""
        try:
            result = launched.result()
        except Exception as error:
            self._fail(launched.batch, error, launched.replies)
        else:
            self._commit(launched.batch, result)

    def _run_alone(self, batch: Batch) -> None:
        try:
            launched = self._runner.launch(batch)
        except Exception as error:
            self._fail(batch, error)
            return
        self._scheduler.launched(batch, launched.replies, launched.held)
        self._read(launched)

    def _fail(self, batch: Batch, error: Exception, drawn: Sequence[Reply] = ()) -> None:
        if not isinstance(error, HypicError):
            logger.error("a forward failed rows=%d", batch.num_rows, exc_info=error)
            error = WorkerError(f"the forward failed: {error}")
        self._scheduler.fail(batch, error, drawn)

    def _commit(self, batch: Batch, result: StepResult) -> None:
        num_dropped = self._scheduler.commit(batch, result, self._clock())
        if self.counts is not None:
            self.counts.num_dropped += num_dropped
        if batch.colds or batch.assemblies:
            made = [step.job.key for step in batch.colds if step.is_last]
            self._retention.entries_made(made)
