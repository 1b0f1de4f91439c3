"""A stretch of query rows and the slots that it may see."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRun:
    """Rows [row_start, row_stop) of a batch, contiguous and rising in one sequence.

    Row row_start + i stands at position first_position + i and attends to the keys in
    slots[0 .. first_position + i], its own included.
    """

    row_start: int
    row_stop: int
    first_position: int
    slots: torch.Tensor  # [>= first_position + rows] int64: the slot of each position
    contiguous_start: int | None = None  # slots[i] == contiguous_start + i, where that holds

    def __post_init__(self) -> None:
        if not 0 <= self.row_start < self.row_stop:
            raise ValueError(f"rows [{self.row_start}, {self.row_stop}) are no run")
        if self.first_position < 0 or self.slots.shape[0] < self.num_keys:
            raise ValueError(
                f"positions up to {self.num_keys} from {self.first_position} on do not fit"
                f" {self.slots.shape[0]} slots"
            )

    @classmethod
    def over(
        cls, row_start: int, row_stop: int, first_position: int, slots: torch.Tensor
    ) -> AttentionRun:
        """The run, its slots looked at once for being contiguous."""
        seen = slots[: first_position + row_stop - row_start]
        return cls(row_start, row_stop, first_position, seen, contiguous_start(seen))

    @property
    def num_rows(self) -> int:
        """Queries of the run."""
        return self.row_stop - self.row_start

    @property
    def num_keys(self) -> int:
        """Keys that the last row of the run sees."""
        return self.first_position + self.row_stop - self.row_start


def contiguous_start(slots: torch.Tensor) -> int | None:
    """The first slot, if the others follow it one by one; else none.

    Args:
        slots: [n] int64, n at least 1.
    """
    start = int(slots[0])
    expected = torch.arange(start, start + slots.shape[0], device=slots.device)
    return start if torch.equal(slots, expected) else None
