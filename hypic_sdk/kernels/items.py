"""What one forward does to recurrent states and conv tails, as plain values shared by the ops.

A forward is a packed batch of rows.  Its sequences are of two kinds: cold segments (`ColdRun`, at
most one stretch each) and assembling or decoding requests (a list of `Item`, walked in order).
The same values serve every layer; the slabs handed to an op are one layer's views.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

NO_SLOT = -1


class ItemKind(IntEnum):
    """What an item does to the state S and the conv tail of its sequence."""

    LOAD = 0  # S, tail := slab row `slot`; zeros with NO_SLOT.  Starts a sequence.
    RUN = 1  # rows [start, stop) go through, one after the other
    GAP = 2  # S := T[transition_slot] S + S0[slot]; tail := tail[slot] (see Item.num_tokens)
    SAVE = 3  # slab row `slot` := S, tail


class Item(NamedTuple):
    """One step of a live sequence.

    `num_tokens` and `start_position` describe a gap: the interior's length (closed-form decays need
    no stored transition) and the global position at which its SEGMENT starts (a state with rotary
    keys is recorded at local positions and turned by R(start_position)).
    """

    kind: ItemKind
    start: int = 0
    stop: int = 0
    slot: int = NO_SLOT
    transition_slot: int = NO_SLOT
    num_tokens: int = 0
    start_position: int = 0


def check_items(
    items: Sequence[Item], num_rows: int, num_slots: int, *, num_gap_slots: int | None = None
) -> None:
    """Raise ValueError where items are no sequences, or reach beyond rows or slots.

    Args:
        num_rows: of the batch.
        num_slots: of the slab that LOAD reads and SAVE writes.
        num_gap_slots: of what GAP reads; none: the same slab.
    """
    if items and items[0].kind != ItemKind.LOAD:
        raise ValueError("a sequence starts with LOAD")
    for item in items:
        if item.kind == ItemKind.RUN:
            if not 0 <= item.start <= item.stop <= num_rows:
                raise ValueError(f"run [{item.start}, {item.stop}) of {num_rows} rows")
            continue
        limit = num_slots
        if item.kind == ItemKind.GAP and num_gap_slots is not None:
            limit = num_gap_slots
        if not NO_SLOT <= item.slot < limit:
            raise ValueError(f"{item.kind.name} of slot {item.slot} of {limit}")


@dataclass(frozen=True, slots=True)
class ColdRun:
    """A stretch of one cold segment (design 3.2): rows [row_start, row_stop) of the batch.

    The stretch covers tokens [offset, offset + row_stop - row_start) of the segment.  Interior =
    [head_tokens, num_tokens - tail_tokens).  Between the forwards of one segment the running state,
    the transition so far and the conv tail lie in row `work_slot` of the work slabs, and the state
    after the head seam in row `state_slot` of the state slab; a segment that fits one forward has
    work_slot NO_SLOT.  When the interior ends, S = F - T S_head and T go to `state_slot` and
    `transition_slot`, and the interior's last W-1 conv inputs to `state_slot` of the tail slab.
    """

    row_start: int
    row_stop: int
    offset: int
    num_tokens: int
    head_tokens: int
    tail_tokens: int
    state_slot: int
    transition_slot: int = NO_SLOT
    work_slot: int = NO_SLOT

    def check(self, num_rows: int) -> None:
        """Raise ValueError where the run is no stretch of its segment, or reaches beyond rows.

        Args:
            num_rows: of the batch.
        """
        num_tokens = self.row_stop - self.row_start
        if not 0 <= self.row_start < self.row_stop <= num_rows:
            raise ValueError(f"rows [{self.row_start}, {self.row_stop}) of {num_rows}")
        if self.offset < 0 or self.offset + num_tokens > self.num_tokens:
            raise ValueError(f"{num_tokens} rows from token {self.offset} of {self.num_tokens}")
        if min(self.head_tokens, self.tail_tokens) < 0 or (
            self.head_tokens + self.tail_tokens >= self.num_tokens
        ):
            raise ValueError(
                f"seams {self.head_tokens} and {self.tail_tokens} leave no interior of "
                f"{self.num_tokens}"
            )

    def stretches(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Rows [start, stop) of head seam, interior and tail seam in this run (may be empty)."""
        stop = self.offset + self.row_stop - self.row_start
        borders = (0, self.head_tokens, self.num_tokens - self.tail_tokens, self.num_tokens)
        shift = self.row_start - self.offset
        head, interior, tail = (
            (max(a, self.offset) + shift, max(min(b, stop), max(a, self.offset)) + shift)
            for a, b in itertools.pairwise(borders)
        )
        return head, interior, tail

    @property
    def is_inside(self) -> bool:
        """Whether the run goes on within the interior, behind its first token."""
        return self.head_tokens < self.offset < self.num_tokens - self.tail_tokens

    @property
    def opens_interior(self) -> bool:
        """Whether the interior's first token is in this run."""
        stop = self.offset + self.row_stop - self.row_start
        return self.offset <= self.head_tokens < stop

    @property
    def closes_interior(self) -> bool:
        """Whether the interior's last token is in this run."""
        stop = self.offset + self.row_stop - self.row_start
        return self.offset < self.num_tokens - self.tail_tokens <= stop
