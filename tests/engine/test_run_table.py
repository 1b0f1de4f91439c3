"""A run table says for every row where it stands, what it sees and where its keys go."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.config import SeamWidths
from hypic_sdk.engine import packed, run_table
from hypic_sdk.engine.cold_memory import ColdMemory
from hypic_sdk.engine.kv_table import KvTable
from hypic_sdk.engine.plan import Gap, LiveRun
from hypic_sdk.engine.run_table import (
    ROW_MULTIPLE,
    ColdChunk,
    LiveStretch,
    RunTable,
    SaveState,
    TableBuilder,
)
from hypic_sdk.engine.splice import SpliceGap
from hypic_sdk.kernels.items import NO_SLOT, ItemKind
from hypic_sdk.prompt.segment import SegmentKey
from hypic_sdk.store.entries import SegmentEntry

CPU = torch.device("cpu")
KEY = SegmentKey(b"k" * 32)


def builder(**changes: bool) -> TableBuilder:
    return TableBuilder(**{"has_attention": True, "rotate_gaps": True, **changes}, device=CPU)


def entry_of(num_tokens: int, head: int, tail: int, *, state_slot: int = 7) -> SegmentEntry:
    slots = torch.arange(500, 500 + num_tokens - head - tail)
    return SegmentEntry(KEY, num_tokens, SeamWidths(head, tail), state_slot, 8, slots, 0)


def memory() -> ColdMemory:
    return ColdMemory(3, torch.empty(0), torch.empty(0))


def scattered(count: int, first: int = 0) -> KvTable:
    """Slots that do not rise by one."""
    return KvTable(torch.arange(first, first + 2 * count, 2).flip(0), CPU)


def visible(table: RunTable) -> dict[int, list[int]]:
    """For every live row, the slots it attends to."""
    seen = {}
    for run in table.attention_runs:
        for row in range(run.row_start, run.row_stop):
            stop = run.first_position + row - run.row_start + 1
            seen[row] = run.slots[:stop].tolist()
    return seen


@given(positions=st.lists(st.integers(0, 40), min_size=1, max_size=20))
def test_decode_rows_see_their_own_past_and_nothing_else(positions):
    build = builder()
    tables = [scattered(41, first=100 * i) for i in range(len(positions))]
    for i, position in enumerate(positions):
        build.add_decode(i + 3, position, state_slot=i, kv=tables[i])
    table = build.build()
    assert table.num_rows == len(positions)
    assert table.ids.shape[0] % ROW_MULTIPLE == 0
    assert table.ids[: len(positions)].tolist() == [i + 3 for i in range(len(positions))]
    assert table.positions[: len(positions)].tolist() == positions
    assert table.logits_rows.tolist() == list(range(len(positions)))
    for i, position in enumerate(positions):
        assert visible(table)[i] == tables[i].host_slots[: position + 1].tolist()
        assert table.kv_slots[i] == tables[i].host_slots[position]
        load, run, save = table.items[3 * i : 3 * i + 3]
        assert (load.kind, load.slot) == (ItemKind.LOAD, i)
        assert (run.kind, run.start, run.stop) == (ItemKind.RUN, i, i + 1)
        assert (save.kind, save.slot) == (ItemKind.SAVE, i)
    assert set(table.ids[len(positions) :].tolist()) <= {0}
    assert set(table.kv_slots[len(positions) :].tolist()) <= {NO_SLOT}


def stretch(kv: KvTable, steps: list, token_ids: list[int]) -> LiveStretch:
    return LiveStretch(
        token_ids, steps, load_slot=NO_SLOT, save_slots=[2], kv=kv, wants_logits=True
    )


def test_a_stretch_walks_runs_gaps_and_snapshots_in_order():
    entry = entry_of(20, 4, 2)
    gap = Gap(KEY, 0, segment_start=3, num_tokens=20, seam=SeamWidths(4, 2))
    kv = scattered(40)
    build = builder()
    build.add_decode(9, 5, state_slot=0, kv=scattered(9, first=900))
    steps = [LiveRun(0, 3), LiveRun(3, 7), SpliceGap(gap, entry), SaveState(6), LiveRun(21, 25)]
    build.add_live(stretch(kv, steps, list(range(11, 22))))
    table = build.build()
    kinds = [item.kind for item in table.items[3:]]
    assert kinds == [
        ItemKind.LOAD,
        ItemKind.RUN,
        ItemKind.RUN,
        ItemKind.GAP,
        ItemKind.SAVE,
        ItemKind.RUN,
        ItemKind.SAVE,
    ]
    cached = table.items[6]
    assert (cached.slot, cached.transition_slot) == (7, 8)
    assert (cached.num_tokens, cached.start_position) == (14, 3)
    assert [table.items[3].slot, table.items[7].slot, table.items[9].slot] == [NO_SLOT, 6, 2]
    assert table.positions[1:12].tolist() == [*range(7), *range(21, 25)]
    assert table.logits_rows.tolist() == [0, 11]
    assert visible(table)[11] == kv.host_slots[:25].tolist()
    placement = table.placement
    assert placement is not None
    assert placement.source_slots.tolist() == entry.kv_slots.tolist()
    assert placement.target_slots.tolist() == kv.host_slots[7:21].tolist()
    assert placement.positions.tolist() == list(range(7, 21))


def test_gaps_that_do_not_turn_keep_their_local_angles():
    gap = Gap(KEY, 0, segment_start=30, num_tokens=20, seam=SeamWidths(4, 2))
    build = builder(rotate_gaps=False)
    steps = [SpliceGap(gap, entry_of(20, 4, 2)), LiveRun(48, 50)]
    build.add_live(stretch(scattered(60), steps, [1, 2]))
    placement = build.build().placement
    assert placement is not None
    assert placement.positions.tolist() == list(range(4, 18))
    assert placement.target_slots.shape == (14,)


@given(
    num_tokens=st.integers(3, 60),
    head=st.integers(0, 9),
    tail=st.integers(0, 9),
    chunk=st.integers(1, 64),
)
def test_cold_chunks_keep_the_interior_and_nothing_else(num_tokens, head, tail, chunk):
    if num_tokens - head - tail < 1:
        return
    entry = entry_of(num_tokens, head, tail)
    kept = {}
    for offset in range(0, num_tokens, chunk):
        stop = min(num_tokens, offset + chunk)
        build = builder()
        build.add_decode(9, 0, state_slot=0, kv=scattered(1))
        has_memory = num_tokens > chunk
        ids = list(range(offset, stop))
        build.add_cold(ColdChunk(ids, offset, entry, memory() if has_memory else None))
        table = build.build()
        rows = range(1, 1 + stop - offset)
        assert table.ids[1 : rows.stop].tolist() == ids
        assert table.positions[1 : rows.stop].tolist() == ids
        assert set(table.kv_slots[1:].tolist()) == {NO_SLOT}
        assert [run.row_start for run in table.attention_runs] == [0]
        (cold_run,) = table.cold_runs
        assert cold_run.work_slot == (3 if has_memory else NO_SLOT)
        if has_memory:
            (cold,), (run,) = table.cold_attention, table.cold_attention[0].runs
            assert (cold.row_start, cold.row_stop) == (1, rows.stop)
            assert (cold.first_position, run.first_position, run.row_start) == (offset, offset, 0)
            assert run.slots.tolist() == list(range(stop))
        else:
            (run,) = table.whole_runs
            assert (run.row_start, run.first_position) == (1, 0)
            assert run.slots.tolist() == list(rows), "keys are rows of the forward"
        assert run.num_rows == stop - offset
        assert len(table.whole_runs) + len(table.cold_attention) == 1
        slots = table.entry_slots
        if slots is not None:
            assert slots.shape == table.ids.shape
            kept |= {ids[r - 1]: int(slots[r]) for r in rows if slots[r] != NO_SLOT}
    assert kept == {head + i: int(slot) for i, slot in enumerate(entry.kv_slots)}


def test_a_model_without_attention_has_no_slots():
    build = builder(has_attention=False)
    gap = Gap(KEY, 0, segment_start=0, num_tokens=20, seam=SeamWidths(4, 2))
    steps = [LiveRun(0, 4), SpliceGap(gap, entry_of(20, 4, 2)), LiveRun(18, 20)]
    none = KvTable(torch.empty(0, dtype=torch.int64), CPU)
    build.add_live(stretch(none, steps, [1] * 6))
    build.add_cold(ColdChunk([1] * 20, 0, entry_of(20, 4, 2), None))
    table = build.build()
    assert (table.attention_runs, table.whole_runs, table.cold_attention) == ((), (), ())
    assert table.placement is None
    assert table.entry_slots is None


def test_no_table_is_read_back_from_the_device():
    """Tensors on `meta` have no values that could be read."""
    meta = torch.device("meta")
    build = TableBuilder(has_attention=True, rotate_gaps=True, device=meta)
    kv = KvTable(torch.arange(40), meta)
    build.add_decode(9, 5, state_slot=0, kv=kv)
    gap = Gap(KEY, 0, segment_start=3, num_tokens=20, seam=SeamWidths(4, 2))
    steps = [LiveRun(0, 7), SpliceGap(gap, entry_of(20, 4, 2)), LiveRun(21, 25)]
    build.add_live(stretch(kv, steps, list(range(11))))
    build.add_cold(ColdChunk(range(30), 0, entry_of(30, 4, 2, state_slot=9), None))
    table = build.build()
    assert table.placement is not None
    for tensor in (table.ids, table.kv_slots, table.entry_slots, table.placement.source_slots):
        assert tensor.device == meta


@given(rows=st.integers(1, 5), gap_tokens=st.integers(3, 40), cold_tokens=st.integers(0, 30))
def test_a_forward_takes_one_upload(rows, gap_tokens, cold_tokens):
    """Each would wait for the device, or at least cost a launch; and all pieces are aligned."""
    sent = []

    def watched(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
        sent.append(numbers)
        return numbers.to(device)

    build, kv = builder(), scattered(80)
    for row in range(rows):
        build.add_decode(9, row, state_slot=row, kv=kv)
    gap = Gap(KEY, 0, segment_start=3, num_tokens=gap_tokens, seam=SeamWidths(1, 0))
    stop = 3 + gap_tokens
    steps = [LiveRun(0, 4), SpliceGap(gap, entry_of(gap_tokens, 1, 0)), LiveRun(stop, stop + 2)]
    build.add_live(stretch(kv, steps, list(range(6))))
    if cold_tokens > 1:
        build.add_cold(
            ColdChunk(range(cold_tokens), 0, entry_of(cold_tokens, 1, 0, state_slot=9), None)
        )
    with pytest.MonkeyPatch.context() as patch:
        for module in (run_table, packed):
            patch.setattr(module, "upload", watched)
        table = build.build()
    (whole,) = sent
    placement = table.placement
    assert placement is not None
    pieces = [table.ids, table.positions, table.kv_slots, table.logits_rows]
    pieces += [] if table.entry_slots is None else [table.entry_slots]
    for piece in pieces:
        assert (piece.data_ptr() - whole.data_ptr()) % 16 == 0
    for placed in (placement.source_slots, placement.target_slots, placement.positions):
        assert placed.data_ptr() % 16 == 0
