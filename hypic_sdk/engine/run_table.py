"""Hypic Assembler, second half: one mixed forward as a table of rows, runs and gaps.

A forward mixes decode rows, live runs with the gaps between them, and grid chunks of cold segments.
`TableBuilder` packs them; `RunTable` is what the context answers from.  Rows of one sequence are
contiguous and in order; the batch ends with padding rows (token 0, position 0) that no item runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from hypic_sdk.engine.cold_memory import ColdMemory
from hypic_sdk.engine.plan import Gap, LiveRun
from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.items import NO_SLOT, ColdRun, Item, ItemKind
from hypic_sdk.store.entries import SegmentEntry

# rows of a batch are padded to a multiple of this, so that a row's bits do not depend on how many
# rows stand beside it (design 3.9)
ROW_MULTIPLE = 16


@final
class KvTable:
    """KV slots of one sequence by position: on host and device, as numbers, as a range if they are.

    Nothing here is read back from the device.
    """

    __slots__ = ("contiguous_start", "host_slots", "numbers", "slots")

    def __init__(self, host_slots: torch.Tensor, device: torch.device) -> None:
        self.host_slots = host_slots  # [positions] int64
        self.slots = host_slots.to(device)  # [positions] int64
        self.numbers: list[int] = host_slots.tolist()
        first = self.numbers[0] if self.numbers else 0
        is_range = self.numbers == list(range(first, first + len(self.numbers)))
        self.contiguous_start: int | None = first if is_range else None


@dataclass(frozen=True, slots=True)
class SpliceGap:
    """A gap with the entry that fills it."""

    gap: Gap
    entry: SegmentEntry


@dataclass(frozen=True, slots=True)
class SaveState:
    """Copy state and conv tail to a state row: a chain entry to be."""

    state_slot: int


LiveStep = LiveRun | SpliceGap | SaveState


@dataclass(frozen=True, slots=True)
class LiveStretch:
    """What one live sequence does in one forward.

    `token_ids` are those of its runs, one after the other.  The state comes from row `load_slot`
    (NO_SLOT: zeros) and goes to every row of `save_slots`: several where the prompt ends, and each
    of its replies goes on from a copy.
    """

    token_ids: Sequence[int]
    steps: Sequence[LiveStep]
    load_slot: int
    save_slots: Sequence[int]
    kv: KvTable
    wants_logits: bool  # of the last row


@dataclass(frozen=True, slots=True)
class ColdChunk:
    """One grid chunk of a cold segment: tokens [offset, offset + len(token_ids)) of it."""

    token_ids: Sequence[int]
    offset: int
    entry: SegmentEntry  # being filled
    memory: ColdMemory | None  # none: the segment is this one chunk


@dataclass(frozen=True, slots=True)
class ColdAttention:
    """Attention of one cold chunk over its own segment, in memory of its own.

    `run` counts rows from the chunk's first row.  Without `memory` the segment is this one chunk,
    and its queries read the keys of the forward itself.
    """

    row_start: int
    row_stop: int
    run: AttentionRun
    memory: ColdMemory | None


@dataclass(frozen=True, slots=True)
class GapPlacement:
    """Cached keys and values to be placed for all gaps of a forward."""

    source_slots: torch.Tensor  # [n] int64, the entries'
    target_slots: torch.Tensor  # [n] int64, private
    positions: torch.Tensor  # [n] int64, by which the keys are rotated


@dataclass(frozen=True, slots=True)
class RunTable:
    """One mixed forward."""

    ids: torch.Tensor  # [L] int64
    positions: torch.Tensor  # [L] int64
    num_rows: int  # without padding
    items: tuple[Item, ...]
    cold_runs: tuple[ColdRun, ...]
    attention_runs: tuple[AttentionRun, ...]  # of live rows, over the store's slabs
    cold_attention: tuple[ColdAttention, ...]
    kv_slots: torch.Tensor  # [L] int64: where a live row's rotated key and its value go, or NO_SLOT
    entry_slots: torch.Tensor | None  # [L] int64: where an interior's unrotated key goes
    placement: GapPlacement | None
    logits_rows: torch.Tensor  # [N] int64, one per sequence that wants logits, in order of adding


@final
class TableBuilder:
    """Packs the sequences of one forward, in the order in which they are added."""

    def __init__(self, *, has_attention: bool, rotate_gaps: bool, device: torch.device) -> None:
        self._has_attention = has_attention
        self._rotate_gaps = rotate_gaps
        self._device = device
        self._ids: list[int] = []
        self._positions: list[int] = []
        self._kv_slots: list[int] = []
        self._entry_slots: list[int] = []  # as long as the rows up to the last cold one
        self._items: list[Item] = []
        self._cold_runs: list[ColdRun] = []
        self._attention_runs: list[AttentionRun] = []
        self._cold_attention: list[ColdAttention] = []
        self._gaps: list[tuple[SpliceGap, KvTable]] = []
        self._logits_rows: list[int] = []

    @property
    def num_rows(self) -> int:
        """Rows so far."""
        return len(self._ids)

    def add_decode(self, token_id: int, position: int, state_slot: int, kv: KvTable) -> None:
        """One row that continues the running state in `state_slot`."""
        row = len(self._ids)
        self._ids.append(token_id)
        self._positions.append(position)
        self._add_run(row, row + 1, position, kv)
        self._items += (
            Item(ItemKind.LOAD, slot=state_slot),
            Item(ItemKind.RUN, row, row + 1),
            Item(ItemKind.SAVE, slot=state_slot),
        )
        self._logits_rows.append(row)

    def add_live(self, stretch: LiveStretch) -> None:
        """Runs, gaps and snapshots of one assembling request."""
        self._items.append(Item(ItemKind.LOAD, slot=stretch.load_slot))
        self._ids.extend(stretch.token_ids)
        for step in stretch.steps:
            if isinstance(step, LiveRun):
                row = len(self._positions)
                stop = row + step.stop - step.start
                self._positions.extend(range(step.start, step.stop))
                self._add_run(row, stop, step.start, stretch.kv)
                self._items.append(Item(ItemKind.RUN, row, stop))
            elif isinstance(step, SpliceGap):
                self._gaps.append((step, stretch.kv))
                self._items.append(_gap_item(step))
            else:
                self._items.append(Item(ItemKind.SAVE, slot=step.state_slot))
        self._items += (Item(ItemKind.SAVE, slot=slot) for slot in stretch.save_slots)
        assert len(self._ids) == len(self._positions), "token ids must be those of the runs"
        if stretch.wants_logits:
            self._logits_rows.append(len(self._ids) - 1)

    def add_cold(self, chunk: ColdChunk) -> None:
        """One grid chunk of a cold segment, at its local positions."""
        entry, offset = chunk.entry, chunk.offset
        row, count = len(self._ids), len(chunk.token_ids)
        self._ids.extend(chunk.token_ids)
        self._positions.extend(range(offset, offset + count))
        cold_run = ColdRun(
            row_start=row,
            row_stop=row + count,
            offset=offset,
            num_tokens=entry.num_tokens,
            head_tokens=entry.seam.head_tokens,
            tail_tokens=entry.seam.tail_tokens,
            state_slot=entry.state_slot,
            transition_slot=entry.transition_slot,
            work_slot=NO_SLOT if chunk.memory is None else chunk.memory.work_slot,
        )
        self._cold_runs.append(cold_run)
        self._add_cold_attention(row, row + count, offset, chunk.memory)
        start, stop = cold_run.stretches()[1]
        if stop > start and self._has_attention:
            first = start - row + offset - entry.seam.head_tokens
            self._entry_slots.extend([NO_SLOT] * (start - len(self._entry_slots)))
            self._entry_slots.extend(entry.kv_slots[first : first + stop - start].tolist())

    def _add_cold_attention(
        self, row: int, stop: int, offset: int, memory: ColdMemory | None
    ) -> None:
        """Rows [row, stop) see the tokens of their own segment that are not after them."""
        if self._has_attention:
            own = torch.arange(offset + stop - row, device=self._device)
            run = AttentionRun(0, stop - row, offset, own, 0)
            self._cold_attention.append(ColdAttention(row, stop, run, memory))

    def _add_run(self, row: int, stop: int, position: int, kv: KvTable) -> None:
        """Rows [row, stop) stand at `position` and after, and see every position before them."""
        if not self._has_attention:
            return
        self._kv_slots.extend(kv.numbers[position : position + stop - row])
        self._attention_runs.append(
            AttentionRun(row, stop, position, kv.slots, kv.contiguous_start)
        )

    def build(self) -> RunTable:
        """The table, padded."""
        num_rows = len(self._ids)
        padding = -num_rows % ROW_MULTIPLE
        return RunTable(
            ids=self._tensor(self._ids, [0] * padding),
            positions=self._tensor(self._positions, [0] * padding),
            num_rows=num_rows,
            items=tuple(self._items),
            cold_runs=tuple(self._cold_runs),
            attention_runs=tuple(self._attention_runs),
            cold_attention=tuple(self._cold_attention),
            kv_slots=self._padded_slots(self._kv_slots, num_rows + padding),
            entry_slots=self._padded_slots(self._entry_slots, num_rows + padding)
            if self._entry_slots
            else None,
            placement=self._placement(),
            logits_rows=self._tensor(self._logits_rows, []),
        )

    def _tensor(self, numbers: list[int], padding: list[int]) -> torch.Tensor:
        return torch.tensor(numbers + padding, dtype=torch.int64, device=self._device)

    def _padded_slots(self, numbers: list[int], length: int) -> torch.Tensor:
        return self._tensor(numbers, [NO_SLOT] * (length - len(numbers)))

    def _placement(self) -> GapPlacement | None:
        """All gaps of the forward as one copy; angles by local position when gaps do not turn."""
        gaps = self._gaps
        if not gaps or not self._has_attention:
            return None
        starts = [
            (gap.start if self._rotate_gaps else gap.seam.head_tokens, gap.stop - gap.start)
            for gap in (step.gap for step, _ in gaps)
        ]
        sources = torch.cat([step.entry.kv_slots for step, _ in gaps])
        return GapPlacement(
            source_slots=sources.to(self._device),
            target_slots=torch.cat([kv.slots[s.gap.start : s.gap.stop] for s, kv in gaps]),
            positions=torch.cat([torch.arange(a, a + n, device=self._device) for a, n in starts]),
        )


def _gap_item(step: SpliceGap) -> Item:
    return Item(
        ItemKind.GAP,
        slot=step.entry.state_slot,
        transition_slot=step.entry.transition_slot,
        num_tokens=step.gap.stop - step.gap.start,
        start_position=step.gap.segment_start,
    )
