"""Cached keys and values to be placed, as a few ranges that the device counts through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hypic_sdk.engine.staging import Numbers
from hypic_sdk.store.slot_ranges import SlotRanges

RANGE_FIELDS = 4  # first source, first target, first position, and how many


@dataclass(frozen=True, slots=True)
class GapPlacement:
    """Cached keys and values to be placed for all gaps of a forward."""

    source_slots: torch.Tensor  # [n] int64, the entries'
    target_slots: torch.Tensor  # [n] int64, private
    positions: torch.Tensor  # [n] int64, by which the keys are rotated


@dataclass(frozen=True, slots=True)
class GapSpan:
    """One gap: token i of it goes from slot i of sources to slot i of targets, and is turned by
    `first_position` + i."""

    sources: SlotRanges  # as many slots as
    targets: SlotRanges  # there are here
    first_position: int

    def ranges(self) -> Iterator[tuple[int, int, int, int]]:
        """The tokens as ranges, each RANGE_FIELDS: slots rise by one in it, on both sides."""
        position, targets = self.first_position, list(reversed(self.targets))
        for source in self.sources:
            while source:
                target = targets.pop()
                length = min(len(source), len(target))
                yield source.start, target.start, position, length
                position += length
                source = source[length:]
                if length < len(target):
                    targets.append(target[length:])


def ranges_of_gaps(gaps: Iterable[GapSpan]) -> Numbers:
    """All ranges of some gaps, [ranges * RANGE_FIELDS]."""
    ranges = [one for gap in gaps for one in gap.ranges()]
    return np.array(ranges, dtype=np.int64).reshape(-1)


def placement_of(ranges: torch.Tensor, num_tokens: int) -> GapPlacement:
    """Count through the ranges, on the device.

    Args:
        ranges: [ranges * RANGE_FIELDS] int64, of `ranges_of_gaps`.
        num_tokens: of all together; given, since the host would have to wait for it.
    """
    firsts, counts = ranges.view(-1, RANGE_FIELDS).T.split((RANGE_FIELDS - 1, 1))
    whose = torch.repeat_interleave(counts[0], output_size=num_tokens)
    bases = firsts - (counts.cumsum(1) - counts)
    place = torch.arange(num_tokens, device=ranges.device)
    # each at a multiple of 16 bytes: a kernel is compiled anew for addresses that are not
    room = ranges.new_empty(RANGE_FIELDS - 1, num_tokens + num_tokens % 2)[:, :num_tokens]
    sources, targets, positions = torch.add(bases[:, whose], place, out=room).unbind()
    return GapPlacement(sources, targets, positions)
