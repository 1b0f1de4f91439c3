"""Which failures are tried again, and after how long.  No I/O."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypic_sdk.errors import (
    CapacityError,
    ConnectionFailed,
    HypicError,
    RequestTimeout,
    WorkerError,
)

_MAX_RETRY_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class Retries:
    """Waits that double, with chance in them so that many callers do not come back at once."""

    max_retries: int = 2
    first_wait_s: float = 0.25
    max_wait_s: float = 8.0
    chance: Callable[[], float] = field(default=random.random)

    def wait_s(
        self,
        error: HypicError,
        *,
        num_tries: int,
        repeatable: bool,
        retry_after: str | None = None,
    ) -> float | None:
        """How long to wait before the next try; none: the error is final.

        Args:
            num_tries: how often it was tried so far.
            repeatable: whether it may be done a second time.
            retry_after: what the server said in that header.
        """
        if num_tries > self.max_retries or not _helps(error, repeatable):
            return None
        told_s = _seconds(retry_after)
        if told_s is not None:
            return told_s + self.first_wait_s * self.chance()
        longest_s = min(self.max_wait_s, self.first_wait_s * 2.0 ** (num_tries - 1))
        return longest_s * (0.5 + 0.5 * self.chance())


def _helps(error: HypicError, repeatable: bool) -> bool:
    if isinstance(error, CapacityError):
        # nothing was begun; where the server knows that waiting is in vain, it says so
        return bool(error.details.get("retryable", True))
    if isinstance(error, ConnectionFailed) and error.details.get("sent") is False:
        return True
    if not repeatable:
        return False
    return isinstance(error, WorkerError | ConnectionFailed) and not isinstance(
        error, RequestTimeout
    )


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0.0 <= seconds <= _MAX_RETRY_AFTER_S else None
