"""Which slots nobody has: a sorted list of ranges, so that neighbours are handed out together."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import final

import torch


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
    def ranges(self) -> list[tuple[int, int]]:
        """All free ranges, rising."""
        return list(zip(self._starts, self._stops, strict=True))

    def take(self, num_slots: int, after: int | None = None) -> torch.Tensor:
        """Take slots: [num_slots] int64, in one contiguous stretch if there is any.

        The stretch that begins at `after`, if that is free and long enough; else the first that is
        long enough; else the longest stretches, so that the pieces are few.
        """
        assert num_slots <= self._num_free, f"{num_slots} slots wanted, {self._num_free} are free"
        if num_slots == 0:
            return torch.empty(0, dtype=torch.int64)
        index = self._fitting(num_slots, after)
        if index is not None:
            return self._cut(index, num_slots)
        by_length = sorted(self.ranges, key=lambda span: span[0] - span[1])
        pieces, missing = [], num_slots
        for start, stop in by_length:
            length = min(missing, stop - start)
            pieces.append(self._cut(bisect_left(self._starts, start), length))
            missing -= length
            if missing == 0:
                break
        return torch.cat(pieces)

    def give(self, slots: torch.Tensor) -> None:
        """Give slots back, in any order; none of them may be free already."""
        if slots.numel() == 0:
            return
        rising = slots.sort().values
        breaks = (rising.diff() != 1).nonzero().flatten() + 1
        for piece in torch.tensor_split(rising, breaks):
            self._insert(int(piece[0]), int(piece[-1]) + 1)
        self._num_free += slots.numel()

    def _fitting(self, num_slots: int, after: int | None) -> int | None:
        """Index of the range to take from, or none if no range is long enough."""
        if after is not None:
            index = bisect_left(self._starts, after)
            begins_there = index < len(self._starts) and self._starts[index] == after
            if begins_there and self._stops[index] - after >= num_slots:
                return index
        lengths = zip(self._starts, self._stops, strict=True)
        return next((i for i, (a, b) in enumerate(lengths) if b - a >= num_slots), None)

    def _cut(self, index: int, num_slots: int) -> torch.Tensor:
        """Take the first slots of a range."""
        start = self._starts[index]
        if start + num_slots == self._stops[index]:
            del self._starts[index], self._stops[index]
        else:
            self._starts[index] = start + num_slots
        self._num_free -= num_slots
        return torch.arange(start, start + num_slots)

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
