"""Sets of slots as ranges: slots are handed out side by side, so a few ranges name thousands.

The store keeps its books on the host in these; what goes to the engine is a tensor, on the host as
well: the engine makes its tables of numbers, and copies them to the device as it runs them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

SlotRanges = tuple[range, ...]
"""Slots in order, each range of step 1 and not empty."""


def slots_at(*slots: int) -> SlotRanges:
    """Single slots."""
    return tuple(range(slot, slot + 1) for slot in slots)


def count(slots: SlotRanges) -> int:
    """How many slots these are."""
    return sum(map(len, slots))


def split(slots: SlotRanges, num_slots: int) -> tuple[SlotRanges, SlotRanges]:
    """The first `num_slots` in their order, and the rest."""
    taken: list[range] = []
    for index, span in enumerate(slots):
        if num_slots < len(span):
            head = (span[:num_slots],) if num_slots else ()
            return (*taken, *head), (span[num_slots:], *slots[index + 1 :])
        taken.append(span)
        num_slots -= len(span)
    assert num_slots == 0, f"{num_slots} slots too few"
    return slots, ()


def union(groups: Iterable[SlotRanges]) -> SlotRanges:
    """Every slot of any group once, rising; ranges that touch are joined."""
    spans = sorted((span.start, span.stop) for slots in groups for span in slots)
    joined: list[range] = []
    for start, stop in spans:
        if joined and start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, stop))
        else:
            joined.append(range(start, stop))
    return tuple(joined)


def joined(slots: SlotRanges) -> SlotRanges:
    """The same slots in the same order, in as few ranges as that allows."""
    ranges: list[range] = []
    for span in slots:
        if ranges and ranges[-1].stop == span.start:
            span = range(ranges.pop().start, span.stop)
        ranges.append(span)
    return tuple(ranges)


def ranges_of(slots: torch.Tensor) -> SlotRanges:
    """Slots [n] int64 on the host, in the order of the tensor."""
    numbers = slots.numpy()
    if not len(numbers):
        return ()
    last = np.flatnonzero(np.diff(numbers) != 1)
    starts = [int(numbers[0]), *numbers[last + 1].tolist()]
    stops = [*numbers[last].tolist(), int(numbers[-1])]
    return tuple(range(a, b + 1) for a, b in zip(starts, stops, strict=True))


def tensor_of(slots: SlotRanges) -> torch.Tensor:
    """Slots as [n] int64 on the host."""
    if len(slots) == 1:
        return torch.arange(slots[0].start, slots[0].stop)
    numbers, start = torch.empty(count(slots), dtype=torch.int64), 0
    for span in slots:
        torch.arange(span.start, span.stop, out=numbers[start : start + len(span)])
        start += len(span)
    return numbers
