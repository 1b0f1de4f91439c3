"""Which slots nobody has: a sorted list of ranges, so that neighbours are handed out together."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import final

from hypic_sdk.store.slot_ranges import SlotRanges


@final
class FreeRanges:
    """Free slots of one slab as ranges [start, stop): disjoint, rising, never touching."""

    def __init__(self, num_slots: int) -> None:
        self._starts = [0] if num_slots else []
        self._stops = [num_slots] if num_slots else []
        self._num_free = num_slots

    def __len__(self) -> int:
        return self._num_free

    @property
    def ranges(self) -> SlotRanges:
        """All free slots, rising."""
        return tuple(map(range, self._starts, self._stops))

    def take(self, num_slots: int, after: int | None = None) -> SlotRanges:
        """Take slots, in one contiguous stretch if there is any.

        The stretch that begins at `after`, if that is free and long enough; else the first that is
        long enough; else the longest stretches, so that the pieces are few.
        """
        assert num_slots <= self._num_free, f"{num_slots} slots wanted, {self._num_free} are free"
        if num_slots == 0:
            return ()
        index = self._fitting(num_slots, after)
        if index is not None:
            return (self._cut(index, num_slots),)
        pieces: list[range] = []
        for span in sorted(self.ranges, key=len, reverse=True):
            length = min(num_slots, len(span))
            pieces.append(self._cut(bisect_left(self._starts, span.start), length))
            num_slots -= length
            if num_slots == 0:
                break
        return tuple(pieces)

    def give(self, slots: SlotRanges) -> None:
        """Give slots back; none of them may be free already."""
        for span in slots:
            self._insert(span.start, span.stop)
            self._num_free += len(span)

    def _fitting(self, num_slots: int, after: int | None) -> int | None:
        """Index of the range to take from, or none if no range is long enough."""
        if after is not None:
            index = bisect_left(self._starts, after)
            begins_there = index < len(self._starts) and self._starts[index] == after
            if begins_there and self._stops[index] - after >= num_slots:
                return index
        spans = zip(self._starts, self._stops, strict=True)
        return next((i for i, (start, stop) in enumerate(spans) if stop - start >= num_slots), None)

    def _cut(self, index: int, num_slots: int) -> range:
        """Take the first slots of a range."""
        start = self._starts[index]
        if start + num_slots == self._stops[index]:
            del self._starts[index], self._stops[index]
        else:
            self._starts[index] = start + num_slots
        self._num_free -= num_slots
        return range(start, start + num_slots)

    def _insert(self, start: int, stop: int) -> None:
        """Put a range in its place, joined to the ranges it touches."""
        index = bisect_right(self._starts, start)
        assert index == 0 or self._stops[index - 1] <= start, f"slot {start} is free already"
        assert index == len(self._starts) or stop <= self._starts[index], (
            f"slot {stop - 1} is free already"
        )
        joins_left = index > 0 and self._stops[index - 1] == start
        joins_right = index < len(self._starts) and self._starts[index] == stop
        if joins_left and joins_right:
            self._stops[index - 1] = self._stops[index]
            del self._starts[index], self._stops[index]
        elif joins_left:
            self._stops[index - 1] = stop
        elif joins_right:
            self._starts[index] = start
        else:
            self._starts.insert(index, start)
            self._stops.insert(index, stop)
