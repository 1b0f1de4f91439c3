"""A gap with the entry that fills it, as the scan and the placing of keys ask for it."""

from __future__ import annotations

from dataclasses import dataclass

from hypic_sdk.engine.gap_placement import GapSpan
from hypic_sdk.engine.kv_table import KvTable
from hypic_sdk.engine.plan import Gap
from hypic_sdk.kernels.items import Item, ItemKind
from hypic_sdk.store.entries import SegmentEntry


@dataclass(frozen=True, slots=True)
class SpliceGap:
    """A gap with the entry that fills it: one of the store, or one that this forward completes."""

    gap: Gap
    entry: SegmentEntry

    @property
    def item(self) -> Item:
        """What it does to state and conv tail."""
        return Item(
            ItemKind.GAP,
            slot=self.entry.state_slot,
            transition_slot=self.entry.transition_slot,
            num_tokens=self.gap.stop - self.gap.start,
            start_position=self.gap.entry_start,
        )

    def span(self, kv: KvTable, *, rotates: bool) -> GapSpan:
        """Where its keys and values go; angles by local position when gaps do not turn."""
        gap, entry = self.gap, self.entry
        first = gap.start if rotates else gap.entry_seam.head_tokens
        return GapSpan(entry.slot_ranges, kv.between(gap.start, gap.stop), first)
