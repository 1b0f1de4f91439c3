"""A warm job: segments on their way into the public pool, with progress and cancel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import final

from hypic_sdk.errors import DeadlineExceeded, HypicError, RequestCancelled, WorkerLost
from hypic_sdk.service.warm_progress import WarmProgress
from hypic_sdk.service.worker_port import Event, WorkerPort
from hypic_sdk.transport.events import failed
from hypic_sdk.transport.messages import WarmEvent, WarmRequest
from hypic_sdk.wire.segments import WarmJobObject

ProgressListener = Callable[[WarmJobObject], None]

MAX_LOSSES = 3  # of workers under one job, before it ends with them
NEXT_WORKER_S = 300.0  # that a job waits for another worker: big models load for minutes
LOOK_EVERY_S = 0.25


@final
class WarmJob:
    """Runs in the background from when it is made; any thread may look, wait or cancel.

    A job that fails is told by its `status` and `errors`, also by `wait`: what was warmed stays.
    Whose worker is lost begins anew with the next one, its counts too: what it had warmed there is
    gone, what lies elsewhere is `already_warm`.
    """

    def __init__(
        self,
        message: WarmRequest,
        worker: WorkerPort,
        *,
        created_at: int,
        next_worker_s: float = NEXT_WORKER_S,
    ) -> None:
        """`next_worker_s`: how long it waits for another worker."""
        self.id = message.request_id
        self._message = message
        self._worker = worker
        self._created_at = created_at
        self._next_worker_s = next_worker_s
        self._num_losses = 0
        self._lost_s: float | None = None  # since when no worker has it
        self._waiting: threading.Timer | None = None  # until it looks for one again
        self._is_cancelled = False
        self._changed = threading.Condition()
        self._events: list[WarmEvent] = []
        self._watchers: list[Callable[[], None]] = []
        self._progress = self._new_progress()
        worker.submit(message, self._take)

    def _new_progress(self) -> WarmProgress:
        message = self._message
        return WarmProgress(
            message.request_id,
            num_segments=len(message.segments),
            num_tokens=sum(len(part.token_ids) for part in message.segments),
            created_at=self._created_at,
            background=message.background,
        )

    def _take(self, event: Event) -> None:
        """Called by the worker, on its thread."""
        assert isinstance(event, WarmEvent), "a warm job has warm events"
        with self._changed:
            if self._goes_on_after(event):
                self._waiting = threading.Timer(LOOK_EVERY_S, self._begin_anew)
                self._waiting.daemon = True
                self._waiting.start()
                return
            if not event.done:
                self._lost_s = None
            self._events.append(event)
            self._progress.feed(event)
            self._changed.notify_all()
            watchers = tuple(self._watchers)
        for watcher in watchers:
            watcher()

    def _goes_on_after(self, event: WarmEvent) -> bool:
        """Whether this is the loss of its worker, and another may still come; under the lock."""
        is_lost = event.error is not None and event.error.get("code") == WorkerLost.code
        if not (is_lost and event.done) or self._is_cancelled:
            return False
        if self._lost_s is None:
            self._lost_s = time.monotonic()
            self._num_losses += 1
        waited_s = time.monotonic() - self._lost_s
        return self._num_losses <= MAX_LOSSES and waited_s < self._next_worker_s

    def _begin_anew(self) -> None:
        """Try whether there is a worker again; on a thread of its own."""
        with self._changed:
            self._waiting = None
            if self._is_cancelled:
                return
            self._progress = self._new_progress()
        try:
            self._worker.submit(self._message, self._take)
        except HypicError as error:
            self._take(failed(self.id, error, is_warm=True))
        if self._is_cancelled:  # perhaps before there was anything to cancel
            self._worker.cancel(self.id)

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher` after each change, on the worker's thread: it must be quick.

        Returns:
            What ends it.
        """
        with self._changed:
            self._watchers.append(watcher)
        return lambda: self._unwatch(watcher)

    def _unwatch(self, watcher: Callable[[], None]) -> None:
        with self._changed:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

    def snapshot(self) -> WarmJobObject:
        """The job as it stands."""
        with self._changed:
            return self._progress.snapshot()

    @property
    def status(self) -> str:
        """running, succeeded, failed or cancelled."""
        return self.snapshot().status

    def events(self) -> Iterator[WarmEvent]:
        """Every event from the first, waiting for those to come; ends with the job."""
        position = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda at=position: len(self._events) > at)  # type: ignore[misc]
                fresh = self._events[position:]
            yield from fresh
            position += len(fresh)
            if fresh[-1].done:
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
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        num_seen = 0
        while True:
            num_seen, job = self._wait_for_more(num_seen, deadline_s)
            if on_progress is not None:
                on_progress(job)
            if job.status != "running":
                return job

    def _wait_for_more(self, num_seen: int, deadline_s: float | None) -> tuple[int, WarmJobObject]:
        """The number of events and the job, once there are more than `num_seen` or it is over."""
        with self._changed:
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            came = self._changed.wait_for(
                lambda: len(self._events) > num_seen or self._progress.is_over, left_s
            )
            if not came:
                raise DeadlineExceeded("the warm job is not over yet", request_id=self.id)
            return len(self._events), self._progress.snapshot()

    def cancel(self) -> None:
        """Ask for its end; what is warm by then stays.  A job that is over is left as it is."""
        with self._changed:
            self._is_cancelled = True
            waiting, self._waiting = self._waiting, None
        if waiting is None:
            self._worker.cancel(self.id)
            return
        waiting.cancel()
        error = RequestCancelled("the request was cancelled")
        self._take(failed(self.id, error, is_warm=True))
