"""When the graph of a bucket is worth its capture: once going without it has cost as much."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import final

from hypic_sdk.engine.graph_tables import Bucket

CAPTURE_S = 0.5  # what a capture is taken to cost, until some were made
SHARE = 0.1  # of the time, at most, that captures take


@final
class CaptureRule:
    """Decides from what was seen so far, by the clock alone.

    Everybody waits for a capture, and one of sizes that come twice never pays.  Which will come
    again is not known; so a bucket is rented before it is bought: it runs eagerly until the
    launches, which are the most that a graph could have saved, took as long as a capture.  What is
    lost to not knowing is then never more than what knowing would have cost.  And after a capture
    there is none for nine times as long, so that many at once do not add up to a standstill.
    """

    def __init__(
        self, asks: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            asks: a bucket is captured when it is asked for so often, whatever it costs; none: by
                the rule.
            clock: seconds.
        """
        self._asks = asks
        self._clock = clock
        self._asked: Counter[Bucket] = Counter()
        self._eager_s: float | None = None  # the least that an eager forward took the host
        self._capture_s: float | None = None  # the least that a capture took, but for the first
        self._num_captured = 0
        self._pause_until_s = 0.0
        self._began_s = 0.0

    def is_worth(self, bucket: Bucket) -> bool:
        """Whether to capture a bucket that is asked for, once more, now."""
        self._asked[bucket] += 1
        if self._asks is not None:
            return self._asked[bucket] >= self._asks
        if self._eager_s is None:
            return False
        capture_s = CAPTURE_S if self._capture_s is None else self._capture_s
        lost_s = (self._asked[bucket] - 1) * self._eager_s
        return lost_s >= capture_s and self._clock() >= self._pause_until_s

    def begin(self) -> None:
        """An eager forward, or a capture, begins."""
        self._began_s = self._clock()

    def ran_eagerly(self) -> None:
        """The forward that began has been launched: one that a graph could have run.

        The least of all is what launches take: their number depends on the model, not on the
        bucket, and what is over it was compiling, or waiting for the device.
        """
        took_s = self._clock() - self._began_s
        self._eager_s = took_s if self._eager_s is None else min(self._eager_s, took_s)

    def captured(self) -> float:
        """The capture that began is made; the seconds that it took."""
        now_s = self._clock()
        took_s = now_s - self._began_s
        self._pause_until_s = now_s + took_s * (1 / SHARE - 1)
        self._num_captured += 1
        if self._num_captured > 1:  # the first compiles what no eager forward has run yet
            known = (took_s,) if self._capture_s is None else (took_s, self._capture_s)
            self._capture_s = min(known)
        return took_s
