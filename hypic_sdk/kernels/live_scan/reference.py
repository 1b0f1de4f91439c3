"""Live sequences on plain torch: the state walks runs and gaps in order (design 3.5)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.kernels.items import NO_SLOT, Item, ItemKind
from hypic_sdk.kernels.rotation import RotarySpec, rotate_state
from hypic_sdk.kernels.scan_inputs import ScanInputs
from hypic_sdk.kernels.segment_scan.stretch import scan_stretch


def compose(
    state_NHKV: torch.Tensor,
    transitions: torch.Tensor | None,
    transition_slots: Sequence[int],
    end_states_SHKV: torch.Tensor,
    state_slots: Sequence[int],
) -> torch.Tensor:
    """Put N states through a segment each: S <- T S + S0.

    Args:
        state_NHKV: incoming states, fp32 or fp64.
        transitions: [X, H, K, K] matrices of any float dtype; or log-decays [X, H, K] or [X, H];
            none for the identity.
        transition_slots, state_slots: row of T and of S0 for each state.
    Returns:
        [N, H, K, V], a new tensor; products are taken in the state's dtype.
    Source:
        HYPIC section 4.2, Eq. 6.
    """
    composed = torch.empty_like(state_NHKV)
    for i, (transition_slot, state_slot) in enumerate(
        zip(transition_slots, state_slots, strict=True)
    ):
        end_state_HKV = end_states_SHKV[state_slot]
        if transitions is None:
            torch.add(state_NHKV[i], end_state_HKV, out=composed[i])
            continue
        # a copy, so that bits do not depend on how the slab's row is aligned
        transition = transitions[transition_slot].to(state_NHKV.dtype, copy=True)
        if transition.ndim == 3:
            torch.baddbmm(end_state_HKV, transition, state_NHKV[i], out=composed[i])
        else:
            factor = transition.exp_().reshape(*transition.shape, *[1] * (3 - transition.ndim))
            torch.add(state_NHKV[i] * factor, end_state_HKV, out=composed[i])
    return composed


def live_scan(
    inputs: ScanInputs,
    items: Sequence[Item],
    states_SHKV: torch.Tensor,
    transitions: torch.Tensor | Int8Pairs | None,
    out_LHV: torch.Tensor,
    *,
    gap_rotation: RotarySpec | None,
    use_transition: bool,
) -> None:
    """As `op.live_scan`, item after item.  `gap_rotation` none: end states stay as they are."""
    inputs = inputs.written_out()
    # no step below writes to the state it is given, so a loaded row may stay a view of the slab
    state = states_SHKV[:0]
    for item in items:
        if item.kind == ItemKind.RUN:
            if item.start < item.stop:
                outputs, state = scan_stretch(inputs.rows(item.start, item.stop), state)
                out_LHV[item.start : item.stop] = outputs
        elif item.kind == ItemKind.LOAD:
            loaded = item.slot != NO_SLOT
            state = states_SHKV[item.slot] if loaded else torch.zeros_like(states_SHKV[0])
        elif item.kind == ItemKind.SAVE:
            states_SHKV[item.slot] = state
        else:
            end_states, state_slot = states_SHKV, item.slot
            if isinstance(transitions, Int8Pairs):
                read = transitions.read_state(item.transition_slot, states_SHKV.dtype)
                end_states, state_slot = read[None], 0
            if gap_rotation is not None and item.start_position:
                turned = rotate_state(end_states[state_slot], gap_rotation, item.start_position)
                end_states, state_slot = turned[None], 0
            rows, row = _gap_transition(inputs, item, transitions) if use_transition else (None, 0)
            state = compose(state[None].clone(), rows, (row,), end_states, (state_slot,))[0]


def _gap_transition(
    inputs: ScanInputs, item: Item, transitions: torch.Tensor | Int8Pairs | None
) -> tuple[torch.Tensor, int]:
    """A gap's transition as a row of a slab: the stored one, or what a closed form gives."""
    if inputs.constant_log_decay is not None:
        constant = inputs.constant_log_decay.to(inputs.work_dtype)
        return (constant * item.num_tokens)[None], 0
    assert transitions is not None, "a transition that varies is stored"
    row = item.transition_slot
    if isinstance(transitions, Int8Pairs):
        transitions, row = transitions.read_transition(row, inputs.work_dtype)[None], 0
    if inputs.rates is not None and transitions.ndim == 2:
        steps = transitions[row].to(inputs.work_dtype)
        return (steps[:, None] * inputs.rates.to(inputs.work_dtype))[None], 0
    return transitions, row
