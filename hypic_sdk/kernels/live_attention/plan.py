"""Runs as tasks of a kernel: blocks of rows over stretches of keys, cut by each run alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hypic_sdk.kernels.attention_run import AttentionRun

Numbers = NDArray[np.int64]

SPLIT_ROWS = 256  # up to here a run is short: it reads its keys in stretches, side by side
SPLIT_KEYS = 1024  # keys of a stretch ..
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
    first_slot: int  # of the run, if each further key lies in the next slot, or -1


class Merge(NamedTuple):
    """A row whose output comes from several tasks."""

    row: int
    place: int  # of the row in its tasks
    first_partial: int
    num_partials: int


@dataclass(frozen=True, eq=False, slots=True)
class AttentionPlan:
    """All that one launch does, and the launch after it."""

    tasks: Numbers  # [tasks, fields of Task]
    merges: Numbers  # [merges, fields of Merge]
    num_partials: int

    def longest_first(self) -> AttentionPlan:
        """The same tasks by falling keys, so that short ones fill up the end of a launch."""
        keys = self.tasks[:, 5] - self.tasks[:, 4]
        return replace(self, tasks=self.tasks[np.argsort(-keys, kind="stable")])


def is_long(run: AttentionRun) -> bool:
    """Whether a run is not cut: it has rows enough to occupy a device."""
    return run.num_rows > SPLIT_ROWS


def stretch_keys(num_rows: Numbers | int, num_keys: Numbers | int) -> Numbers:
    """Keys of a stretch, for runs of `num_rows` rows of which some see `num_keys` keys, each."""
    rows, keys = np.asarray(num_rows), np.asarray(num_keys)
    least = np.where(rows <= FEW_ROWS, FEW_KEYS, SPLIT_KEYS)
    # how many times the least stretch has to be doubled: frexp gives the length of a number in bits
    doubled = np.frexp((keys - 1) // (MOST_STRETCHES * least))[1]
    return np.where(rows > SPLIT_ROWS, np.maximum(keys, 1), least << doubled.astype(np.int64))


def plan_attention(
    runs: Sequence[AttentionRun], slots_starts: Sequence[int], rows_per_task: int
) -> AttentionPlan:
    """Cut runs into tasks; how a run is cut follows from its rows and its first position alone."""
    if not runs:
        return AttentionPlan(_columns(*[()] * 8), _columns(*[()] * 4), 0)
    # [runs] each
    first_row = np.array([run.row_start for run in runs])
    run_rows = np.array([run.row_stop for run in runs]) - first_row
    offset = np.array([run.first_position for run in runs]) - first_row
    slots_start = np.array(slots_starts)
    starts = [run.contiguous_start for run in runs]
    first_slot = np.array([-1 if start is None else start for start in starts])
    # [blocks of rows] each
    run, place = _counted(-(-run_rows // rows_per_task))
    row = first_row[run] + place * rows_per_task
    num_rows = np.minimum(rows_per_task, run_rows[run] - place * rows_per_task)
    position = offset[run] + row
    num_keys = position + num_rows
    step = stretch_keys(run_rows[run], num_keys)
    stretches = -(-num_keys // step)
    parts = np.where(stretches > 1, stretches, 0)
    first_part = np.cumsum(parts) - parts
    # [tasks] each
    block, stretch = _counted(stretches)
    first_key = stretch * step[block]
    stop_key = np.minimum(first_key + step[block], num_keys[block])
    partial = np.where(parts[block] > 0, first_part[block] + stretch, -1)
    own = run[block]
    tasks = _columns(
        *(row[block], num_rows[block], position[block], slots_start[own]),
        *(first_key, stop_key, partial, first_slot[own]),
    )
    # [rows that are summed] each
    block, place = _counted(np.where(parts > 0, num_rows, 0))
    merges = _columns(row[block] + place, place, first_part[block], parts[block])
    return AttentionPlan(tasks, merges, int(parts.sum()))


def _counted(counts: Numbers) -> tuple[Numbers, Numbers]:
    """For counts (2, 3): whose each thing is, (0, 0, 1, 1, 1), and the how manieth, (0, 1, 0 ..)"""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


def _columns(*columns: Numbers | Sequence[int]) -> Numbers:
    """[things, columns], rows side by side in memory."""
    return np.ascontiguousarray(np.array(columns, dtype=np.int64).T)
