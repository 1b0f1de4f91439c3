"""Cold segments: outputs of every token and the pair (T, S) of each interior, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.kernels.items import NO_SLOT, ColdRun
from hypic_sdk.kernels.scan_inputs import ScanInputs
from hypic_sdk.kernels.segment_scan import reference
from hypic_sdk.kernels.segment_scan.into_pairs import scan_into_pairs

_UNTILED = "its kernel takes unit keys, erase and a head's decay or none, in 16 bits"


def segment_scan(
    inputs: ScanInputs,
    cold_runs: Sequence[ColdRun],
    states_SHKV: torch.Tensor,
    transitions: torch.Tensor | Int8Pairs | None,
    work_states_XHKV: torch.Tensor | None = None,
    work_transitions: torch.Tensor | None = None,
    work_heads_XHKV: torch.Tensor | None = None,
    *,
    out_LHV: torch.Tensor,
) -> torch.Tensor:
    """Run stretches of cold segments through one linear layer.

    Head seam, interior and tail seam follow each other from a zero state; every row's output is of
    the segment's own full run.  When a run closes its interior, S = F - T S_head goes to
    `states[state_slot]` and T to `transitions[transition_slot]`, rounded to the slab's dtype; until
    then `states[state_slot]` holds the state after the head seam.  A run that does not finish its
    segment leaves the running state and T so far in row `work_slot` of the work slabs.

    The tiles' grid starts with the interior and again wherever a run does, so runs must be cut by
    the segment's own length and settings alone (design 3.9).

    Args:
        states_SHKV: one layer's view of the state slab, in the work dtype (fp32, or fp64).
        transitions: one layer's view: [X, H, K, K] any float dtype with erase; [X, H, K] or [X, H]
            log-decay; for `rates` [X, H] (sum of the step sizes) or [X, H, K] (log-decay); none for
            a constant decay.  Or pairs in 8 bits: S and T go to row `transition_slot` of them, and
            nothing is written to the state slab.
        work_states_XHKV, work_transitions: the same in the work dtype; may be none if every
            segment fits one forward.
        work_heads_XHKV: where the state after the head seam lies meanwhile, with pairs in 8 bits.
        out_LHV: rows of the runs are written, all others are left as they are.
    Returns:
        [runs] bool on the device, which nobody has waited for: whether T and S are finite as stored
        (overflow included); true where the interior does not end in this run.  The rows are
        written either way.
    Raises:
        ValueError: shapes, dtypes or slots do not fit.
    Error:
        relative RMS to the fp64 recurrence below 1e-5 in fp32 and 1e-10 in fp64, before T and S
        are rounded to their slabs.
    Source:
        design 3.2; HYPIC section 4.2, Eq. 6.
    """
    inputs.check()
    inputs.check_slabs(states_SHKV, transitions)
    if out_LHV.shape != inputs.value.shape:
        raise ValueError(
            f"out {tuple(out_LHV.shape)} does not fit value {tuple(inputs.value.shape)}"
        )
    work = (work_states_XHKV, work_transitions, work_heads_XHKV)
    for run in cold_runs:
        _check_run(run, inputs, len(states_SHKV), transitions, work)
    run_op = backend.select(
        "segment_scan",
        reference.segment_scan,
        _segment_scan_kernel,
        device=inputs.value.device,
        unfit="" if inputs.suits_fp16 else _UNTILED,
    )
    if isinstance(transitions, Int8Pairs):
        return scan_into_pairs(run_op, inputs, cold_runs, transitions, work, out_LHV)
    return run_op(inputs, cold_runs, states_SHKV, transitions, *work[:2], out_LHV)


def _segment_scan_kernel() -> Callable[..., torch.Tensor]:
    from hypic_sdk.kernels.segment_scan import kernel

    return kernel.segment_scan


def _check_run(
    run: ColdRun,
    inputs: ScanInputs,
    num_states: int,
    transitions: torch.Tensor | Int8Pairs | None,
    work: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
) -> None:
    run.check(inputs.num_tokens)
    num_rows = run.row_stop - run.row_start
    is_int8 = isinstance(transitions, Int8Pairs)
    # with pairs in 8 bits nothing is written to the state slab: the slot is a tail's alone
    _check_slot("state", run.state_slot, None if is_int8 else num_states)
    kept = transitions.states if isinstance(transitions, Int8Pairs) else transitions
    if kept is not None:
        _check_slot("transition", run.transition_slot, len(kept))
    if num_rows < run.num_tokens:
        wanted = _wanted_work(transitions)
        used = [slab for slab, is_used in zip(work, wanted, strict=True) if is_used]
        if any(slab is None for slab in used) or run.work_slot == NO_SLOT:
            raise ValueError(f"{num_rows} of {run.num_tokens} tokens, and no row of work slabs")
        for slab in used:
            _check_slot("work", run.work_slot, None if slab is None else len(slab))


def _wanted_work(transitions: torch.Tensor | Int8Pairs | None) -> tuple[bool, bool, bool]:
    """Which work slabs an unfinished segment needs: states, transitions, states after the head."""
    if isinstance(transitions, Int8Pairs):
        return True, transitions.transitions is not None, True
    return True, transitions is not None, False


def _check_slot(name: str, slot: int, limit: int | None) -> None:
    if slot < 0 or (limit is not None and slot >= limit):
        raise ValueError(f"{name} slots: {slot} of {limit} for a cold segment")
