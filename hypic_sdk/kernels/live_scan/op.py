"""Live sequences: decode rows, live runs and gaps of every request, in order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.kernels.items import NO_SLOT, Item, ItemKind, check_items
from hypic_sdk.kernels.live_scan import reference
from hypic_sdk.kernels.live_scan.walk import Walk
from hypic_sdk.kernels.rotation import RotarySpec
from hypic_sdk.kernels.scan_inputs import ScanInputs


def live_scan(
    inputs: ScanInputs,
    items: Sequence[Item] | Walk,
    states_SHKV: torch.Tensor,
    transitions: torch.Tensor | Int8Pairs | None,
    *,
    key_rotation: RotarySpec | None = None,
    use_transition: bool = True,
    rotate_gap: bool = True,
    out_LHV: torch.Tensor | None = None,
) -> torch.Tensor:
    """Walk the items of all sequences through one linear layer.

    LOAD sets the state (NO_SLOT: zeros) and starts a sequence; RUN puts rows [start, stop) through
    (none if start equals stop); GAP puts the state through a cached segment, S <- T S + S0; SAVE
    writes the state to the slab.  Items act in order, so a LOAD sees what a SAVE before it wrote.
    Nothing but SAVE writes to the slab.

    Args:
        items: or, where the kernel runs, the tables that it makes of them: nothing is checked then.
        states_SHKV: one layer's view of the state slab, in the work dtype (fp32, or fp64).
        transitions: one layer's view, as in `segment_scan`; none for a constant decay, whose
            transition follows from `Item.num_tokens`.  Or pairs in 8 bits, S0 too, whatever the
            decay: a gap's row of them is its transition slot, and its slot a tail's alone.
        key_rotation: set when keys are rotated by position; a gap's S0 was recorded at local
            positions and is turned by R(start_position), unless `rotate_gap` is off.
        use_transition: off, a gap only adds S0 (mode `addition`).
        out_LHV: where given, rows of the runs are written into it and no other row is.
    Returns:
        [L, H, V] in the dtype of `inputs.value`: `out_LHV`, or a new tensor with zeros in rows that
        no run has.
    Raises:
        ValueError: shapes, dtypes or slots do not fit.
    Error:
        relative RMS to the fp64 recurrence below 1e-5 in fp32 and 1e-10 in fp64, of gaps as stored.
    Source:
        design 3.5; HYPIC section 4.2, Eq. 6 to 8.
    """
    inputs.check()
    inputs.check_slabs(states_SHKV, transitions)
    if not isinstance(items, Walk):
        _check_items(items, inputs.num_tokens, len(states_SHKV), transitions)
    if out_LHV is None:
        out_LHV = torch.zeros_like(inputs.value, memory_format=torch.contiguous_format)
    elif out_LHV.shape != inputs.value.shape:
        raise ValueError(
            f"out {tuple(out_LHV.shape)} does not fit value {tuple(inputs.value.shape)}"
        )
    definition: Callable[..., None] = reference.live_scan
    run = backend.select(
        "live_scan",
        definition,
        _live_scan_kernel,
        device=out_LHV.device,
        unfit=backend.unfit_in_fp32(states_SHKV.dtype),
    )
    run(
        inputs,
        items,
        states_SHKV,
        transitions,
        out_LHV,
        gap_rotation=key_rotation if rotate_gap else None,
        use_transition=use_transition,
    )
    return out_LHV


def _live_scan_kernel() -> Callable[..., None]:
    from hypic_sdk.kernels.live_scan import kernel

    return kernel.live_scan


def _check_items(
    items: Sequence[Item],
    num_rows: int,
    num_states: int,
    transitions: torch.Tensor | Int8Pairs | None,
) -> None:
    is_int8 = isinstance(transitions, Int8Pairs)
    kept = transitions.states if isinstance(transitions, Int8Pairs) else transitions
    # with pairs in 8 bits the slot of a gap is a tail's alone
    any_slot = sys.maxsize if is_int8 else None
    check_items(items, num_rows, num_states, num_gap_slots=any_slot)
    for item in items:
        if item.kind in (ItemKind.GAP, ItemKind.SAVE) and item.slot == NO_SLOT:
            raise ValueError(f"{item.kind.name} without a slot")
        if item.kind == ItemKind.GAP and kept is not None:
            if item.transition_slot == NO_SLOT:
                raise ValueError("a gap without a transition")
            if not 0 <= item.transition_slot < len(kept):
                raise ValueError(f"GAP of transition {item.transition_slot} of {len(kept)}")
