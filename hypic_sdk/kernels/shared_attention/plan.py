"""Runs over live keys of their own and cached keys that others read too, as tasks of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from hypic_sdk.kernels.live_attention.plan import Merge, stretch_keys
from hypic_sdk.kernels.live_attention.table import block_of, block_sizes
from hypic_sdk.kernels.upload import upload

# which side is rotated so that the two fit: cached keys stand rotated at their place in the segment
# and the query is turned to fit them; or they stand unrotated and are rotated while they are read
Turn = Literal["query", "key"]


@dataclass(frozen=True, slots=True, eq=False)
class SharedInterior:
    """Cached keys in their segment's own slots, all of them before the rows that see them."""

    position: int  # of the first key, in the request
    local_position: int  # of the first key, in its segment
    slots: torch.Tensor  # [n] int64

    @property
    def segment_position(self) -> int:
        """Where the segment starts in the request."""
        return self.position - self.local_position


@dataclass(frozen=True, slots=True, eq=False)
class SharedRun:
    """Rows [row_start, row_stop) of a batch, contiguous and rising in one sequence.

    Row row_start + i stands at first_position + i; its own key is live key first_live + i, and it
    sees the live keys up to that one and every key of the interiors.
    """

    row_start: int
    row_stop: int
    first_position: int
    live_slots: torch.Tensor  # [>= first_live + rows] int64; keys rotated at their positions
    first_live: int
    interiors: tuple[SharedInterior, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.row_start < self.row_stop:
            raise ValueError(f"rows [{self.row_start}, {self.row_stop}) are no run")
        if self.first_live < 0 or self.live_slots.shape[0] < self.num_live:
            raise ValueError(f"{self.num_live} live keys in {self.live_slots.shape[0]} slots")

    @property
    def num_rows(self) -> int:
        """Queries of the run."""
        return self.row_stop - self.row_start

    @property
    def num_live(self) -> int:
        """Live keys that the last row sees."""
        return self.first_live + self.num_rows


class SharedTask(NamedTuple):
    """Rows of one run over keys [first_key, stop_key) of its live ones or of one interior."""

    row: int
    num_rows: int
    last_key: int  # that the first row sees; each further row sees one more
    slots_start: int  # in the table's slots
    first_key: int
    stop_key: int
    partial: int  # place of what it finds, or -1: it sees all keys and writes the output
    query_turn: int  # the angle's position for the first row; each further row one more
    key_turn: int  # the same for key 0, and ..
    key_step: int  # .. for each further key; 0 and 0: the keys are rotated already


@dataclass(frozen=True, eq=False, slots=True)
class SharedLaunch:
    """One size of block: its tasks and merges on the device."""

    block_m: int
    tasks: torch.Tensor  # [tasks, 10] int64
    merges: torch.Tensor  # [merges, 4] int64
    num_partials: int


@dataclass(frozen=True, eq=False, slots=True)
class SharedTable:
    """All runs of a forward, for every layer of it."""

    slots: torch.Tensor  # [any] int64: live and interior slots of all runs, one behind the other
    launches: tuple[SharedLaunch, ...]

    @classmethod
    def of(cls, runs: Sequence[SharedRun], group: int, turn: Turn, *, is_wide: bool) -> SharedTable:
        """Plan at least one run, and bring the tables to the device of its slots.

        Args:
            group: query heads of a key head.
            is_wide: queries are fp32.
        """
        lists = [one for run in runs for one in (run.live_slots, *(x.slots for x in run.interiors))]
        starts, count = [], 0
        for run in runs:
            starts.append(count)
            count += run.live_slots.shape[0] + sum(x.slots.shape[0] for x in run.interiors)
        sizes, device = block_sizes(group, is_wide=is_wide), lists[0].device
        launches = []
        for size in sizes:
            own = [
                (run, start)
                for run, start in zip(runs, starts, strict=True)
                if block_of(run.num_rows, group, is_wide=is_wide) == size
            ]
            tasks, merges = plan_shared(own, size // group, turn)
            num_partials = sum(m.num_partials for m in merges if m.place == 0)
            if tasks:
                tables = upload(tasks, device), upload(merges, device)
                launches.append(SharedLaunch(size, *tables, num_partials))
        return cls(torch.cat(lists), tuple(launches))


def plan_shared(
    runs: Sequence[tuple[SharedRun, int]], rows_per_task: int, turn: Turn
) -> tuple[list[SharedTask], list[Merge]]:
    """Cut runs, each with the place of its first slot, into tasks and the sums of them."""
    tasks: list[SharedTask] = []
    merges: list[Merge] = []
    num_partials = 0
    for run, start in runs:
        for row in range(run.row_start, run.row_stop, rows_per_task):
            found = _row_tasks(run, start, row, min(rows_per_task, run.row_stop - row), turn)
            if len(found) == 1:
                tasks += found
                continue
            merges += [
                Merge(row + place, place, num_partials, len(found))
                for place in range(found[0].num_rows)
            ]
            tasks += [one._replace(partial=num_partials + i) for i, one in enumerate(found)]
            num_partials += len(found)
    return tasks, merges


def _row_tasks(run: SharedRun, start: int, row: int, num_rows: int, turn: Turn) -> list[SharedTask]:
    """Of some rows: live keys first, since each row has one there, then every interior."""
    offset = row - run.row_start
    own, position = run.first_live + offset, run.first_position + offset
    tasks = [
        SharedTask(row, num_rows, own, start, a, b, -1, position, 0, 0)
        for a, b in _stretches(run, own + num_rows)
    ]
    start += run.live_slots.shape[0]
    for one in run.interiors:
        count = one.slots.shape[0]
        query_turn, key_turn, step = position, one.position, 1
        if turn == "query":
            query_turn, key_turn, step = position - one.segment_position, 0, 0
        tasks += [
            SharedTask(row, num_rows, count, start, a, b, -1, query_turn, key_turn, step)
            for a, b in _stretches(run, count)
        ]
        start += count
    return tasks


def _stretches(run: SharedRun, num_keys: int) -> list[tuple[int, int]]:
    """How a run's keys are cut follows from its rows and these keys alone."""
    step = int(stretch_keys(run.num_rows, num_keys))
    return [(a, min(a + step, num_keys)) for a in range(0, num_keys, step)]
