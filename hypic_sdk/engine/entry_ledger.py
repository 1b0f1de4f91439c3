"""Which entries a worker made and lost since it last said so: for a router's index."""

from __future__ import annotations

from typing import final

from hypic_sdk.engine.cold_job import ColdJob
from hypic_sdk.prompt.segment import SegmentKey
from hypic_sdk.store.store import Store
from hypic_sdk.transport.control import EntriesChanged, EntryName

MIN_PAUSE_S = 0.25
"""Between two messages while the engine is busy."""


@final
class EntryLedger:
    """Entries by the names that a router has for them.  On the engine's thread."""

    def __init__(self, store: Store, worker: str) -> None:
        self._store = store
        self._worker = worker
        self._held: dict[SegmentKey, EntryName] = {}  # told, and those in `_made`
        self._made: dict[SegmentKey, EntryName] = {}  # not told yet
        self._seen = (0, 0)  # of the store, when it was last looked through
        self._told_s = float("-inf")

    def made(self, job: ColdJob) -> None:
        """An entry was committed."""
        if job.segment_id is not None:
            self._made[job.key] = EntryName(job.filling.spec.namespace, job.segment_id)

    def is_due(self, now_s: float) -> bool:
        """Whether enough time has gone since the last look."""
        return now_s - self._told_s >= MIN_PAUSE_S

    def changes(self, now_s: float) -> EntriesChanged | None:
        """What is to be told; none if that is nothing."""
        self._told_s = now_s
        usage = self._store.usage()
        seen = (usage.num_segments, usage.num_evicted)
        if not self._made and seen == self._seen:
            return None
        self._seen = seen
        # what was made and went again was never there, for all that anybody knows
        new = self._made.keys() - self._held.keys()
        made = {key: self._made[key] for key in new if self._store.probe(key)}
        gone = {key: name for key, name in self._held.items() if not self._store.probe(key)}
        self._made = {}
        self._held |= made
        for key in gone:
            del self._held[key]
        if not made and not gone:
            return None
        return EntriesChanged(self._worker, tuple(made.values()), tuple(gone.values()))
