"""All between an attention layer's projection and its attention: one launch on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.attention_inputs import reference
from hypic_sdk.kernels.head_norms import HeadNorms
from hypic_sdk.kernels.place_entries.op import check_angles


def attention_inputs(
    query_LQE: torch.Tensor,
    key_LGE: torch.Tensor,
    value_LGE: torch.Tensor,
    slots_L: torch.Tensor,
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
    *,
    norms: HeadNorms | None = None,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    interleaved: bool = False,
    entry_slots_L: torch.Tensor | None = None,
    turned_LGE: torch.Tensor | None = None,
) -> torch.Tensor:
    """Norm and rotate the rows' queries and keys; write keys and values to their slots.

    Args:
        query_LQE, key_LGE, value_LGE: any float dtype; may be slices of one projection, which is
            read and not written.
        slots_L: int64; where a row's rotated key and its value go, NO_SLOT for nowhere.
        keys_PGE, values_PGE: slab views of one layer, written in place, in their own dtypes.
        norms: before the rotation, rounded to the rows' dtype; none without.
        cos, sin: [L, rotary_dims / 2] of `rotary_angles`, both or none.
        interleaved: pairs are (2i, 2i + 1), not halves.
        entry_slots_L: int64; where a row's key goes as it is before rotation, and its value, as in
            `slots_L`.  No slot stands twice in the two together.
        turned_LGE: contiguous, of the rows' dtype; written: every row's rotated key.
    Returns:
        [L, Q, E], the rotated queries in their own dtype; the queries themselves where there is
        nothing to do.
    Error:
        a row's bits depend on that row alone: not on where it goes, nor on what else is asked for.
        They are those of the norm and of the rotation one after the other, each rounded, and a
        rotated key has the bits that `place_entries` writes for it.
    """
    _check_rows(query_LQE, key_LGE, value_LGE, slots_L)
    _check_places(key_LGE, slots_L, keys_PGE, values_PGE, entry_slots_L, turned_LGE)
    _check_norms(norms, key_LGE.shape[2])
    check_angles(cos, sin, slots_L, key_LGE.shape[2])
    run = backend.select(
        "attention_inputs",
        reference.attention_inputs,
        _attention_inputs_kernel,
        device=keys_PGE.device,
    )
    return run(
        query_LQE,
        key_LGE,
        value_LGE,
        slots_L,
        keys_PGE,
        values_PGE,
        norms=norms,
        cos=cos,
        sin=sin,
        interleaved=interleaved,
        entry_slots_L=entry_slots_L,
        turned_LGE=turned_LGE,
    )


def _check_rows(
    query_LQE: torch.Tensor,
    key_LGE: torch.Tensor,
    value_LGE: torch.Tensor,
    slots_L: torch.Tensor,
) -> None:
    num_rows, head_size = query_LQE.shape[0], query_LQE.shape[-1]
    if (
        query_LQE.ndim != 3
        or key_LGE.ndim != 3
        or key_LGE.shape != value_LGE.shape
        or (key_LGE.shape[0], key_LGE.shape[2]) != (num_rows, head_size)
        or slots_L.shape != (num_rows,)
    ):
        raise ValueError(
            f"queries {tuple(query_LQE.shape)}, keys {tuple(key_LGE.shape)}, values"
            f" {tuple(value_LGE.shape)} and slots {tuple(slots_L.shape)} do not fit each other"
        )
    if query_LQE.dtype != key_LGE.dtype:
        raise ValueError(f"queries {query_LQE.dtype} and keys {key_LGE.dtype} have one dtype")


def _check_places(
    key_LGE: torch.Tensor,
    slots_L: torch.Tensor,
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
    entry_slots_L: torch.Tensor | None,
    turned_LGE: torch.Tensor | None,
) -> None:
    if keys_PGE.shape != values_PGE.shape or keys_PGE.shape[1:] != key_LGE.shape[1:]:
        raise ValueError(
            f"slabs {tuple(keys_PGE.shape)} and {tuple(values_PGE.shape)} do not fit keys"
            f" {tuple(key_LGE.shape)}"
        )
    if entry_slots_L is not None and entry_slots_L.shape != slots_L.shape:
        raise ValueError(f"entry slots {tuple(entry_slots_L.shape)} for {slots_L.shape[0]} rows")
    if turned_LGE is not None and (
        turned_LGE.shape != key_LGE.shape
        or turned_LGE.dtype != key_LGE.dtype
        or not turned_LGE.is_contiguous()
    ):
        raise ValueError(
            f"{tuple(turned_LGE.shape)} {turned_LGE.dtype} cannot take the rotated keys"
            f" {tuple(key_LGE.shape)} {key_LGE.dtype}"
        )


def _check_norms(norms: HeadNorms | None, head_size: int) -> None:
    if norms is None:
        return
    for weight_E in (norms.query_E, norms.key_E):
        if weight_E.shape != (head_size,):
            raise ValueError(f"weight {tuple(weight_E.shape)} does not fit heads of {head_size}")


def _attention_inputs_kernel() -> Callable[..., torch.Tensor]:
    from hypic_sdk.kernels.attention_inputs import kernel

    return kernel.attention_inputs
