"""Cold segments whose pairs are kept in 8 bits: scanned into rows of their own, then rounded.

A pair is rounded when it is whole.  Until then the state after the head seam of a segment that
takes several forwards lies in a work slab, as the running state does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.kernels.items import ColdRun
from hypic_sdk.kernels.kept import kept_for_same
from hypic_sdk.kernels.scan_inputs import ScanInputs
from hypic_sdk.kernels.upload import upload


def scan_into_pairs(
    scan: Callable[..., torch.Tensor],
    inputs: ScanInputs,
    cold_runs: Sequence[ColdRun],
    pairs: Int8Pairs,
    work: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
    out_LHV: torch.Tensor,
) -> torch.Tensor:
    """As `op.segment_scan`, with the pairs of whole interiors to rows `transition_slot` of `pairs`.

    Args:
        scan: an implementation of `segment_scan` for slabs in the work dtype.
        work: states, transitions, and states after head seams, by `work_slot`.
    """
    device, count = inputs.value.device, len(cold_runs)
    places = _places(cold_runs, device)
    work_states, work_transitions, work_heads = work
    like = torch.empty(0, dtype=inputs.work_dtype, device=device)
    states = like.new_empty((count, *pairs.states.shape[1:]))
    transitions = None
    if pairs.transitions is not None:
        transitions = like.new_empty((count, *pairs.transitions.shape[1:]))
    if places.resumed is not None:
        assert work_heads is not None, "a segment that goes on has a row of work slabs"
        run, slot = places.resumed
        states[run] = work_heads[slot]
    finite = scan(inputs, places.runs, states, transitions, work_states, work_transitions, out_LHV)
    if places.left is not None:
        assert work_heads is not None, "an unfinished segment has a row of work slabs"
        run, slot = places.left
        work_heads[slot] = states[run]
    if places.ended is not None:
        run, row = places.ended
        whole = None if transitions is None else transitions[run]
        finite[run] &= pairs.write(row, whole, states[run])
    return finite


@dataclass(frozen=True, eq=False, slots=True)
class _Places:
    """Runs over rows of their own, and which of them read or write what; for all layers alike."""

    runs: tuple[ColdRun, ...]  # each with its own number for its slots
    resumed: tuple[torch.Tensor, ...] | None  # runs that go on inside an interior, their work rows
    left: tuple[torch.Tensor, ...] | None  # runs that begin one and do not end it, likewise
    ended: tuple[torch.Tensor, ...] | None  # runs that end one, their rows of pairs

    @classmethod
    def of(cls, cold_runs: Sequence[ColdRun], device: torch.device) -> _Places:
        def table(found: list[tuple[int, int]]) -> tuple[torch.Tensor, ...] | None:
            columns = [list(column) for column in zip(*found, strict=True)]
            return upload(columns, device).unbind(0) if found else None

        numbered = list(enumerate(cold_runs))
        return cls(
            tuple(replace(run, state_slot=i, transition_slot=i) for i, run in numbered),
            table([(i, run.work_slot) for i, run in numbered if run.is_inside]),
            table([(i, run.work_slot) for i, run in numbered if _leaves_open(run)]),
            table([(i, run.transition_slot) for i, run in numbered if run.closes_interior]),
        )


def _leaves_open(run: ColdRun) -> bool:
    return run.opens_interior and not run.closes_interior


@kept_for_same(maxsize=4)
def _places(cold_runs: Sequence[ColdRun], device: torch.device) -> _Places:
    return _Places.of(cold_runs, device)
