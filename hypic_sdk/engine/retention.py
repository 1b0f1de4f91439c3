"""What stays in the pool: pins, priorities, and how much a tenant may hold."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from hypic_sdk.engine.plan import Gap
from hypic_sdk.errors import PinBudgetExhausted
from hypic_sdk.prompt.segment import SegmentKey
from hypic_sdk.store.entries import Need
from hypic_sdk.store.lease import Lease
from hypic_sdk.store.store import Store

logger = logging.getLogger(__name__)

PIN_SHARE = 0.5
"""Of each slab, what pins may take: the rest serves whoever asks for something else."""


@dataclass(slots=True)
class Pin:
    """An entry that must not be evicted; without a lease, once it is made."""

    namespace: str
    interior_tokens: int
    lease: Lease | None = None


@final
class Retention:
    """Remembers what callers want kept, also of entries that are not there (yet, or any more).

    A pin is a lease of the store like that of a request, so every count of it holds.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pins: dict[SegmentKey, Pin] = {}
        self._priorities: dict[SegmentKey, int] = {}
        self._limits: dict[str, int] = {}

    def is_pinned(self, key: SegmentKey) -> bool:
        """Whether the entry of this key stays until it is unpinned."""
        return key in self._pins

    def pin(self, gaps: Sequence[Gap], namespace: str) -> None:
        """Keep these entries, also those that are still to be made.

        Raises:
            PinBudgetExhausted: with all of them, pins would take more of a slab than they may;
                none of them is pinned then.
        """
        fresh = {gap.key: gap for gap in gaps if gap.key not in self._pins}
        self._check_budget([gap.stop - gap.start for gap in fresh.values()])
        for key, gap in fresh.items():
            self._pins[key] = Pin(namespace, gap.stop - gap.start)
        self.entries_made(fresh)

    def _check_budget(self, fresh_interiors: Sequence[int]) -> None:
        layout, sizes = self._store.layout, self._store.sizes
        interiors = [pin.interior_tokens for pin in self._pins.values()]
        rows = len(interiors) + len(fresh_interiors)
        tokens = sum(interiors) + sum(fresh_interiors) if layout.keeps_kv else 0
        row_slab = ("state_rows", rows, sizes.num_state_rows, layout.state_row_bytes)
        if not layout.keeps_states:
            row_slab = (
                "transition_rows", rows, sizes.num_transition_rows, layout.transition_row_bytes
            )  # fmt: skip
        slabs = (row_slab, ("kv_slots", tokens, sizes.num_kv_slots, layout.kv_slot_bytes))
        for pool, needed, total, slot_bytes in slabs:
            limit = int(PIN_SHARE * total)
            if needed > limit:
                raise PinBudgetExhausted(
                    f"pins would take {needed * slot_bytes} bytes of {pool}, they may take "
                    f"{limit * slot_bytes}: unpin other segments, or give the cache more memory",
                    pool=pool,
                    needed_bytes=needed * slot_bytes,
                    limit_bytes=limit * slot_bytes,
                )

    def unpin(self, keys: Iterable[SegmentKey]) -> None:
        """These entries may be evicted again."""
        for key in keys:
            pin = self._pins.pop(key, None)
            if pin is not None and pin.lease is not None:
                pin.lease.close()

    def set_priority(self, keys: Iterable[SegmentKey], priority: int) -> None:
        """Of two entries, the one of lower priority is evicted first; usual is 50."""
        for key in keys:
            self._priorities[key] = priority
            self._store.set_priority(key, priority)

    def set_limit(self, namespace: str, limit_bytes: int) -> None:
        """Hold a namespace's entries to so many bytes; what is used longest ago goes."""
        self._limits[namespace] = limit_bytes
        self._store.trim(namespace, limit_bytes)

    def forget(self, keys: Sequence[SegmentKey]) -> None:
        """These segments are being deleted."""
        self.unpin(keys)
        for key in keys:
            self._priorities.pop(key, None)

    def let_go(self, namespace: str | None) -> None:
        """The namespace (none: every one) is being cleared: pins hold what comes after it."""
        for pin in self._pins.values():
            if pin.lease is not None and namespace in (None, pin.namespace):
                pin.lease.close()
                pin.lease = None

    def entries_made(self, keys: Iterable[SegmentKey]) -> None:
        """These entries may be there now: pin them, if that is wanted, and hold to the limits."""
        for key in keys:
            if key in self._priorities:
                self._store.set_priority(key, self._priorities[key])
            if key in self._pins and self._store.probe(key):
                self._hold(key, self._pins[key])
        for namespace, limit_bytes in self._limits.items():
            self._store.trim(namespace, limit_bytes)

    def _hold(self, key: SegmentKey, pin: Pin) -> None:
        if pin.lease is not None:  # of an entry that was there before this one
            pin.lease.close()
        pin.lease = self._store.admit(Need(entries=(key,)))
        assert pin.lease is not None, "a lease that only pins needs no room"
