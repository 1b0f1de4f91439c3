"""One warm request over several workers: its events come together again as one stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, final

from hypic_sdk.errors import WorkerLost
from hypic_sdk.prompt.segment import PromptPart, SegmentId
from hypic_sdk.router.assignment import WorkerId
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import SegmentStatus, WarmEvent, WarmRequest
from hypic_sdk.transport.worker_port import WorkerPort


class WarmWatcher(Protocol):
    """Who hears what becomes of a warm request; called on any thread."""

    def warmed(self, split: WarmSplit, worker: WorkerId, id_: SegmentId) -> None:
        """A worker holds a segment now."""
        ...

    def share_ended(self, split: WarmSplit, worker: WorkerId, missing: Sequence[SegmentId]) -> None:
        """A worker makes nothing more of it; `missing` are those of its share that it has not."""
        ...

    def warm_ended(self, split: WarmSplit) -> None:
        """Every share has ended."""
        ...


@final
class WarmSplit:
    """The shares of one warm request.  It ends once, when the last share has."""

    def __init__(
        self,
        message: WarmRequest,
        work: Mapping[WorkerId, Sequence[PromptPart]],
        ports: Mapping[WorkerId, WorkerPort],
        listener: Callable[[Event], None],
        watcher: WarmWatcher,
    ) -> None:
        """
        Args:
            work: which segments each worker warms.
        """
        self.message = message
        self.request_id = message.request_id
        self._shares = {
            worker: replace(message, request_id=f"{message.request_id}/{worker}", segments=parts)
            for worker, parts in ((worker, tuple(parts)) for worker, parts in work.items())
        }
        self._ports = ports
        self._listener = listener
        self._watcher = watcher
        self._lock = threading.Lock()
        self._running = {
            worker: {part.segment_id: None for part in share.segments if part.segment_id}
            for worker, share in self._shares.items()
        }  # what of each share is not there yet, in its order
        self._error: dict[str, Any] | None = None
        self._is_cancelled = False

    def begin(self) -> None:
        """Submit every share."""
        if not self._shares:
            self._end()
        for worker, share in self._shares.items():
            try:
                self._ports[worker].submit(share, partial(self._take, worker))
            except WorkerLost as error:
                payload = {**error.to_payload(), "request_id": share.request_id}
                self._take(worker, WarmEvent(share.request_id, error=payload, done=True))
        if self._is_cancelled:  # perhaps before there was anything to cancel
            self.cancel()

    def cancel(self) -> None:
        """Ask for the end of every share."""
        self._is_cancelled = True
        for worker, share in self._shares.items():
            self._ports[worker].cancel(share.request_id)

    def _take(self, worker: WorkerId, event: Event) -> None:
        assert isinstance(event, WarmEvent), "a warm request has warm events"
        if not event.done:
            kept = (SegmentStatus.HIT, SegmentStatus.COLD)
            if event.segment_id is not None and event.status in kept and event.error is None:
                with self._lock:
                    self._running.get(worker, {}).pop(event.segment_id, None)
                self._watcher.warmed(self, worker, event.segment_id)
            self._listener(replace(event, request_id=self.request_id))
            return
        with self._lock:
            missing = self._running.pop(worker, {})
            self._error = self._error or event.error
            is_over = not self._running
        self._watcher.share_ended(self, worker, tuple(missing))
        if is_over:
            self._end()

    def _end(self) -> None:
        self._watcher.warm_ended(self)
        error = self._error and {**self._error, "request_id": self.request_id}
        self._listener(WarmEvent(self.request_id, error=error, done=True))
