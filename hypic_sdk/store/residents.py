"""Entries that lie in the slabs, from the first pin to the last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar, final

from hypic_sdk.store.arena import Arena, Holding
from hypic_sdk.store.entries import ChainEntry, SegmentEntry
from hypic_sdk.store.eviction import EvictionPolicy

USUAL_PRIORITY = 50

EntryT = TypeVar("EntryT", SegmentEntry, ChainEntry)


@dataclass(slots=True, eq=False)
class Resident(Generic[EntryT]):
    """An entry with its books.  `retained` entries are evicted after all others (design 3.3)."""

    entry: EntryT
    holding: Holding
    namespace: str
    num_bytes: int
    cost_ms: float = 0.0
    retained: bool = True
    kv_stop: int | None = None  # of a chain: the slot behind its last token's
    pins: int = 0
    priority: int = USUAL_PRIORITY  # of those that may be evicted, lower ones go first
    # false once deleted: no index names it, and it goes with its last pin
    findable: bool = True


AnyResident = Resident[SegmentEntry] | Resident[ChainEntry]


@final
class Residents:
    """Pins entries and lets them go; keeps the policy's list of idle entries."""

    def __init__(self, arena: Arena, policy: EvictionPolicy[AnyResident]) -> None:
        self._arena = arena
        self._policy = policy

    def enter(self, resident: AnyResident) -> None:
        """A new entry, whose slots are held for it already; idle until somebody pins it."""
        self._policy.add(resident)

    def pin(self, resident: AnyResident) -> None:
        """One more user: the entry can not be evicted."""
        if resident.pins == 0:
            self._policy.remove(resident)
            self._arena.pin(resident.holding)
        resident.pins += 1

    def unpin(self, resident: AnyResident) -> None:
        """One user fewer; without any, a findable entry is idle, another one is gone."""
        assert resident.pins > 0, "entry is not pinned"
        resident.pins -= 1
        if resident.pins:
            return
        self._arena.unpin(resident.holding)
        if resident.findable:
            self._policy.add(resident)
        else:
            self._arena.drop(resident.holding)

    def touch(self, resident: AnyResident) -> None:
        """Count a use that pinned nothing."""
        if resident.pins == 0:
            self._policy.remove(resident)
            self._policy.add(resident)

    def remove(self, resident: AnyResident) -> bool:
        """Take an entry out: now if it is idle, else with its last pin.  Returns whether now.

        The caller takes it out of its index.
        """
        resident.findable = False
        if resident.pins:
            return False
        self._policy.remove(resident)
        self._arena.drop(resident.holding)
        return True
