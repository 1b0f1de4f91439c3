"""Ends requests whose time is over, whatever became of the workers that were to do so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import final

from hypic_sdk.router.in_flight import Dispatched

GRACE_S = 1.0
"""Beyond its time, for the engine to end a request itself: it knows more to tell."""

POLL_S = 0.2


@final
class OverdueWatch:
    """A thread that looks through the requests in flight while any of them has a time."""

    def __init__(
        self,
        in_flight: Callable[[], Sequence[Dispatched]],
        end: Callable[[Dispatched], None],
    ) -> None:
        """
        Args:
            in_flight: requests that have not ended, from any thread.
            end: called on the watch's thread for each that is overdue.
        """
        self._in_flight = in_flight
        self._end = end
        self._lock = threading.Lock()
        self._is_running = False

    def begin(self, known: Dispatched) -> None:
        """A request is in flight from now on."""
        if known.deadline_s is None:
            return
        with self._lock:
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._run, name="hypic-overdue", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(POLL_S)
            with self._lock:
                timed = [known for known in self._in_flight() if known.deadline_s is not None]
                if not timed:
                    self._is_running = False
                    return
            now_s = time.monotonic()
            for known in timed:
                if known.deadline_s is not None and now_s > known.deadline_s + GRACE_S:
                    self._end(known)
