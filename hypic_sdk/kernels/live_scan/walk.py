"""Items as tables on a device: what the kernel of live sequences reads, for all layers alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hypic_sdk.kernels.items import Item
from hypic_sdk.kernels.live_scan.plan import (
    STEP_FIELDS,
    WALK_FIELDS,
    Launch,
    LongRun,
    plan_walk,
)
from hypic_sdk.kernels.rotation import RotarySpec, rotary_angles
from hypic_sdk.kernels.upload import upload


@dataclass(frozen=True, eq=False, slots=True)
class TiledWalk:
    """The sequences of one launch that go through in tiles; all tables are int64."""

    steps: torch.Tensor  # [steps, STEP_FIELDS], of all launches
    walks: torch.Tensor  # [walks, WALK_FIELDS]
    count: torch.Tensor  # [1]: rows of `walks` that are somebody's
    num_walkers: int  # programs a head and block of V; they take sequences in turn


@dataclass(frozen=True, eq=False, slots=True)
class Walk:
    """A plan on its device; made once for all layers of a forward.

    Which sequences stand in tiles follows from the items alone; a recurrence that tiles do not
    serve walks all that is `launched` instead.
    """

    table: torch.Tensor  # [rows, FIELDS] int64
    launched: tuple[torch.Tensor, ...]  # per launch [n, 3] int64: sequence, its rows of the table
    long_runs: tuple[tuple[LongRun, ...], ...]  # per launch
    cos: torch.Tensor  # [gaps, F] fp32, with rotary keys
    sin: torch.Tensor
    num_sequences: int
    stepped: tuple[torch.Tensor, ...]  # as `launched`, without the sequences in tiles
    tiles: torch.Tensor  # [tiles, 2]: first row and rows of each, of all launches
    tiled: tuple[TiledWalk | None, ...]  # per launch

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
        cos, sin = _angles(upload(plan.gap_starts, device), spec)
        steps = _table(plan.steps, STEP_FIELDS, device)
        return cls(
            upload(plan.table, device),
            _by_launch([launch.launched for launch in plan.launches], device),
            tuple(launch.long_runs for launch in plan.launches),
            cos,
            sin,
            plan.num_sequences,
            _by_launch([launch.stepped for launch in plan.launches], device),
            _table(plan.tiles, 2, device),
            tuple(_tiled(launch, steps) for launch in plan.launches),
        )

    @classmethod
    def in_one_launch(
        cls,
        table: torch.Tensor,
        launched: torch.Tensor,
        gap_starts: torch.Tensor,
        spec: RotarySpec | None,
        *,
        stepped: torch.Tensor,
        tiles: torch.Tensor,
        tiled: TiledWalk | None,
    ) -> Walk:
        """Tables that lie on the device already and may be filled anew before each launch.

        A sequence whose rows [first, last) of the table are none is nobody's, and so is a tile of
        no rows.

        Args:
            table: [rows, FIELDS]; launched: [n, 3]; gap_starts: [gaps]; stepped: [m, 3]; tiles:
                [tiles, 2]; all int64.
        """
        cos, sin = _angles(gap_starts, spec)
        count = len(launched)
        return cls(table, (launched,), ((),), cos, sin, count, (stepped,), tiles, (tiled,))


def _table(rows: Sequence[Sequence[int]], num_fields: int, device: torch.device) -> torch.Tensor:
    return upload(rows, device).view(-1, num_fields)


def _by_launch(
    rows: Sequence[Sequence[tuple[int, ...]]], device: torch.device
) -> tuple[torch.Tensor, ...]:
    together = [row for own in rows for row in own]
    return _table(together, 3, device).split([len(own) for own in rows])


def _tiled(launch: Launch, steps: torch.Tensor) -> TiledWalk | None:
    count = len(launch.walks)
    if not count:
        return None
    walks = upload([*launch.walks, (count,) * WALK_FIELDS], steps.device)
    return TiledWalk(steps, walks[:count], walks[count, :1], count)


def _angles(gap_starts: torch.Tensor, spec: RotarySpec | None) -> tuple[torch.Tensor, torch.Tensor]:
    if spec is None:
        none = gap_starts.new_empty((0, 0), dtype=torch.float32)
        return none, none
    return rotary_angles(spec, gap_starts, torch.float32)
