"""Runs as tables on a device: what the kernel of attention reads, for all layers alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.live_attention.plan import AttentionPlan, is_long, plan_attention
from hypic_sdk.kernels.upload import upload

_SMALL_ROWS = 16  # query heads of a task of few rows (decode): the least that a product takes
# of others, though a seam fills half of it: halves make more programs that each read all keys, and
# took longer on an H200; fp32, whose products take no matrix unit, stays with few
_LARGE_ROWS = 128
_LONG_ROWS = 128  # of runs that read all their keys at once: half as much is read per product
_SLOT_BYTES = 8

# a task of no rows over no keys, and the sum of none: nothing is read or written for them
NO_TASK = (0, 0, 0, 0, 0, 0, -1, -1)
NO_MERGE = (0, 0, 0, 0)


@dataclass(frozen=True, eq=False, slots=True)
class AttentionLaunch:
    """One size of block: its tasks and merges on the device."""

    block_m: int
    tasks: torch.Tensor  # [tasks, 8] int64
    merges: torch.Tensor  # [merges, 4] int64
    num_partials: int  # that there is room for
    is_long: bool = False  # tasks read all keys of long runs
    has_ranges: bool = False  # and each run's slots are a range


@dataclass(frozen=True, eq=False, slots=True)
class AttentionTable:
    """All runs of a forward, for every layer of it.

    The tables may be filled anew before each call, up to their sizes; what is left over holds
    NO_TASK and NO_MERGE.  A task finds its run's slots by how far they lie from `origin`, so the
    slots of all runs need not be brought together.
    """

    origin: torch.Tensor  # [any] int64 on the device
    launches: tuple[AttentionLaunch, ...]

    @classmethod
    def of(
        cls, runs: Sequence[AttentionRun], group: int, *, is_wide: bool, device: torch.device
    ) -> AttentionTable:
        """Plan at least one run, and bring the tables to the device.

        Args:
            group: query heads of a key head.
            is_wide: queries are fp32.
        """
        origin, block_m = runs[0].slots, long_block(group)
        # fp32, whose products take no matrix unit, has one size of block
        long = [] if is_wide else [run for run in runs if is_long(run)]
        short = runs if is_wide else [run for run in runs if not is_long(run)]
        launches = []
        for has_ranges in (True, False):
            own = [run for run in long if (run.contiguous_start is not None) == has_ranges]
            plan = _plan(own, block_m // group, origin).longest_first()
            launches.append(_launch(block_m, plan, device, is_long=True, has_ranges=has_ranges))
        plans = plan_blocks(short, group, is_wide=is_wide, origin=origin)
        launches += [_launch(size, plan, device) for size, plan in plans.items()]
        return cls(origin, tuple(launch for launch in launches if launch is not None))


def _launch(
    block_m: int,
    plan: AttentionPlan,
    device: torch.device,
    *,
    is_long: bool = False,
    has_ranges: bool = False,
) -> AttentionLaunch | None:
    if not len(plan.tasks):
        return None
    tasks, merges = (
        upload(torch.from_numpy(numbers), device) for numbers in (plan.tasks, plan.merges)
    )
    return AttentionLaunch(block_m, tasks, merges, plan.num_partials, is_long, has_ranges)


def long_block(group: int) -> int:
    """Query heads a task of a long run."""
    return max(_LONG_ROWS, 1 << (group - 1).bit_length())


def block_sizes(group: int, *, is_wide: bool) -> tuple[int, ...]:
    """Query heads a task of all other runs, small ones first."""
    small = max(_SMALL_ROWS, 1 << (group - 1).bit_length())
    return (small,) if is_wide or small >= _LARGE_ROWS else (small, _LARGE_ROWS)


def block_of(num_rows: int, group: int, *, is_wide: bool) -> int:
    """Which of `block_sizes` a run has, by its rows alone: bits hang on it."""
    sizes = block_sizes(group, is_wide=is_wide)
    return sizes[0] if num_rows * group <= sizes[0] else sizes[-1]


def plan_blocks(
    runs: Sequence[AttentionRun], group: int, *, is_wide: bool, origin: torch.Tensor
) -> dict[int, AttentionPlan]:
    """Tasks by size of block."""
    by_size: dict[int, list[AttentionRun]] = {
        size: [] for size in block_sizes(group, is_wide=is_wide)
    }
    for run in runs:
        by_size[block_of(run.num_rows, group, is_wide=is_wide)].append(run)
    return {size: _plan(own, size // group, origin) for size, own in by_size.items()}


def _plan(runs: Sequence[AttentionRun], rows_per_task: int, origin: torch.Tensor) -> AttentionPlan:
    return plan_attention(runs, [_distance(run.slots, origin) for run in runs], rows_per_task)


def _distance(slots: torch.Tensor, origin: torch.Tensor) -> int:
    """From the origin's first number to the first slot, in numbers."""
    assert slots.dtype == origin.dtype == torch.int64, "slots are int64"
    assert slots.is_contiguous(), "slots lie side by side"
    distance, rest = divmod(slots.data_ptr() - origin.data_ptr(), _SLOT_BYTES)
    assert not rest, "a device's memory is aligned to more than a slot"
    return distance
