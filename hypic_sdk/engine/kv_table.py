"""KV slots of one sequence by position."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import final

import torch

from hypic_sdk.kernels.upload import upload
from hypic_sdk.store.slot_ranges import SlotRanges, joined, ranges_of, tensor_of

_COUNTED_RANGES = 4  # of a table's slots, a launch each; a prompt behind a chain has two


@final
class KvTable:
    """KV slots of one sequence by position: as ranges on the host, and on the device.

    Nothing here is read back from the device, and nobody waits for it.
    """

    __slots__ = ("_host_slots", "_ranges", "_starts", "contiguous_start", "slots")

    def __init__(self, slots: SlotRanges | torch.Tensor, device: torch.device) -> None:
        """
        Args:
            slots: in order of positions; ranges, or [positions] int64 on the host.
        """
        ranges = ranges_of(slots) if isinstance(slots, torch.Tensor) else joined(slots)
        self._ranges = ranges or (range(0),)
        self._host_slots = slots if isinstance(slots, torch.Tensor) else None
        self.contiguous_start = self._ranges[0].start if len(self._ranges) == 1 else None
        self._starts = [0, *accumulate(map(len, self._ranges))]  # by position, and their end
        if len(ranges) > _COUNTED_RANGES:
            self.slots = upload(self.host_slots, device)  # [positions] int64
        else:  # counted there instead of brought there
            spans = [torch.arange(one.start, one.stop, device=device) for one in self._ranges]
            self.slots = torch.cat(spans) if len(spans) > 1 else spans[0]

    @property
    def host_slots(self) -> torch.Tensor:
        """[positions] int64 on the host, made when somebody asks first."""
        if self._host_slots is None:
            self._host_slots = tensor_of(self._ranges)
        return self._host_slots

    def between(self, start: int, stop: int) -> SlotRanges:
        """The slots of positions [start, stop), in as few ranges as there can be."""
        found: list[range] = []
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            first = start - self._starts[index]
            found.append(self._ranges[index][first : first + stop - start])
            start += len(found[-1])
            index += 1
        return tuple(found)
