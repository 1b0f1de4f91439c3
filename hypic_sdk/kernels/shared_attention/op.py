"""Attention that reads cached keys where their segment keeps them: an experiment.

No engine uses it.  `hypic bench experiments` holds it against `live_attention` over private copies
(docs/experiments.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.shared_attention import reference
from hypic_sdk.kernels.shared_attention.plan import SharedRun, SharedTable, Turn


def shared_attention(
    query_LQE: torch.Tensor,
    runs: Sequence[SharedRun],
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
    *,
    cos: torch.Tensor,
    sin: torch.Tensor,
    turn: Turn,
    scale: float,
    table: SharedTable | None = None,
    out_LQE: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(scale q k^T) v of every run's rows over live keys up to their own and all interiors.

    Args:
        query_LQE: queries before their rotation; query head q reads head q // (Q / G).
        runs: disjoint.
        keys_PGE, values_PGE: slab views of one layer.  Live keys stand rotated at their positions;
            interiors' keys, with `turn` "query", at their positions within the segment, with "key"
            unrotated.
        cos, sin: [positions, rotary_dims / 2] of `rotary_angles` for 0, 1, .. (halves), fp32.
        turn: the side that is rotated on the way.
        table: of the same runs, made once for all layers; where none is given, it is made here.
        out_LQE: where given, rows of the runs are written into it and no other row is.
    Returns:
        [L, Q, E] in the query's dtype: `out_LQE`, or a new tensor with zeros in rows of no run.
    Raises:
        ValueError: shapes do not fit.
    Error:
        as `live_attention`, and a rotation's rounding.
    """
    (num_rows, Q, E), G = query_LQE.shape, keys_PGE.shape[1]
    if keys_PGE.shape != values_PGE.shape or keys_PGE.shape[2] != E or Q % G:
        raise ValueError(
            f"keys {tuple(keys_PGE.shape)} and values {tuple(values_PGE.shape)} do not fit"
            f" queries {tuple(query_LQE.shape)}"
        )
    if cos.shape != sin.shape or 2 * cos.shape[1] > E:
        raise ValueError(f"angles {tuple(cos.shape)} and {tuple(sin.shape)}, heads of {E}")
    for run in runs:
        last = run.first_position + run.num_rows
        if run.row_stop > num_rows or last > cos.shape[0]:
            raise ValueError(
                f"a run up to row {run.row_stop} of {num_rows}, position {last} of {cos.shape[0]}"
            )
    if out_LQE is None:
        out_LQE = torch.zeros_like(query_LQE, memory_format=torch.contiguous_format)
    definition: Callable[..., None] = reference.shared_attention
    attend = backend.select(
        "shared_attention", definition, _shared_attention_kernel, device=query_LQE.device,
        unfit=backend.unfit_in_fp32(query_LQE.dtype),
    )  # fmt: skip
    options = {} if attend is definition else {"table": table}
    attend(
        *(query_LQE, runs, keys_PGE, values_PGE),
        cos=cos, sin=sin, turn=turn, scale=scale, out_LQE=out_LQE, **options,
    )  # fmt: skip
    return out_LQE


def _shared_attention_kernel() -> Callable[..., None]:
    from hypic_sdk.kernels.shared_attention import kernel

    return kernel.shared_attention
