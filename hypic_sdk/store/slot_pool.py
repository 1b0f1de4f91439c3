"""Who holds the slots of one slab: holders and pins of each, states counted in all."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import final

from hypic_sdk.store.entries import ByteStates
from hypic_sdk.store.free_ranges import FreeRanges
from hypic_sdk.store.range_counts import RangeCounts
from hypic_sdk.store.slot_ranges import SlotRanges, count, union


class Claim(Enum):
    """Why slots are taken that hold nothing to read yet."""

    RESERVED = "reserved"
    FILLING = "filling"


@final
class SlotPool:
    """Books of one slab.

    A slot is free, claimed, or held.  Entries and leases hold it, each once (a KV slot may have
    many holders); a holder in use pins it.  Held slots are pinned while any holder pins them, else
    idle; the last holder that drops a slot frees it.  All slots handed in name a slot at most once.
    """

    def __init__(self, name: str, num_slots: int, slot_bytes: int) -> None:
        self.name = name
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self.free = FreeRanges(num_slots)
        self.holders = RangeCounts(num_slots)
        self.pins = RangeCounts(num_slots)
        self._num_claimed = {Claim.RESERVED: 0, Claim.FILLING: 0}
        self._num_idle = 0
        self._num_pinned = 0

    @property
    def num_free(self) -> int:
        """Slots that can be claimed now."""
        return len(self.free)

    @property
    def num_idle(self) -> int:
        """Held slots that no holder pins."""
        return self._num_idle

    @property
    def byte_states(self) -> ByteStates:
        """Bytes of this slab by state."""
        return ByteStates(
            free=self.num_free * self.slot_bytes,
            reserved=self._num_claimed[Claim.RESERVED] * self.slot_bytes,
            filling=self._num_claimed[Claim.FILLING] * self.slot_bytes,
            idle=self._num_idle * self.slot_bytes,
            pinned=self._num_pinned * self.slot_bytes,
        )

    def claim(self, num_slots: int, claim: Claim, after: int | None = None) -> SlotRanges:
        """Free -> claimed; neighbours where possible (see `FreeRanges.take`)."""
        slots = self.free.take(num_slots, after)
        self._num_claimed[claim] += num_slots
        return slots

    def unclaim(self, slots: SlotRanges, claim: Claim) -> None:
        """Claimed -> free."""
        self.free.give(slots)
        self._num_claimed[claim] -= count(slots)

    def settle(self, slots: SlotRanges, claim: Claim) -> None:
        """Claimed -> held once, idle."""
        self.hold(slots)
        num_slots = count(slots)
        self._num_claimed[claim] -= num_slots
        self._num_idle += num_slots

    def hold(self, slots: SlotRanges) -> None:
        """One more holder of slots that are held already."""
        for span in slots:
            self.holders.add(span)

    def drop(self, slots: SlotRanges) -> None:
        """One holder fewer (its own pin taken off before); what nobody holds is free."""
        for span in slots:
            orphans = self.holders.remove(span)
            self._num_idle -= count(orphans)
            self.free.give(orphans)

    def pin(self, slots: SlotRanges) -> None:
        """A holder of these slots uses them."""
        for span in slots:
            num_fresh = self.pins.add(span)
            self._num_idle -= num_fresh
            self._num_pinned += num_fresh

    def unpin(self, slots: SlotRanges) -> None:
        """A holder of these slots uses them no more."""
        for span in slots:
            num_unused = count(self.pins.remove(span))
            self._num_idle += num_unused
            self._num_pinned -= num_unused

    def num_unpinned(self, slots: SlotRanges) -> int:
        """How many of these slots no holder pins."""
        return sum(len(idle) for span in slots for idle in self.pins.where(span, 0))

    def needed_and_idle(self, groups: Iterable[SlotRanges]) -> tuple[int, int]:
        """How many held slots the groups name, each counted once, and how many of them are idle."""
        slots = union(groups)
        return count(slots), self.num_unpinned(slots)

    def frees(self, slots: SlotRanges) -> bool:
        """Whether dropping these held, unpinned slots once would free any."""
        idle = (part for span in slots for part in self.pins.where(span, 0))
        return any(True for part in idle for _ in self.holders.where(part, 1))
