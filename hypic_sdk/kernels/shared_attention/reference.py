"""Attention over live and shared keys in plain torch, one run after the other: the definition."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypic_sdk.kernels.rotation import rotate
from hypic_sdk.kernels.shared_attention.plan import SharedRun, Turn


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
    out_LQE: torch.Tensor,
) -> None:
    """Rows of the runs into `out_LQE` [L, Q, E]; sums in fp32 at least."""
    work = torch.promote_types(query_LQE.dtype, torch.float32)

    def turned(x: torch.Tensor, first: int) -> torch.Tensor:
        last = first + x.shape[0]
        return rotate(x, cos[first:last], sin[first:last])

    for run in runs:
        query_RQE = query_LQE[run.row_start : run.row_stop]
        own_RQE = turned(query_RQE, run.first_position)
        live = run.live_slots[: run.num_live]
        seen = torch.ones(run.num_rows, run.num_live, dtype=torch.bool, device=live.device)
        own = _scores(own_RQE, keys_PGE[live], scale)
        found, slots = [own.where(seen.tril_(run.first_live), -torch.inf)], [live]
        for one in run.interiors:
            keys_nGE = keys_PGE[one.slots]
            if turn == "query":
                fitting = turned(query_RQE, run.first_position - one.segment_position)
                found.append(_scores(fitting, keys_nGE, scale))
            else:
                found.append(_scores(own_RQE, turned(keys_nGE, one.position), scale))
            slots.append(one.slots)
        values_nQE = _of_query_heads(values_PGE[torch.cat(slots)], query_LQE.shape[1])
        weights = torch.cat(found, dim=-1).softmax(-1)
        out_LQE[run.row_start : run.row_stop] = torch.einsum(
            "qrn,nqe->rqe", weights, values_nQE.to(work)
        )


def _scores(query_RQE: torch.Tensor, keys_nGE: torch.Tensor, scale: float) -> torch.Tensor:
    """[Q, R, n] in fp32 at least."""
    work = torch.promote_types(query_RQE.dtype, torch.float32)
    keys_nQE = _of_query_heads(keys_nGE, query_RQE.shape[1])
    return scale * torch.einsum("rqe,nqe->qrn", query_RQE.to(work), keys_nQE.to(work))


def _of_query_heads(x_nGE: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[n, Q, E]: each head once for every query head that reads it."""
    return x_nGE.repeat_interleave(num_heads // x_nGE.shape[1], dim=1)
