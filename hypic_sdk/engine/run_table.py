"""Hypic Assembler, second half: one mixed forward as a table of rows, runs and gaps.

A forward mixes decode rows, live runs with the gaps between them, and grid chunks of cold segments.
`TableBuilder` packs them; `RunTable` is what the context answers from.  Rows of one sequence are
contiguous and in order; the batch ends with padding rows (token 0, position 0) that no item runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from hypic_sdk.engine.cold_memory import ColdMemory
from hypic_sdk.engine.gap_placement import GapPlacement, GapSpan, placement_of, ranges_of_gaps
from hypic_sdk.engine.kv_table import KvTable
from hypic_sdk.engine.packed import NOT_FED, feed, padded, upload_packed
from hypic_sdk.engine.plan import LiveRun
from hypic_sdk.engine.splice import SpliceGap
from hypic_sdk.engine.staging import Numbers
from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.items import NO_SLOT, ColdRun, Item, ItemKind
from hypic_sdk.kernels.live_attention.table import AttentionTable
from hypic_sdk.kernels.live_scan.walk import Walk
from hypic_sdk.kernels.short_conv.table import ConvTable
from hypic_sdk.kernels.upload import upload
from hypic_sdk.store.entries import SegmentEntry

# rows of a batch are padded to a multiple of this, so that a row's bits do not depend on how many
# rows stand beside it (design 3.9)
ROW_MULTIPLE = 16


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
    """Attention of one chunk over a segment that does not fit it, in memory of its own."""

    row_start: int
    row_stop: int
    first_position: int
    runs: tuple[AttentionRun]  # one, which counts rows from the chunk's first row
    memory: ColdMemory


@dataclass(frozen=True, slots=True)
class LiveTables:
    """What live sequences do, as the kernels read it, instead of items and runs on the host."""

    conv: ConvTable
    scan: Walk
    attention: AttentionTable


@dataclass(frozen=True, slots=True)
class RunTable:
    """One mixed forward."""

    ids: torch.Tensor  # [L] int64
    positions: torch.Tensor  # [L] int64
    num_rows: int  # without padding
    row_count: torch.Tensor  # [1] int64, the same number on the device
    items: tuple[Item, ...]
    cold_runs: tuple[ColdRun, ...]
    attention_runs: tuple[AttentionRun, ...]  # of live rows, over the store's slabs
    # of segments that are whole in this forward, over its own rows instead of the slabs
    whole_runs: tuple[AttentionRun, ...]
    cold_attention: tuple[ColdAttention, ...]  # of all others
    kv_slots: torch.Tensor  # [L] int64: where a live row's rotated key and its value go, or NO_SLOT
    entry_slots: torch.Tensor | None  # [L] int64: where an interior's unrotated key goes
    placement: GapPlacement | None  # of gaps over entries that are there
    logits_rows: torch.Tensor  # [N] int64, one per sequence that wants logits, in order of adding
    live: LiveTables | None = None  # where it is given, items and attention runs are empty
    # of gaps over entries that this forward itself completes: placed layer by layer
    joined: GapPlacement | None = None


@final
class TableBuilder:
    """Packs the sequences of one forward, in the order in which they are added."""

    def __init__(self, *, has_attention: bool, rotate_gaps: bool, device: torch.device) -> None:
        self._has_attention = has_attention
        self._rotate_gaps = rotate_gaps
        self._device = device
        self._ids: list[int] = []
        self._positions: list[int] = []
        self._kv_slots: list[Numbers] = []  # of all live rows, which come first
        self._entry_slots: list[tuple[int, torch.Tensor]] = []  # from which row on
        self._items: list[Item] = []
        self._cold_runs: list[ColdRun] = []
        self._attention_runs: list[AttentionRun] = []
        self._whole_runs: list[AttentionRun] = []
        self._cold_attention: list[ColdAttention] = []
        self._gaps: list[tuple[SpliceGap, KvTable]] = []
        self._logits_rows: list[int] = []
        self._fed: dict[int, int] = {}  # by row

    @property
    def num_rows(self) -> int:
        """Rows so far."""
        return len(self._ids)

    @property
    def num_logits_rows(self) -> int:
        """Sequences so far that want logits."""
        return len(self._logits_rows)

    @property
    def is_live_only(self) -> bool:
        """Whether no row is a cold segment's."""
        return not self._cold_runs

    @property
    def items(self) -> Sequence[Item]:
        """So far, of all live sequences."""
        return self._items

    @property
    def attention_runs(self) -> Sequence[AttentionRun]:
        """So far, of all live rows."""
        return self._attention_runs

    @property
    def is_fed(self) -> bool:
        """Whether the id of some row is what the forward before drew."""
        return bool(self._fed)

    def host_rows(self) -> dict[str, Numbers]:
        """int64 vectors on the host, without padding: ids, positions, kv_slots, logits_rows, fed.

        `fed` is there if any row is: per row, where its id stands in what was drawn, or NOT_FED.
        """
        fed = [self._fed.get(row, NOT_FED) for row in range(len(self._ids))] if self._fed else ()
        return {
            **({"fed": _numbers(fed)} if fed else {}),
            "ids": _numbers(self._ids),
            "positions": _numbers(self._positions),
            "kv_slots": np.concatenate([_numbers([]), *self._kv_slots]),
            "logits_rows": _numbers(self._logits_rows),
        }

    def placement(self) -> GapPlacement | None:
        """What is to be placed before a forward, on the device."""
        spans = self._gap_spans().get("gaps")
        if spans is None:
            return None
        ranges = torch.from_numpy(ranges_of_gaps(spans))
        return placement_of(upload(ranges, self._device), _num_placed(spans))

    def add_decode(
        self,
        token_id: int,
        position: int,
        state_slot: int,
        kv: KvTable,
        fed_from: int | None = None,
    ) -> None:
        """One row that continues the running state in `state_slot`.

        Args:
            fed_from: place of its id among those that the forward before drew, instead of
                `token_id`.
        """
        row = len(self._ids)
        if fed_from is not None:
            self._fed[row] = fed_from
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
                self._items.append(step.item)
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
            self._entry_slots.append((start, entry.kv_slots[first : first + stop - start]))

    def _add_cold_attention(
        self, row: int, stop: int, offset: int, memory: ColdMemory | None
    ) -> None:
        """Rows [row, stop) see the tokens of their own segment that are not after them."""
        if not self._has_attention:
            return
        if memory is None:
            assert offset == 0, "a segment without memory of its own is this one chunk"
            rows = torch.arange(row, stop, device=self._device)
            self._whole_runs.append(AttentionRun(row, stop, 0, rows, row))
            return
        own = torch.arange(offset + stop - row, device=self._device)
        runs = (AttentionRun(0, stop - row, offset, own, 0),)
        self._cold_attention.append(ColdAttention(row, stop, offset, runs, memory))

    def _add_run(self, row: int, stop: int, position: int, kv: KvTable) -> None:
        """Rows [row, stop) stand at `position` and after, and see every position before them."""
        if not self._has_attention:
            return
        own = kv.between(position, position + stop - row)
        self._kv_slots += (np.arange(one.start, one.stop) for one in own)
        self._attention_runs.append(
            AttentionRun(row, stop, position, kv.slots, kv.contiguous_start)
        )

    def build(self, drawn_R: torch.Tensor | None = None, *, places_gaps: bool = True) -> RunTable:
        """The table, padded; all its numbers go to the device in one piece.

        Args:
            drawn_R: [any] int64 on the device, what the forward before drew, if rows are fed.
            places_gaps: as part of the forward; false where `placement` was placed before it.
        """
        num_rows = len(self._ids)
        length = num_rows + -num_rows % ROW_MULTIPLE
        rows = {name: torch.from_numpy(numbers) for name, numbers in self.host_rows().items()}
        pieces = {
            "ids": padded(rows["ids"], length, 0),
            "positions": padded(rows["positions"], length, 0),
            "kv_slots": padded(rows["kv_slots"], length, NO_SLOT),
            "logits_rows": rows["logits_rows"],
            "row_count": torch.tensor([num_rows]),
        }
        if "fed" in rows:
            pieces["fed"] = padded(rows["fed"], length, NOT_FED)
        if self._entry_slots:
            pieces["entry_slots"] = self._host_entry_slots(length)
        gaps = self._gap_spans()
        if not places_gaps:
            gaps.pop("gaps", None)
        pieces |= {name: torch.from_numpy(ranges_of_gaps(own)) for name, own in gaps.items()}
        there = upload_packed(pieces, self._device)
        placed = {name: placement_of(there[name], _num_placed(own)) for name, own in gaps.items()}
        ids = there["ids"]
        if drawn_R is not None and self._fed:
            ids = feed(ids, there["fed"], drawn_R)
        return RunTable(
            ids=ids,
            positions=there["positions"],
            num_rows=num_rows,
            row_count=there["row_count"],
            items=tuple(self._items),
            cold_runs=tuple(self._cold_runs),
            attention_runs=tuple(self._attention_runs),
            whole_runs=tuple(self._whole_runs),
            cold_attention=tuple(self._cold_attention),
            kv_slots=there["kv_slots"],
            entry_slots=there.get("entry_slots"),
            placement=placed.get("gaps"),
            logits_rows=there["logits_rows"],
            joined=placed.get("joined"),
        )

    def _host_entry_slots(self, length: int) -> torch.Tensor:
        slots = torch.full((length,), NO_SLOT, dtype=torch.int64)
        for row, own in self._entry_slots:
            slots[row : row + len(own)] = own
        return slots

    def _gap_spans(self) -> dict[str, list[GapSpan]]:
        """Keys of gaps over entries that are there, and over those that this forward writes."""
        written = {run.state_slot for run in self._cold_runs}
        found: dict[str, list[GapSpan]] = {}
        for step, kv in self._gaps if self._has_attention else ():
            name = "joined" if step.entry.state_slot in written else "gaps"
            found.setdefault(name, []).append(step.span(kv, rotates=self._rotate_gaps))
        return found


def _numbers(numbers: Sequence[int]) -> Numbers:
    return np.array(numbers, dtype=np.int64)


def _num_placed(spans: Sequence[GapSpan]) -> int:
    return sum(sum(map(len, span.sources)) for span in spans)
