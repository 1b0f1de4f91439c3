"""Items as tables on a device: what the kernel of live sequences reads, for all layers alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hypic_sdk.kernels.items import Item
from hypic_sdk.kernels.live_scan.plan import LongRun, plan_walk
from hypic_sdk.kernels.rotation import RotarySpec, rotary_angles
from hypic_sdk.kernels.upload import upload


@dataclass(frozen=True, eq=False, slots=True)
class Walk:
    """A plan on its device; made once for all layers of a forward."""

    table: torch.Tensor  # [rows, FIELDS] int64
    launched: tuple[torch.Tensor, ...]  # per launch [n, 3] int64: sequence, its rows of the table
    long_runs: tuple[tuple[LongRun, ...], ...]  # per launch
    cos: torch.Tensor  # [gaps, F] fp32, with rotary keys
    sin: torch.Tensor
    num_sequences: int

    @classmethod
    def of(
        cls, items: Sequence[Item], longest_run: int, spec: RotarySpec | None, device: torch.device
    ) -> Walk:
        """Cut items into launches, and bring the tables to the device.

        Args:
            longest_run: rows up to which a run is walked.
            spec: by which the end states of gaps are turned; none: they stay as they are.
        """
        plan = plan_walk(items, longest_run)
        rows = [
            (sequence, *bounds)
            for launch in plan.launches
            for sequence, bounds in zip(launch.sequences, launch.bounds, strict=True)
        ]
        counts = [len(launch.sequences) for launch in plan.launches]
        cos, sin = _angles(upload(plan.gap_starts, device), spec)
        return cls(
            upload(plan.table, device),
            upload(rows, device).split(counts),
            tuple(launch.long_runs for launch in plan.launches),
            cos,
            sin,
            plan.num_sequences,
        )

    @classmethod
    def in_one_launch(
        cls,
        table: torch.Tensor,
        launched: torch.Tensor,
        gap_starts: torch.Tensor,
        spec: RotarySpec | None,
    ) -> Walk:
        """Tables that lie on the device already and may be filled anew before each launch.

        A sequence whose rows [first, last) of the table are none is nobody's.

        Args:
            table: [rows, FIELDS]; launched: [n, 3]; gap_starts: [gaps]; all int64.
        """
        cos, sin = _angles(gap_starts, spec)
        return cls(table, (launched,), ((),), cos, sin, len(launched))


def _angles(gap_starts: torch.Tensor, spec: RotarySpec | None) -> tuple[torch.Tensor, torch.Tensor]:
    if spec is None:
        none = gap_starts.new_empty((0, 0), dtype=torch.float32)
        return none, none
    return rotary_angles(spec, gap_starts, torch.float32)
