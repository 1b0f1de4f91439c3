"""Cold segments of a delta rule on a GPU: all tiles of all segments at once, then one walk each.

`prepare` makes of each tile of 64 tokens what does not depend on the state before it; `chain` walks
a segment's tiles with a block of columns of the state, or of the transition, which is K more
columns that nothing is written to, all of them side by side; `pair` is left with S = F - T S_head.
Every program works on one tile or one segment, so an entry's bits are its segment's own.

For recurrences with `erase`, unit keys and a decay of a head, or none, in 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hypic_sdk.kernels.items import ColdRun
from hypic_sdk.kernels.kept import kept_for_same
from hypic_sdk.kernels.scan_inputs import ScanInputs
from hypic_sdk.kernels.segment_scan.chain import Interiors, walk
from hypic_sdk.kernels.segment_scan.pair import keep_pairs
from hypic_sdk.kernels.segment_scan.prepare import Prepared, prepare
from hypic_sdk.kernels.upload import upload

_TILE = 64


def segment_scan(
    inputs: ScanInputs,
    cold_runs: Sequence[ColdRun],
    states_SHKV: torch.Tensor,
    transitions: torch.Tensor | None,
    work_states_XHKV: torch.Tensor | None,
    work_transitions: torch.Tensor | None,
    out_LHV: torch.Tensor,
) -> torch.Tensor:
    """As the reference, for a recurrence that erases with a decay of a head or none."""
    assert transitions is not None, "a dense transition is stored"
    if not cold_runs:
        return states_SHKV.new_empty(0, dtype=torch.bool)
    device, (_, H, K, V) = inputs.value.device, states_SHKV.shape
    call = _call(cold_runs, device)
    prepared = prepare(inputs, call.tiles, _TILE)
    num_runs = call.runs.shape[0]
    ends, found = (states_SHKV.new_empty((num_runs, H, K, columns)) for columns in (V, K))
    finite = states_SHKV.new_empty(num_runs, dtype=torch.bool)
    work_states = states_SHKV if work_states_XHKV is None else work_states_XHKV
    work = found if work_transitions is None else work_transitions
    interiors = Interiors(ends, found, finite, work)
    walk(prepared, inputs, call.runs, states_SHKV, work_states, out_LHV, interiors)
    keep_pairs(found, ends, states_SHKV, transitions, call.ended, finite)
    return finite


@dataclass(frozen=True, eq=False, slots=True)
class LongRuns:
    """Long live runs of a call: what all their tiles need, and a table of runs for each launch."""

    inputs: ScanInputs
    prepared: Prepared
    rows: tuple[torch.Tensor, ...]  # of [runs, FIELDS] int64

    @classmethod
    def of(cls, inputs: ScanInputs, launches: Sequence[Sequence[tuple[int, int, int]]]) -> LongRuns:
        """Prepare the tiles of all launches at once.

        Args:
            launches: (work row, first row, one behind the last) of each run of each launch; no two
                of a launch share a work row.
        """
        tiles, rows = _live_tables(launches, inputs.value.device)
        return cls(inputs, prepare(inputs, tiles, _TILE), rows)

    def walk(self, launch: int, work_states: torch.Tensor, out_LHV: torch.Tensor) -> None:
        """Put the runs of a launch through, from states that lie in a work buffer and back to it.

        Args:
            work_states: [work rows, H, K, V] fp32.
        """
        # no interior begins or ends here, so no slab is written
        rows, work = self.rows[launch], work_states
        walk(self.prepared, self.inputs, rows, work, work, out_LHV, None)


@kept_for_same(maxsize=4)
def _live_tables(
    launches: Sequence[Sequence[tuple[int, int, int]]], device: torch.device
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    tiles: list[tuple[int, int]] = []
    rows: list[tuple[int, ...]] = []
    for work_row, start, stop in (run for runs in launches for run in runs):
        first = len(tiles)
        tiles += [(row, min(_TILE, stop - row)) for row in range(start, stop, _TILE)]
        last = len(tiles)
        edges = first, last, last, last, start, stop, stop, stop
        # resumes from its work row and ends there; opens and closes no interior
        rows.append((*edges, 0, work_row, 1, 0, 0, 0, 1))
    by_launch = upload(rows, device).split([len(runs) for runs in launches])
    return upload(tiles, device), by_launch


@dataclass(frozen=True, eq=False, slots=True)
class _Call:
    """What is run, on the device; made once for all layers of a forward."""

    tiles: torch.Tensor  # [tiles, 2] int64
    runs: torch.Tensor  # [runs, FIELDS] int64
    ended: torch.Tensor  # [3, n] int64: runs that end their interior, their rows of both slabs

    @classmethod
    def of(cls, cold_runs: Sequence[ColdRun], device: torch.device) -> _Call:
        tiles, rows = _tables(cold_runs)
        ended = [(i, run) for i, run in enumerate(cold_runs) if run.closes_interior]
        slots = [run.state_slot for _, run in ended], [run.transition_slot for _, run in ended]
        table = upload([[i for i, _ in ended], *slots], device)
        return cls(upload(tiles, device), upload(rows, device), table)


@kept_for_same(maxsize=4)
def _call(cold_runs: Sequence[ColdRun], device: torch.device) -> _Call:
    return _Call.of(cold_runs, device)


def _tables(cold_runs: Sequence[ColdRun]) -> tuple[list[tuple[int, int]], list[tuple[int, ...]]]:
    """Tiles [first row, rows] of all stretches, and what a walk reads of each run."""
    tiles: list[tuple[int, int]] = []
    rows: list[tuple[int, ...]] = []
    for run in cold_runs:
        edges, row_edges = [len(tiles)], [run.row_start]
        for start, stop in run.stretches():
            tiles += [(row, min(_TILE, stop - row)) for row in range(start, stop, _TILE)]
            edges.append(len(tiles))
            row_edges.append(stop)
        rows.append(
            (
                *(*edges, *row_edges, run.state_slot, max(run.work_slot, 0)),
                int(run.offset > 0),
                int(run.is_inside),
                int(run.opens_interior),
                int(run.closes_interior),
                int(run.offset + run.row_stop - run.row_start < run.num_tokens),
            )
        )
    return tiles, rows
