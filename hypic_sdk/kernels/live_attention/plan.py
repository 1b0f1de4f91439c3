"""Runs as tasks of a kernel: blocks of rows over stretches of keys, cut by each run alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hypic_sdk.kernels.attention_run import AttentionRun

SPLIT_KEYS = 1024  # a short run reads its keys in stretches of this many, side by side
SPLIT_ROWS = 256  # up to here a run is short


class Task(NamedTuple):
    """Rows of one run over the keys [first_key, stop_key) of it."""

    row: int  # of the batch
    num_rows: int
    position: int  # of the first row
    slots_start: int  # of the run, counted from the origin
    first_key: int
    stop_key: int
    partial: int  # place of what it finds, or -1: it sees all keys and writes the output


class Merge(NamedTuple):
    """Rows whose output comes from several tasks."""

    row: int
    num_rows: int
    first_partial: int
    num_partials: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """All that one launch does, and the launch after it."""

    tasks: tuple[Task, ...]
    merges: tuple[Merge, ...]
    num_partials: int


def plan_attention(
    runs: Sequence[AttentionRun], slots_starts: Sequence[int], rows_per_task: int
) -> AttentionPlan:
    """Cut runs into tasks; how a run is cut follows from its rows and its first position alone."""
    tasks: list[Task] = []
    merges: list[Merge] = []
    num_partials = 0
    for run, slots_start in zip(runs, slots_starts, strict=True):
        for row in range(run.row_start, run.row_stop, rows_per_task):
            num_rows = min(rows_per_task, run.row_stop - row)
            position = run.first_position + row - run.row_start
            num_keys = position + num_rows
            step = SPLIT_KEYS if run.num_rows <= SPLIT_ROWS else num_keys
            stretches = [(a, min(a + step, num_keys)) for a in range(0, num_keys, step)]
            split = len(stretches) > 1
            if split:
                merges.append(Merge(row, num_rows, num_partials, len(stretches)))
            for a, b in stretches:
                partial = num_partials if split else -1
                tasks.append(Task(row, num_rows, position, slots_start, a, b, partial))
                num_partials += split
    return AttentionPlan(tuple(tasks), tuple(merges), num_partials)
