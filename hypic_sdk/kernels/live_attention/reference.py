"""Attention over slots in plain torch, one run after the other.

Everything that may choose another order of sums is a function of one run: its row count, its key
count and an address that is always a multiple of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

from hypic_sdk.kernels.alignment import aligned
from hypic_sdk.kernels.attention_run import AttentionRun


def live_attention(
    query_LQE: torch.Tensor,
    runs: Sequence[AttentionRun],
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
    *,
    scale: float,
    out_LQE: torch.Tensor,
) -> None:
    """Rows of the runs into `out_LQE` [L, Q, E]."""
    for run in runs:
        query_RQE = aligned(query_LQE[run.row_start : run.row_stop])
        keys, values = _seen(keys_PGE, run), _seen(values_PGE, run)
        attend = _attend_one if run.num_rows == 1 else _attend
        out_LQE[run.row_start : run.row_stop] = attend(query_RQE, keys, values, scale)


def _seen(slab_PGE: torch.Tensor, run: AttentionRun) -> torch.Tensor:
    """The run's keys or values in order of position: a view where slots and address allow it."""
    if run.contiguous_start is None:
        return slab_PGE.index_select(0, run.slots[: run.num_keys])
    return aligned(slab_PGE[run.contiguous_start : run.contiguous_start + run.num_keys])


def _attend_one(
    query_RQE: torch.Tensor, keys_nGE: torch.Tensor, values_nGE: torch.Tensor, scale: float
) -> torch.Tensor:
    """One row, which sees every key: the query heads of a key head stand as rows, no mask."""
    _, Q, E = query_RQE.shape
    out = scaled_dot_product_attention(
        query_RQE.view(1, keys_nGE.shape[1], -1, E),
        keys_nGE.transpose(0, 1)[None],
        values_nGE.transpose(0, 1)[None],
        scale=scale,
    )
    return out.reshape(1, Q, E)


def _attend(
    query_RQE: torch.Tensor, keys_nGE: torch.Tensor, values_nGE: torch.Tensor, scale: float
) -> torch.Tensor:
    """The last rows of a causal square: row i of R sees the first n - R + 1 + i of n keys."""
    num_rows, num_keys = query_RQE.shape[0], keys_nGE.shape[0]
    mask = None
    if num_rows < num_keys:
        mask = torch.ones(num_rows, num_keys, dtype=torch.bool, device=query_RQE.device)
        mask = mask.tril_(num_keys - num_rows)
    out = scaled_dot_product_attention(
        query_RQE.transpose(0, 1)[None],
        keys_nGE.transpose(0, 1)[None],
        values_nGE.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)
