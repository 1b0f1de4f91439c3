"""A count for each slot, kept as stretches of one count: slots come and go by the thousand."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import final

import torch


@final
class RangeCounts:
    """How often each slot of one slab is named.

    Neighbours of the same count are one stretch, so what a call costs follows from how many
    stretches it meets, not from how many slots.  Ranges that are given have step 1 and at least
    one slot.
    """

    def __init__(self, num_slots: int) -> None:
        # stretch i is [starts[i], starts[i + 1]); the last start is the end, its count nobody's
        self._starts = [0, num_slots]
        self._counts = [0, 0]

    def add(self, span: range) -> int:
        """Name each of these slots once more; how many of them were not named before."""
        starts, counts = self._starts, self._counts
        first, behind = self._cut(span.start), self._cut(span.stop)
        num_fresh = 0
        for index in range(first, behind):
            if counts[index] == 0:
                num_fresh += starts[index + 1] - starts[index]
            counts[index] += 1
        self._join(behind)
        self._join(first)
        return num_fresh

    def remove(self, span: range) -> tuple[range, ...]:
        """Name each of these slots once less; those that are not named any more, rising."""
        starts, counts = self._starts, self._counts
        first, behind = self._cut(span.start), self._cut(span.stop)
        unnamed: list[range] = []
        for index in range(first, behind):
            counts[index] -= 1
            if counts[index] == 0:
                unnamed.append(range(starts[index], starts[index + 1]))
        self._join(behind)
        self._join(first)
        return tuple(unnamed)

    def where(self, span: range, times: int) -> Iterator[range]:
        """Those of these slots that are named so many times, rising."""
        index = bisect_right(self._starts, span.start) - 1
        while self._starts[index] < span.stop:
            if self._counts[index] == times:
                stop = self._starts[index + 1]
                yield range(max(self._starts[index], span.start), min(stop, span.stop))
            index += 1

    def tensor(self) -> torch.Tensor:
        """[num_slots] int32 on the host: the count of each slot."""
        lengths = [stop - start for start, stop in pairwise(self._starts)]
        counts = torch.tensor(self._counts[:-1], dtype=torch.int32)
        return counts.repeat_interleave(torch.tensor(lengths))

    def _cut(self, at: int) -> int:
        """Let a stretch begin at this slot (or behind the last one); its index."""
        index = bisect_left(self._starts, at)
        if self._starts[index] != at:
            self._starts.insert(index, at)
            self._counts.insert(index, self._counts[index - 1])
        return index

    def _join(self, index: int) -> None:
        """Make one of this stretch and the one before it, where they have the same count."""
        if 0 < index < len(self._counts) - 1 and self._counts[index] == self._counts[index - 1]:
            del self._starts[index], self._counts[index]
