"""A segment entry that is being written."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, final

from hypic_sdk.store.arena import Holding
from hypic_sdk.store.entries import EntrySpec, SegmentEntry


@final
class Filling:
    """The right to write one entry's slots, until it is committed or abandoned.

    Ends with exactly one of `Store.commit` and `close` (or `Store.abandon`, the same); as a context
    manager it is abandoned on the way out unless it was committed.
    """

    def __init__(
        self,
        spec: EntrySpec,
        entry: SegmentEntry,
        holding: Holding,
        abandon: Callable[[Filling], None],
    ) -> None:
        self.spec = spec
        self.entry = entry
        self.holding = holding
        self.is_open = True
        # false after a deletion of its key: a commit then serves the waiters and is never found
        self.findable = True
        self._abandon = abandon

    def close(self) -> None:
        """Abandon the entry: its slots are free at once.  Does nothing when it has ended."""
        if self.is_open:
            self._abandon(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
