"""Runs as tasks of a kernel: blocks of rows over stretches of keys, cut by each run alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hypic_sdk.kernels.attention_run import AttentionRun

SPLIT_ROWS = 256  # up to here a run is short: it reads its keys in stretches, side by side
SPLIT_KEYS = 512  # keys of a stretch ..
FEW_ROWS = 2  # .. but up to here, as in decoding, the keys are nearly all there is to read:
FEW_KEYS = 128  # shorter stretches occupy more of the device
MOST_STRETCHES = 64  # with more keys stretches are longer


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
    """A row whose output comes from several tasks."""

    row: int
    place: int  # of the row in its tasks
    first_partial: int
    num_partials: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """All that one launch does, and the launch after it."""

    tasks: tuple[Task, ...]
    merges: tuple[Merge, ...]
    num_partials: int


def stretch_keys(num_rows: int, num_keys: int) -> int:
    """Keys of a stretch, for a run of `num_rows` rows of which some see `num_keys` keys."""
    if num_rows > SPLIT_ROWS:
        return max(1, num_keys)
    step = FEW_KEYS if num_rows <= FEW_ROWS else SPLIT_KEYS
    while num_keys > MOST_STRETCHES * step:
        step *= 2
    return step


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
            step = stretch_keys(run.num_rows, num_keys)
            stretches = [(a, min(a + step, num_keys)) for a in range(0, num_keys, step)]
            split = len(stretches) > 1
            if split:
                merges += [
                    Merge(row + place, place, num_partials, len(stretches))
                    for place in range(num_rows)
                ]
            for a, b in stretches:
                partial = num_partials if split else -1
                tasks.append(Task(row, num_rows, position, slots_start, a, b, partial))
                num_partials += split
    return AttentionPlan(tuple(tasks), tuple(merges), num_partials)
