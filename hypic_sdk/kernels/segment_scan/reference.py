"""Cold segments on plain torch: head seam, interior with its pair, tail seam (design 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypic_sdk.kernels.items import ColdRun
from hypic_sdk.kernels.scan_inputs import MIN_LOG_DECAY, ScanInputs
from hypic_sdk.kernels.segment_scan.step import step_scan
from hypic_sdk.kernels.segment_scan.stretch import scan_stretch, steps_only
from hypic_sdk.kernels.segment_scan.tiled import tiled_scan


def segment_scan(
    inputs: ScanInputs,
    cold_runs: Sequence[ColdRun],
    states_SHKV: torch.Tensor,
    transitions: torch.Tensor | None,
    work_states_XHKV: torch.Tensor | None,
    work_transitions: torch.Tensor | None,
    out_LHV: torch.Tensor,
) -> torch.Tensor:
    """As `op.segment_scan`, one cold run after the other."""
    finite = torch.ones(len(cold_runs), dtype=torch.bool, device=states_SHKV.device)
    for index, run in enumerate(cold_runs):
        state, transition = _resumed(inputs, run, states_SHKV, work_states_XHKV, work_transitions)
        head, interior, tail = run.stretches()
        state = _live(inputs, head, state, out_LHV)
        if run.opens_interior:
            states_SHKV[run.state_slot] = state
            transition = _no_transition(inputs, transitions, state)
        state, transition = _interior(inputs, interior, state, transition, out_LHV)
        if run.closes_interior:
            finite[index] = _keep_pair(inputs, run, state, transition, states_SHKV, transitions)
        state = _live(inputs, tail, state, out_LHV)
        if run.offset + run.row_stop - run.row_start < run.num_tokens:
            assert work_states_XHKV is not None, "an unfinished segment has a row of work slabs"
            work_states_XHKV[run.work_slot] = state
            if transition is not None and work_transitions is not None:
                work_transitions[run.work_slot] = transition
    return finite


def _resumed(
    inputs: ScanInputs,
    run: ColdRun,
    states_SHKV: torch.Tensor,
    work_states_XHKV: torch.Tensor | None,
    work_transitions: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Running state and transition so far, as the segment's last forward left them."""
    if run.offset == 0:
        return states_SHKV.new_zeros(states_SHKV.shape[1:]), None
    assert work_states_XHKV is not None, "a segment that goes on has a row of work slabs"
    inside = run.head_tokens < run.offset < run.num_tokens - run.tail_tokens
    transition = None
    if inside and work_transitions is not None:
        transition = work_transitions[run.work_slot].clone()
    return work_states_XHKV[run.work_slot].clone(), transition


def _live(
    inputs: ScanInputs, rows: tuple[int, int], state: torch.Tensor, out_LHV: torch.Tensor
) -> torch.Tensor:
    if rows[0] == rows[1]:
        return state
    outputs, state = scan_stretch(inputs.rows(*rows), state)
    out_LHV[rows[0] : rows[1]] = outputs
    return state


def _no_transition(
    inputs: ScanInputs, transitions: torch.Tensor | None, state: torch.Tensor
) -> torch.Tensor | None:
    """The transition of no tokens: the identity, or a log-decay (a sum of steps) of zero."""
    if transitions is None:
        return None
    if inputs.is_dense:
        eye = torch.eye(inputs.key_size, dtype=state.dtype, device=state.device)
        return eye.expand(inputs.num_heads, -1, -1)
    return state.new_zeros(transitions.shape[1:])


def _interior(
    inputs: ScanInputs,
    rows: tuple[int, int],
    state: torch.Tensor,
    transition: torch.Tensor | None,
    out_LHV: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run interior rows; the transition grows by them."""
    if rows[0] == rows[1]:
        return state, transition
    part = inputs.rows(*rows)
    if part.is_dense:
        outputs, state, transition = tiled_scan(part, state, transition)
    else:
        outputs, state = step_scan(part, state) if steps_only(part) else tiled_scan(part, state)[:2]
        transition = None if transition is None else transition + _log_growth(part, transition)
    out_LHV[rows[0] : rows[1]] = outputs
    return state, transition


def _log_growth(inputs: ScanInputs, transition: torch.Tensor) -> torch.Tensor:
    """Sum over the tokens of what the transition is stored as; in fp64, rounded once."""
    logs = inputs.steps if inputs.rates is not None else inputs.log_decay
    assert logs is not None, "a stored transition has a decay of each token"
    if inputs.rates is None:
        logs = logs.clamp_min(MIN_LOG_DECAY)
    total = logs.double().sum(0)
    if inputs.rates is not None and transition.ndim == 2:
        total = total[:, None] * inputs.rates.double()
    return total.to(transition.dtype)


def _keep_pair(
    inputs: ScanInputs,
    run: ColdRun,
    state: torch.Tensor,
    transition: torch.Tensor | None,
    states_SHKV: torch.Tensor,
    transitions: torch.Tensor | None,
) -> torch.Tensor:
    """S = F - T S_head and T to their rows; whether both are finite as stored: [] bool."""
    head_state = states_SHKV[run.state_slot].clone()
    if inputs.is_dense:
        assert transition is not None, "a dense transition is carried along"
        end_state = state - torch.bmm(transition, head_state)
    else:
        end_state = state - head_state * _factor(inputs, run, transition, state.dtype)
    states_SHKV[run.state_slot] = end_state
    finite = end_state.isfinite().all()
    if transition is None or transitions is None:
        return finite
    kept = transition.to(transitions.dtype)  # an entry too large for fp16 becomes infinite
    transitions[run.transition_slot] = kept
    return finite & kept.isfinite().all()


def _factor(
    inputs: ScanInputs, run: ColdRun, transition: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """What the interior multiplies an incoming state by: [H, K or 1, 1]."""
    if inputs.constant_log_decay is not None:
        num_tokens = run.num_tokens - run.head_tokens - run.tail_tokens
        log_decay = inputs.constant_log_decay.to(dtype) * num_tokens
    else:
        assert transition is not None, "a transition that varies is carried along"
        log_decay = transition
        if inputs.rates is not None and log_decay.ndim == 1:
            log_decay = log_decay[:, None] * inputs.rates.to(dtype)
    factor = log_decay.exp()
    return factor[..., None] if factor.ndim == 2 else factor[..., None, None]
