"""What the server asks about its worker besides requests (`service.WorkerPort`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable


class WorkerStatus(Protocol):
    """Health and books of a worker; safe to call from any thread."""

    def is_ready(self) -> bool:
        """Whether requests are taken now.  Never waits: called on the event loop."""
        ...

    def generation(self) -> int:
        """Which store is behind it: another number is another, empty one.  Never waits."""
        ...

    def usage(self) -> Mapping[str, Any]:
        """`dataclasses.asdict` of the store's `Usage`.  May wait: called on a pool thread.

        Raises:
            WorkerLost: nobody is there to ask.
        """
        ...


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One place among several workers: its state, and what the processes there did so far."""

    state: str  # joining, ready, silent, leaving; gone: between two processes
    num_dispatched: int = 0  # requests that it was to answer
    num_failed: int = 0  # of these, those that ended by an error of a worker
    num_fetched: int = 0  # entries that came from other workers
    num_not_fetched: int = 0  # entries that were asked for and did not come
    fetched_bytes: int = 0


@runtime_checkable
class SeveralWorkers(Protocol):
    """A `WorkerStatus` with several workers behind it."""

    def worker_facts(self) -> Mapping[str, WorkerFacts]:
        """Every worker by its place.  Never waits."""
        ...


@final
class StatusOf:
    """A status made of two functions."""

    def __init__(
        self, usage: Callable[[], Mapping[str, Any]], is_ready: Callable[[], bool] = lambda: True
    ) -> None:
        self._usage = usage
        self._is_ready = is_ready

    def is_ready(self) -> bool:
        """See `WorkerStatus.is_ready`."""
        return self._is_ready()

    def generation(self) -> int:
        """See `WorkerStatus.generation`: always the same."""
        return 1

    def usage(self) -> Mapping[str, Any]:
        """See `WorkerStatus.usage`."""
        return self._usage()
