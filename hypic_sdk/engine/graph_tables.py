"""Fixed buffers of a forward that is captured once and run again with other numbers in them.

Everything that a forward without cold rows reads besides weights and slabs is an int64 number:
ids, positions, slots, and the tables of the kernels.  They lie in one buffer, which one copy fills;
grids follow from the sizes of a `Bucket`, and what is left over is nobody's and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import final

import numpy as np
import torch

from hypic_sdk.engine.packed import NOT_FED, feed
from hypic_sdk.engine.run_table import LiveTables, RunTable, TableBuilder
from hypic_sdk.engine.staging import Numbers, Staging
from hypic_sdk.kernels.items import NO_SLOT, ItemKind
from hypic_sdk.kernels.live_attention.plan import FEW_KEYS, AttentionPlan
from hypic_sdk.kernels.live_attention.table import (
    NO_MERGE,
    NO_TASK,
    AttentionLaunch,
    AttentionTable,
    block_sizes,
    plan_blocks,
)
from hypic_sdk.kernels.live_scan.plan import (
    FIELDS,
    LONGEST_WALK,
    STEP_FIELDS,
    WALK_FIELDS,
    WalkPlan,
    plan_walk,
)
from hypic_sdk.kernels.live_scan.walk import TiledWalk, Walk
from hypic_sdk.kernels.rotation import RotarySpec
from hypic_sdk.kernels.short_conv.plan import NOTHING, plan_conv
from hypic_sdk.kernels.short_conv.table import ConvTable, places_of
from hypic_sdk.models.base import ModelSpec

# at most a fifth of a bucket's rows are run for nothing, or less than one tile of 16
ROWS = (
    *(16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896),
    *(1024, 1280, 1536, 1792, 2048),  # of several requests that find their segments cached at once
)
# tasks of attention: for each sequence, of few rows a task (256 are 32k tokens of context); for the
# whole forward, of many.  What they find takes 2 KiB a query head of a task, at two heads of 256
# channels: at most 832 MiB
_SMALL_TASKS = (8, 64, 256)
_LARGE_TASKS = (0, 128, 384, 1024, 2048, 3328)
_MOST_HEADS = 3328 * 128  # of all tasks of one size of block
_SEQUENCE_MULTIPLE = 16
_GAPS = 512  # of models that turn a gap's state
_ITEMS = 1024  # of all sequences, besides LOAD, RUN and SAVE of each
_FEW_ITEMS = 128  # the same where no sequence has a gap or more than a few rows
_SNAPSHOTS = 32
_TILES = (0, 16, 32, 64, 128, 256, 512, 1024, 2048)  # of 16 rows or fewer, in linear layers
_TILES_A_WALKER = 8  # programs take sequences in turn


class Eager(StrEnum):
    """Why a forward ran without a graph."""

    COLD_ROWS = "cold rows"
    MANY_ROWS = "many rows"
    LONG_RUN = "a long run"
    WAITING_SEQUENCES = "sequences that wait for each other"
    LONG_CONTEXT = "a long context"
    MANY_ITEMS = "many items"
    NEW_SHAPE = "a new shape"
    MANY_SHAPES = "many shapes"
    FAILED_CAPTURE = "a capture failed"


@dataclass(frozen=True, slots=True)
class GraphShape:
    """What of a model and its slabs the tables depend on."""

    conv_width: int
    num_slots: int  # rows of the slab of conv tails
    group: int  # query heads of a key head; 0 without attention
    is_wide: bool  # activations are fp32
    gap_rotation: RotarySpec | None

    @classmethod
    def of(
        cls, spec: ModelSpec, dtype: torch.dtype, num_slots: int, *, rotates: bool
    ) -> GraphShape:
        """
        Args:
            rotates: whether a gap's state is turned to where it stands.
        """
        attention = spec.attention if spec.num_attention else None
        return cls(
            conv_width=spec.linear.conv_width,
            num_slots=num_slots,
            group=0 if attention is None else attention.num_query_heads // attention.num_kv_heads,
            is_wide=dtype == torch.float32,
            gap_rotation=spec.linear.key_rotation if rotates else None,
        )

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Query heads a task of attention, small ones first."""
        return block_sizes(self.group, is_wide=self.is_wide) if self.group else ()


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sizes of a captured forward; every batch that fits runs on it."""

    rows: int  # L
    sequences: int  # at most, and rows with logits
    tasks: tuple[int, ...]  # of attention, by size of block
    stepped: int  # sequences whose rows go through linear layers one by one
    tiles: int  # of the rows of all other sequences


@dataclass(frozen=True, slots=True)
class HostTables:
    """Numbers of one batch, flat int64 vectors on the host by name, and the bucket they fit."""

    bucket: Bucket
    pieces: dict[str, Numbers]


def decode_contexts() -> tuple[int, ...]:
    """Tokens of context up to which decode rows have one bucket, for each such bucket."""
    return tuple(FEW_KEYS * num_tasks for num_tasks in _SMALL_TASKS)


def why_eager(builder: TableBuilder) -> Eager | None:
    """Why a batch runs without a graph, as far as a look at its rows and items tells."""
    if not builder.is_live_only:
        return Eager.COLD_ROWS
    if builder.num_rows > ROWS[-1]:
        return Eager.MANY_ROWS
    runs = (item for item in builder.items if item.kind == ItemKind.RUN)
    if any(item.stop - item.start > LONGEST_WALK for item in runs):
        return Eager.LONG_RUN
    return None


def plan_tables(
    builder: TableBuilder,
    shape: GraphShape,
    origin: torch.Tensor,
    known: dict[Bucket, dict[str, Field]] | None = None,
) -> HostTables | Eager:
    """The tables of a batch, or why there is no bucket for it.

    Args:
        origin: [any] int64 on the device, from which slots are counted; always the same one.
        known: fields of buckets that were looked at before; further ones are put there.
    """
    walk = plan_walk(builder.items, LONGEST_WALK)
    if len(walk.launches) != 1 or walk.launches[0].long_runs:
        return Eager.WAITING_SEQUENCES
    attention = (
        plan_blocks(builder.attention_runs, shape.group, is_wide=shape.is_wide, origin=origin)
        if shape.group
        else {}
    )
    bucket = _bucket(builder.num_rows, walk, attention)
    if bucket is None:
        return Eager.LONG_CONTEXT
    pieces = _pieces(builder, shape, walk)
    for size, plan in attention.items():
        pieces[f"tasks {size}"] = _flat(plan.tasks)
        pieces[f"merges {size}"] = _flat(plan.merges)
    fields = {} if known is None else known
    if bucket not in fields:
        fields[bucket] = _sizes(bucket, shape)
    lengths = fields[bucket]
    if any(len(piece) > lengths[name].length for name, piece in pieces.items()):
        return Eager.MANY_ITEMS
    return HostTables(bucket, pieces)


def _pieces(builder: TableBuilder, shape: GraphShape, walk: WalkPlan) -> dict[str, Numbers]:
    """All but those of attention."""
    (launch,) = walk.launches
    conv = plan_conv(builder.items, (), shape.conv_width, shape.num_slots)
    return {
        **builder.host_rows(),
        "row_count": _flat([builder.num_rows]),
        "places": _flat(np.asarray(places_of(conv, builder.num_rows, shape.conv_width))),
        "kept": _flat(list(conv.tails.values())),
        "tail_slots": _flat(list(conv.tails)),
        "launched": _flat(launch.launched),
        "stepped": _flat(launch.stepped),
        "walk": _flat(walk.table),
        "tiles": _flat(walk.tiles),
        "steps": _flat(walk.steps),
        "walks": _flat(launch.walks),
        "walk_count": _flat([len(launch.walks)]),
        "gap_starts": _flat(walk.gap_starts if shape.gap_rotation is not None else ()),
    }


def _bucket(num_rows: int, walk: WalkPlan, attention: dict[int, AttentionPlan]) -> Bucket | None:
    rows = next(size for size in ROWS if size >= num_rows)
    sequences = walk.num_sequences + -walk.num_sequences % _SEQUENCE_MULTIPLE
    tasks = []
    for block, plan in attention.items():
        wanted = _task_counts(block, list(attention), sequences)
        fitting = [count for count in wanted if count >= len(plan.tasks)]
        if not fitting:
            return None
        tasks.append(min(fitting))
    stepped = sequences if any(launch.stepped for launch in walk.launches) else 0
    tiles = next(size for size in _TILES if size >= len(walk.tiles))
    return Bucket(rows, sequences, tuple(tasks), stepped, tiles)


def _task_counts(block: int, blocks: Sequence[int], sequences: int) -> list[int]:
    """How many tasks of one size of block there may be, of all sizes that there are."""
    few = [sequences * count for count in _SMALL_TASKS]
    if block != blocks[0]:
        counts = list(_LARGE_TASKS)
    else:  # where there is no other block, its tasks are all there are
        counts = [0, *few] if len(blocks) > 1 else [*few, *_LARGE_TASKS[1:]]
    return [count for count in counts if count * block <= _MOST_HEADS]


def _flat(numbers: Sequence[int] | Sequence[Sequence[int]] | Numbers) -> Numbers:
    return np.asarray(numbers, dtype=np.int64).reshape(-1)


@dataclass(frozen=True, slots=True)
class Field:
    """One table of a buffer: `count` rows, each `blank` where nothing else is written."""

    count: int
    blank: tuple[int, ...]

    @property
    def length(self) -> int:
        """Numbers of all rows."""
        return self.count * len(self.blank)

    def view(self, numbers: torch.Tensor) -> torch.Tensor:
        """[count] or [count, fields]."""
        return numbers if len(self.blank) == 1 else numbers.view(self.count, len(self.blank))


def _sizes(bucket: Bucket, shape: GraphShape) -> dict[str, Field]:
    rows, sequences, width = bucket.rows, bucket.sequences, shape.conv_width
    tails = 2 * sequences + _SNAPSHOTS
    items = _ITEMS if bucket.tiles else _FEW_ITEMS
    in_tiles = sequences if bucket.tiles else 0
    fields = {
        "ids": Field(rows, (0,)),
        "fed": Field(rows, (NOT_FED,)),
        "positions": Field(rows, (0,)),
        "kv_slots": Field(rows, (NO_SLOT,)),
        "logits_rows": Field(sequences, (0,)),
        "row_count": Field(1, (0,)),
        "places": Field(rows, (NOTHING,) * width),
        "kept": Field(tails * (width - 1), (NOTHING,)),
        "tail_slots": Field(tails, (NO_SLOT,)),
        "launched": Field(sequences, (0, 0, 0)),
        "stepped": Field(bucket.stepped, (0, 0, 0)),
        "tiles": Field(bucket.tiles, (0, 0)),
        "steps": Field(bucket.tiles + 2 * in_tiles + items * bool(in_tiles), (0,) * STEP_FIELDS),
        "walks": Field(in_tiles, (0,) * WALK_FIELDS),
        "walk_count": Field(1, (0,)),
        "walk": Field(3 * sequences + items, (0,) * FIELDS),
        "gap_starts": Field(0 if shape.gap_rotation is None else _GAPS, (0,)),
    }
    for size, tasks in zip(shape.block_sizes, bucket.tasks, strict=True):
        fields[f"tasks {size}"] = Field(tasks, NO_TASK)
        fields[f"merges {size}"] = Field(rows if tasks else 0, NO_MERGE)
    return fields


@final
class FixedTables:
    """The buffer of one bucket, and the tables as views of it; none of them ever moves."""

    def __init__(self, bucket: Bucket, shape: GraphShape, origin: torch.Tensor) -> None:
        """
        Args:
            origin: that of `plan_tables`.
        """
        self._shape = shape
        self._origin = origin
        self._fields = _sizes(bucket, shape)
        self._starts: dict[str, int] = {}
        start = 0
        for name, field in self._fields.items():
            self._starts[name] = start
            # multiples of 16 bytes: a kernel is compiled anew for addresses that are not
            start += field.length + field.length % 2
        self._blank = np.zeros(start, dtype=np.int64)
        for name, field in self._fields.items():
            own = self._blank[self._starts[name] :][: field.length]
            own.reshape(field.count, len(field.blank))[:] = field.blank
        self._staging = Staging(start, origin.device)
        self.buffer = torch.from_numpy(self._blank).to(origin.device, copy=True)
        self._views = {
            name: field.view(self.buffer[self._starts[name] :][: field.length])
            for name, field in self._fields.items()
        }

    def fill(self, pieces: dict[str, Numbers]) -> None:
        """Write the numbers of a batch, one copy; none: a forward of nothing."""
        host = self._staging.next()
        host[:] = self._blank
        for name, piece in pieces.items():
            start = self._starts[name]
            host[start : start + len(piece)] = piece
        self._staging.send(self.buffer)

    def feed(self, drawn_R: torch.Tensor) -> None:
        """Put what the forward before drew to the rows that ask for it."""
        ids = self._views["ids"]
        ids.copy_(feed(ids, self._views["fed"], drawn_R))

    def run_table(self) -> RunTable:
        """A forward over whatever stands in the buffer; nothing of it is read here."""
        views = self._views
        conv = ConvTable(
            views["places"], views["kept"], views["tail_slots"], self.buffer.new_empty(0)
        )
        walk = Walk.in_one_launch(
            views["walk"],
            views["launched"],
            views["gap_starts"],
            self._shape.gap_rotation,
            stepped=views["stepped"],
            tiles=views["tiles"],
            tiled=self._tiled(),
        )
        return RunTable(
            ids=views["ids"],
            positions=views["positions"],
            num_rows=len(views["ids"]),
            row_count=views["row_count"],
            items=(),
            cold_runs=(),
            attention_runs=(),
            whole_runs=(),
            cold_attention=(),
            kv_slots=views["kv_slots"],
            entry_slots=None,
            placement=None,
            logits_rows=views["logits_rows"],
            live=LiveTables(conv, walk, self._attention()),
        )

    def _tiled(self) -> TiledWalk | None:
        views = self._views
        if not len(views["tiles"]):
            return None
        num_walkers = -(-len(views["tiles"]) // _TILES_A_WALKER)
        return TiledWalk(views["steps"], views["walks"], views["walk_count"], num_walkers)

    def _attention(self) -> AttentionTable:
        launches = [
            AttentionLaunch(
                size, self._views[f"tasks {size}"], self._views[f"merges {size}"], count
            )
            for size in self._shape.block_sizes
            if (count := len(self._views[f"tasks {size}"]))
        ]
        return AttentionTable(self._origin, tuple(launches))
