"""Tables in fixed buffers: number for number those of an eager forward, and blank behind them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hypic_sdk.config import SeamWidths
from hypic_sdk.engine import graph_tables
from hypic_sdk.engine.graph_tables import FixedTables, GraphShape, HostTables, plan_tables
from hypic_sdk.engine.kv_table import KvTable
from hypic_sdk.engine.packed import NOT_FED
from hypic_sdk.engine.plan import Gap, LiveRun
from hypic_sdk.engine.run_table import LiveStep, LiveStretch, RunTable, SaveState, TableBuilder
from hypic_sdk.engine.splice import SpliceGap
from hypic_sdk.kernels.items import NO_SLOT
from hypic_sdk.kernels.live_scan.plan import LONGEST_WALK
from hypic_sdk.kernels.live_scan.walk import Walk
from hypic_sdk.kernels.rotation import RotarySpec
from hypic_sdk.kernels.short_conv.plan import NOTHING
from hypic_sdk.kernels.short_conv.table import ConvTable
from hypic_sdk.prompt.segment import SegmentKey
from hypic_sdk.store.entries import SegmentEntry

CPU = torch.device("cpu")
KEY = SegmentKey(b"k" * 32)
NUM_SLOTS = 400
SHAPE = GraphShape(
    conv_width=4, num_slots=NUM_SLOTS, group=2, is_wide=True, gap_rotation=RotarySpec(1e4, 8)
)
DRAWN = torch.tensor([71, 72, 73, 74])


def kv_table(first: int, length: int) -> KvTable:
    return KvTable(torch.arange(first, first + length), CPU)


def empty_builder() -> TableBuilder:
    return TableBuilder(has_attention=True, rotate_gaps=True, device=CPU)


def decoding(num_rows: int) -> TableBuilder:
    """Decode rows; every other one is fed by the forward before, the last one too."""
    builder = empty_builder()
    for row in range(num_rows):
        fed_from = (row // 2) % len(DRAWN) if (num_rows - row) % 2 else None
        kv = kv_table(100 * row, 30)
        builder.add_decode(50 + row, 20 + row % 5, 300 + row, kv, fed_from)
    return builder


def add_request(builder: TableBuilder, number: int, num_snapshots: int) -> None:
    """Runs and gaps, with some snapshots inside of the last run and two replies behind it."""
    steps: list[LiveStep] = [LiveRun(0, 3)]
    for index, start in enumerate((3, 40)):
        gap = Gap(KEY, 1, start, 37, SeamWidths(4, 0))
        entry = SegmentEntry(KEY, 37, SeamWidths(4, 0), index, index, torch.arange(33), 0)
        steps += [LiveRun(start, start + 4), SpliceGap(gap, entry)]
    position = 77
    for snapshot in range(num_snapshots):
        steps += [LiveRun(position, position + 1), SaveState(10 + 40 * number + snapshot)]
        position += 1
    steps.append(LiveRun(position, position + 2))
    num_rows = sum(step.stop - step.start for step in steps if isinstance(step, LiveRun))
    ids = [5 + number + row for row in range(num_rows)]
    saves = [300 + 2 * number, 301 + 2 * number]
    kv = kv_table(1000 * number, position + 9)
    builder.add_live(LiveStretch(ids, steps, NO_SLOT, saves, kv, wants_logits=True))


def assembling() -> TableBuilder:
    """Two requests with gaps, and decode rows beside them."""
    builder = empty_builder()
    for number in range(2):
        add_request(builder, number, num_snapshots=2 + number)
    for row in range(3):
        builder.add_decode(60 + row, 20, 390 + row, kv_table(5000 + 100 * row, 30), row)
    return builder


def full_of_tails() -> TableBuilder:
    """As many sequences as a bucket has, and as many saved tails as there may be of them."""
    builder, sequences = empty_builder(), graph_tables._SEQUENCE_MULTIPLE
    num_tails = 2 * sequences + graph_tables._SNAPSHOTS
    steps: list[LiveStep] = []
    for snapshot in range(num_tails - sequences):
        steps += [LiveRun(snapshot, snapshot + 1), SaveState(snapshot)]
    ids = [5 + row for row in range(num_tails - sequences)]
    kv = kv_table(0, len(ids) + 9)
    builder.add_live(LiveStretch(ids, steps, NO_SLOT, [300], kv, wants_logits=True))
    for row in range(1, sequences):
        builder.add_decode(50, 20, 300 + row, kv_table(1000 + 100 * row, 30), row % len(DRAWN))
    return builder


BATCHES = {
    "one row": lambda: decoding(1),
    "rows": lambda: decoding(7),
    "rows that fill a bucket": lambda: decoding(16),
    "requests": assembling,
    "tails that fill a bucket": full_of_tails,
}


def origin() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int64)


def planned(builder: TableBuilder, shape: GraphShape, where: torch.Tensor) -> HostTables:
    tables = plan_tables(builder, shape, where)
    assert isinstance(tables, HostTables), tables
    return tables


def filled(builder: TableBuilder, shape: GraphShape = SHAPE) -> tuple[RunTable, FixedTables]:
    where = origin()
    tables = planned(builder, shape, where)
    fixed = FixedTables(tables.bucket, shape, where)
    fixed.fill(tables.pieces)
    fixed.feed(DRAWN)
    return fixed.run_table(), fixed


def assert_starts_with(what: str, got: torch.Tensor, want: torch.Tensor, blank: int) -> None:
    """The wanted rows, and blank ones behind them."""
    assert len(want) <= len(got), f"{what}: {len(got)} rows for {len(want)}"
    assert torch.equal(got[: len(want)], want.view(-1, *got.shape[1:])), what
    assert (got[len(want) :] == blank).all(), f"{what}: not blank behind {len(want)} rows"


@pytest.mark.parametrize("batch", BATCHES)
def test_rows_are_those_of_an_eager_forward(batch):
    builder = BATCHES[batch]()
    assert builder.is_fed
    got, _ = filled(builder)
    want, num_rows = builder.build(DRAWN), builder.num_rows
    assert int(got.row_count) == num_rows
    assert_starts_with("ids", got.ids, want.ids[:num_rows], 0)
    assert_starts_with("positions", got.positions, want.positions[:num_rows], 0)
    assert_starts_with("kv_slots", got.kv_slots, want.kv_slots[:num_rows], NO_SLOT)
    assert_starts_with("logits_rows", got.logits_rows, want.logits_rows, 0)
    fed = set(DRAWN.tolist()) & set(got.ids.tolist())
    assert fed, "some row is what was drawn before"


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("width", [2, 4, 5])
def test_conv_tables_are_those_of_an_eager_forward(batch, width):
    """The newest input of the last tail, too: a table one entry short would lose it."""
    builder = BATCHES[batch]()
    got, _ = filled(builder, replace(SHAPE, conv_width=width))
    assert got.live is not None
    sizes = (builder.num_rows, width, NUM_SLOTS)
    want, conv = ConvTable.of(builder.items, (), sizes, CPU), got.live.conv
    assert len(conv.kept) == len(conv.tail_slots) * (width - 1)
    assert_starts_with("places", conv.places, want.places, NOTHING)
    assert_starts_with("kept", conv.kept, want.kept, NOTHING)
    assert_starts_with("tail_slots", conv.tail_slots, want.tail_slots, NO_SLOT)
    assert len(want.kept) == len(want.tail_slots) * (width - 1)
    assert len(conv.work_slots) == 0


def test_as_many_tails_as_a_bucket_may_have_fill_its_tables_to_the_end():
    got, _ = filled(full_of_tails())
    assert got.live is not None
    assert (got.live.conv.tail_slots != NO_SLOT).all()
    assert got.live.conv.kept[-1] != NOTHING


@pytest.mark.parametrize("batch", BATCHES)
def test_walks_are_those_of_an_eager_forward(batch):
    builder = BATCHES[batch]()
    got, _ = filled(builder)
    assert got.live is not None
    walk = got.live.scan
    want = Walk.of(builder.items, LONGEST_WALK, SHAPE.gap_rotation, CPU)
    assert_starts_with("table", walk.table, want.table, 0)
    for name in ("launched", "stepped"):
        ([mine], [right]) = (getattr(one, name) for one in (walk, want))
        assert_starts_with(name, mine, right, 0)
    assert_starts_with("tiles", walk.tiles, want.tiles, 0)
    assert torch.equal(walk.cos[: len(want.cos)], want.cos)
    assert torch.equal(walk.sin[: len(want.sin)], want.sin)
    ([mine], [right]) = walk.tiled, want.tiled
    assert (mine is None) == (right is None)
    if mine is not None and right is not None:
        assert_starts_with("steps", mine.steps, right.steps, 0)
        assert_starts_with("walks", mine.walks, right.walks, 0)
        assert torch.equal(mine.count, right.count)


@pytest.mark.parametrize("batch", BATCHES)
def test_every_table_holds_its_numbers_and_is_blank_behind_them(batch):
    """Also where a larger batch stood before."""
    builder, where = BATCHES[batch](), origin()
    tables = planned(builder, SHAPE, where)
    fixed = FixedTables(tables.bucket, SHAPE, where)
    fields = graph_tables._sizes(tables.bucket, SHAPE)
    full = {n: np.full(field.length, 9, dtype=np.int64) for n, field in fields.items()}
    fixed.fill(full)
    assert all((view == 9).all() for view in fixed._views.values())
    fixed.fill(tables.pieces)
    assert set(tables.pieces) <= set(fields)
    assert set(fields) == set(fixed._views)
    for name, field in fields.items():
        numbers = fixed._views[name].reshape(-1)
        piece = torch.from_numpy(tables.pieces.get(name, np.zeros(0, dtype=np.int64)))
        blank = torch.tensor(field.blank).repeat(field.count)
        assert torch.equal(numbers[: len(piece)], piece), name
        assert torch.equal(numbers[len(piece) :], blank[len(piece) :]), name


def test_rows_that_nobody_feeds_keep_their_ids():
    builder = empty_builder()
    builder.add_decode(50, 20, 300, kv_table(0, 30))
    builder.add_decode(51, 20, 301, kv_table(100, 30))
    got, fixed = filled(builder)
    assert got.ids[:2].tolist() == [50, 51]
    assert (fixed._views["fed"] == NOT_FED).all()
