"""Cached keys and values to other slots; keys are rotated on the way."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.place_entries import reference


def place_entries(
    keys_APGE: torch.Tensor,
    values_APGE: torch.Tensor,
    source_slots_L: torch.Tensor,
    target_slots_L: torch.Tensor,
    *,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    interleaved: bool = False,
) -> None:
    """Copy cached keys (unrotated) and values to other slots in all layers, rotating the keys.

    The bits are those that `attention_inputs` writes for the same key and position.

    Args:
        keys_APGE, values_APGE: the whole slabs, written in place.
        source_slots_L, target_slots_L: int64; a row is not copied where its target is NO_SLOT.  No
            target stands twice, none is a source.
        cos, sin: [L, rotary_dims / 2] of `rotary_angles` at the new positions, both or none.
        interleaved: pairs are (2i, 2i + 1), not halves.
    """
    if keys_APGE.ndim != 4 or keys_APGE.shape != values_APGE.shape:
        raise ValueError(
            f"keys {tuple(keys_APGE.shape)} and values {tuple(values_APGE.shape)} are no slabs"
        )
    if source_slots_L.shape != target_slots_L.shape or source_slots_L.ndim != 1:
        raise ValueError(
            f"sources {tuple(source_slots_L.shape)} and targets {tuple(target_slots_L.shape)}"
        )
    check_angles(cos, sin, source_slots_L, keys_APGE.shape[-1])
    run = backend.select(
        "place_entries", reference.place_entries, _place_entries_kernel, device=keys_APGE.device
    )
    run(
        keys_APGE,
        values_APGE,
        source_slots_L,
        target_slots_L,
        cos=cos,
        sin=sin,
        interleaved=interleaved,
    )


def check_angles(
    cos: torch.Tensor | None, sin: torch.Tensor | None, slots_L: torch.Tensor, head_size: int
) -> None:
    """Raises: ValueError, unless there are angles for every row, or none."""
    if (cos is None) != (sin is None):
        raise ValueError("cos and sin come together")
    if cos is None or sin is None:
        return
    if cos.shape != sin.shape or cos.shape[:1] != slots_L.shape or 2 * cos.shape[1] > head_size:
        raise ValueError(
            f"angles {tuple(cos.shape)} and {tuple(sin.shape)} do not fit {slots_L.shape[0]} rows"
            f" of {head_size}"
        )


def _place_entries_kernel() -> Callable[..., None]:
    from hypic_sdk.kernels.place_entries import kernel

    return kernel.place_entries
