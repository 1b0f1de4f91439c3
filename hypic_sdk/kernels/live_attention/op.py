"""Attention of packed live rows over slots: one run a call on a CPU, so runs never mix."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.live_attention import reference
from hypic_sdk.kernels.live_attention.table import AttentionTable


def live_attention(
    query_LQE: torch.Tensor,
    runs: Sequence[AttentionRun] | AttentionTable,
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
    *,
    scale: float,
    out_LQE: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(scale q k^T) v of every run's rows over the positions not after their own.

    Args:
        query_LQE: rotated queries; Q is a multiple of G, query head q reads head q // (Q / G).
        runs: disjoint; or, where the kernel runs, the tables that it makes of them.
        keys_PGE, values_PGE: slab views of one layer, the rows' own keys already placed.
        out_LQE: where given, rows of the runs are written into it and no other row is.
    Returns:
        [L, Q, E] in the query's dtype: `out_LQE`, or a new tensor with zeros in rows of no run.
    Error:
        a run's bits depend on its own rows and keys only: not on other runs of the call, not on
        where its slots lie.
    """
    (_, Q, E), (P, G, _) = query_LQE.shape, keys_PGE.shape
    if keys_PGE.shape != values_PGE.shape or keys_PGE.shape[2] != E:
        raise ValueError(
            f"keys {tuple(keys_PGE.shape)} and values {tuple(values_PGE.shape)} do not fit"
            f" queries {tuple(query_LQE.shape)}"
        )
    if Q % G:
        raise ValueError(f"{Q} query heads are no multiple of {G} key heads")
    is_table = isinstance(runs, AttentionTable)
    for run in () if isinstance(runs, AttentionTable) else runs:
        if run.row_stop > query_LQE.shape[0]:
            raise ValueError(f"a run ends at row {run.row_stop} of {query_LQE.shape[0]}")
        if run.contiguous_start is not None and run.contiguous_start + run.num_keys > P:
            raise ValueError(f"slots up to {run.contiguous_start + run.num_keys} of {P}")
    definition: Callable[..., None] = reference.live_attention
    attend = backend.select(
        "live_attention",
        definition,
        _live_attention_kernel,
        device=query_LQE.device,
        unfit=backend.unfit_in_fp32(query_LQE.dtype),
    )
    if out_LQE is None:
        out_LQE = torch.zeros_like(query_LQE, memory_format=torch.contiguous_format)
    elif out_LQE.shape != query_LQE.shape or out_LQE.stride(-1) != 1:
        raise ValueError(f"out {tuple(out_LQE.shape)} does not fit {tuple(query_LQE.shape)}")
    if is_table or runs:
        attend(query_LQE, runs, keys_PGE, values_PGE, scale=scale, out_LQE=out_LQE)
    return out_LQE


def _live_attention_kernel() -> Callable[..., None]:
    from hypic_sdk.kernels.live_attention import kernel

    return kernel.live_attention
