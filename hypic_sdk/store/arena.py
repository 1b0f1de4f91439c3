"""The three slabs' books as one: what an entry or a lease holds is a triple."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from hypic_sdk.store.layout import SlabSizes, StoreLayout
from hypic_sdk.store.slot_pool import Claim, SlotPool
from hypic_sdk.store.slot_ranges import SlotRanges


@dataclass(frozen=True, slots=True)
class Amount:
    """How many slots of each kind."""

    state_rows: int = 0
    transition_rows: int = 0
    kv_slots: int = 0

    def __iter__(self) -> Iterator[int]:
        return iter((self.state_rows, self.transition_rows, self.kv_slots))

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.state_rows + other.state_rows,
            self.transition_rows + other.transition_rows,
            self.kv_slots + other.kv_slots,
        )


@dataclass(frozen=True, slots=True)
class Holding:
    """Slots of each kind, each named once."""

    state_rows: SlotRanges = ()
    transition_rows: SlotRanges = ()
    kv_slots: SlotRanges = ()

    def __iter__(self) -> Iterator[SlotRanges]:
        return iter((self.state_rows, self.transition_rows, self.kv_slots))


@final
class Arena:
    """State rows, transition rows and KV slots; each method does for a triple what `SlotPool` does
    for its slots."""

    def __init__(self, layout: StoreLayout, sizes: SlabSizes) -> None:
        self.state_rows = SlotPool("state_rows", sizes.num_state_rows, layout.state_row_bytes)
        self.transition_rows = SlotPool(
            "transition_rows", sizes.num_transition_rows, layout.transition_row_bytes
        )
        self.kv_slots = SlotPool("kv_slots", sizes.num_kv_slots, layout.kv_slot_bytes)

    def __iter__(self) -> Iterator[SlotPool]:
        return iter((self.state_rows, self.transition_rows, self.kv_slots))

    def claim(self, amount: Amount, claim: Claim, after: int | None = None) -> Holding:
        """Free -> claimed; `after` is for KV slots."""
        return Holding(
            self.state_rows.claim(amount.state_rows, claim),
            self.transition_rows.claim(amount.transition_rows, claim),
            self.kv_slots.claim(amount.kv_slots, claim, after),
        )

    def unclaim(self, holding: Holding, claim: Claim) -> None:
        """Claimed -> free."""
        for pool, slots in self._parts(holding):
            pool.unclaim(slots, claim)

    def settle(self, holding: Holding, claim: Claim) -> None:
        """Claimed -> held once, idle."""
        for pool, slots in self._parts(holding):
            pool.settle(slots, claim)

    def hold(self, holding: Holding) -> None:
        """One more holder."""
        for pool, slots in self._parts(holding):
            pool.hold(slots)

    def drop(self, holding: Holding) -> None:
        """One holder fewer."""
        for pool, slots in self._parts(holding):
            pool.drop(slots)

    def pin(self, holding: Holding) -> None:
        """A holder uses them."""
        for pool, slots in self._parts(holding):
            pool.pin(slots)

    def unpin(self, holding: Holding) -> None:
        """A holder uses them no more."""
        for pool, slots in self._parts(holding):
            pool.unpin(slots)

    def _parts(self, holding: Holding) -> Iterator[tuple[SlotPool, SlotRanges]]:
        """The slabs of which the holding has any slot."""
        for pool, slots in zip(self, holding, strict=True):
            if slots:
                yield pool, slots
