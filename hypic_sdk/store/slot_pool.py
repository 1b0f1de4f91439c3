"""Who holds the slots of one slab: holders and pins counted per slot, states counted in all."""

from __future__ import annotations

from enum import Enum
from typing import final

import torch

from hypic_sdk.store.entries import ByteStates
from hypic_sdk.store.free_ranges import FreeRanges


class Claim(Enum):
    """Why slots are taken that hold nothing to read yet."""

    RESERVED = "reserved"
    FILLING = "filling"


@final
class SlotPool:
    """Books of one slab.

    A slot is free, claimed, or held.  Entries and leases hold it, each once (a KV slot may have
    many holders); a holder in use pins it.  Held slots are pinned while any holder pins them, else
    idle; the last holder that drops a slot frees it.  All slot tensors are [n] int64 on the CPU and
    name a slot at most once.
    """

    def __init__(self, name: str, num_slots: int, slot_bytes: int) -> None:
        self.name = name
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self.free = FreeRanges(num_slots)
        self.holders = torch.zeros(num_slots, dtype=torch.int32)
        self.pins = torch.zeros(num_slots, dtype=torch.int32)
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

    def claim(self, num_slots: int, claim: Claim, after: int | None = None) -> torch.Tensor:
        """Free -> claimed; neighbours where possible (see `FreeRanges.take`)."""
        slots = self.free.take(num_slots, after)
        self._num_claimed[claim] += num_slots
        return slots

    def unclaim(self, slots: torch.Tensor, claim: Claim) -> None:
        """Claimed -> free."""
        self.free.give(slots)
        self._num_claimed[claim] -= slots.numel()

    def settle(self, slots: torch.Tensor, claim: Claim) -> None:
        """Claimed -> held once, idle."""
        self._num_claimed[claim] -= slots.numel()
        self.holders[slots] = 1
        self._num_idle += slots.numel()

    def hold(self, slots: torch.Tensor) -> None:
        """One more holder of slots that are held already."""
        self.holders[slots] += 1

    def drop(self, slots: torch.Tensor) -> None:
        """One holder fewer (its own pin taken off before); what nobody holds is free."""
        self.holders[slots] -= 1
        orphans = slots[self.holders[slots] == 0]
        self._num_idle -= orphans.numel()
        self.free.give(orphans)

    def pin(self, slots: torch.Tensor) -> None:
        """A holder of these slots uses them."""
        fresh = int((self.pins[slots] == 0).sum())
        self.pins[slots] += 1
        self._num_idle -= fresh
        self._num_pinned += fresh

    def unpin(self, slots: torch.Tensor) -> None:
        """A holder of these slots uses them no more."""
        self.pins[slots] -= 1
        unused = int((self.pins[slots] == 0).sum())
        self._num_idle += unused
        self._num_pinned -= unused

    def has_idle(self, slots: torch.Tensor) -> bool:
        """Whether any of these held slots is idle."""
        return bool((self.pins[slots] == 0).any())

    def all_pinned(self, slots: torch.Tensor) -> bool:
        """Whether each of these slots is in use."""
        return bool((self.pins[slots] > 0).all())

    def frees(self, slots: torch.Tensor) -> bool:
        """Whether dropping these held, unpinned slots once would free any."""
        return bool(((self.pins[slots] == 0) & (self.holders[slots] == 1)).any())

    def mark(self, groups: list[torch.Tensor]) -> torch.Tensor:
        """[num_slots] bool: the slots that any of the groups names."""
        marks = torch.zeros(self.num_slots, dtype=torch.bool)
        for slots in groups:
            marks[slots] = True
        return marks
