"""A request between its dispatch and its last event, and what each worker did so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import final

from hypic_sdk.errors import DeadlineExceeded, WorkerLost
from hypic_sdk.router.assignment import WorkerId
from hypic_sdk.router.dispatch import DispatchPlan
from hypic_sdk.transport.control import Alive
from hypic_sdk.transport.events import Event, failed
from hypic_sdk.transport.messages import EngineRequest, TokenEvent

MAX_TRIES = 2
"""Workers that a request is given to: one that died before its first word, and one more."""


@final
@dataclass(slots=True, eq=False)
class Dispatched:
    """One request in flight.  Changed under the router's lock only.

    `telling` is held while its listener is called: nothing comes after its last event.
    """

    message: EngineRequest  # as it came: without hints
    listener: Callable[[Event], None]
    worker: WorkerId
    plan: DispatchPlan
    num_tries: int = 1
    has_spoken: bool = False  # an event of it was handed on, so it can not begin anew
    is_cancelled: bool = False
    began_s: float = field(default_factory=time.monotonic)
    telling: threading.RLock = field(default_factory=threading.RLock)

    @property
    def deadline_s(self) -> float | None:
        """When its time is over, by the monotonic clock; none: it has no time."""
        timeout_s = self.message.timeout_s
        return None if timeout_s is None else self.began_s + timeout_s

    def is_overdue(self) -> bool:
        """Whether its time is over."""
        return self.deadline_s is not None and time.monotonic() >= self.deadline_s

    def overdue_event(self) -> Event:
        """Its last event, once its time is over."""
        timeout_s = self.message.timeout_s
        error = DeadlineExceeded(
            f"the request did not end within its {timeout_s:g} s", timeout_s=timeout_s
        )
        return failed(self.message.request_id, error, is_warm=False)

    def in_its_terms(self, event: TokenEvent) -> Event:
        """An event as its caller is to see it: a second worker knew only the time that was left."""
        is_late = event.error is not None and event.error["code"] == DeadlineExceeded.code
        return self.overdue_event() if is_late and self.num_tries > 1 else event

    def may_go_again(self, event: TokenEvent) -> bool:
        """Whether its worker is gone and nobody has noticed yet."""
        is_lost = event.error is not None and event.error["code"] == WorkerLost.code
        is_open = not self.has_spoken and not self.is_cancelled
        return is_lost and is_open and self.num_tries < MAX_TRIES

    def timed(self) -> EngineRequest:
        """The message with the time that is left of its own; at least a millisecond."""
        if self.deadline_s is None:
            return self.message
        return replace(self.message, timeout_s=max(self.deadline_s - time.monotonic(), 1e-3))


@dataclass(frozen=True, slots=True)
class WorkerTally:
    """What one worker did since it joined."""

    num_dispatched: int = 0  # requests that it was to answer
    num_failed: int = 0  # of these, those that ended by an error of a worker
    num_fetched: int = 0  # entries that came from other workers
    num_not_fetched: int = 0  # entries that were asked for and did not come
    fetched_bytes: int = 0

    def heard(self, alive: Alive) -> WorkerTally:
        """With what the worker itself counts."""
        return replace(
            self,
            num_fetched=alive.num_fetched,
            num_not_fetched=alive.num_not_fetched,
            fetched_bytes=alive.fetched_bytes,
        )
