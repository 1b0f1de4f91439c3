"""Runs as tables on a device: what the kernel of attention reads, for all layers alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.live_attention.plan import AttentionPlan, plan_attention
from hypic_sdk.kernels.upload import upload

_SMALL_ROWS = 16  # query heads of a task of few rows (decode): the least that a product takes
_LARGE_ROWS = 64  # of others; fp32, whose products take no matrix unit, stays with few
_SLOT_BYTES = 8

# a task of no rows over no keys, and the sum of none: nothing is read or written for them
NO_TASK = (0, 0, 0, 0, 0, 0, -1)
NO_MERGE = (0, 0, 0, 0)


@dataclass(frozen=True, eq=False, slots=True)
class AttentionLaunch:
    """One size of block: its tasks and merges on the device."""

    block_m: int
    tasks: torch.Tensor  # [tasks, 7] int64
    merges: torch.Tensor  # [merges, 4] int64
    num_partials: int  # that there is room for


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
        origin = runs[0].slots
        plans = plan_blocks(runs, group, is_wide=is_wide, origin=origin)
        launches = [
            AttentionLaunch(
                block_m, upload(plan.tasks, device), upload(plan.merges, device), plan.num_partials
            )
            for block_m, plan in plans.items()
            if plan.tasks
        ]
        return cls(origin, tuple(launches))


def block_sizes(group: int, *, is_wide: bool) -> tuple[int, ...]:
    """Query heads a task, small ones first."""
    small = max(_SMALL_ROWS, 1 << (group - 1).bit_length())
    large = small if is_wide else max(_LARGE_ROWS, small)
    return (small,) if small == large else (small, large)


def plan_blocks(
    runs: Sequence[AttentionRun], group: int, *, is_wide: bool, origin: torch.Tensor
) -> dict[int, AttentionPlan]:
    """Tasks by size of block; which one a run has follows from its rows alone."""
    sizes = block_sizes(group, is_wide=is_wide)
    by_size: dict[int, list[AttentionRun]] = {size: [] for size in sizes}
    for run in runs:
        by_size[sizes[0] if run.num_rows * group <= sizes[0] else sizes[-1]].append(run)
    return {
        size: plan_attention(own, [_distance(run.slots, origin) for run in own], size // group)
        for size, own in by_size.items()
    }


def _distance(slots: torch.Tensor, origin: torch.Tensor) -> int:
    """From the origin's first number to the first slot, in numbers."""
    assert slots.dtype == origin.dtype == torch.int64, "slots are int64"
    assert slots.stride() == (1,), "slots lie side by side"
    distance, rest = divmod(slots.data_ptr() - origin.data_ptr(), _SLOT_BYTES)
    assert not rest, "a device's memory is aligned to more than a slot"
    return distance
