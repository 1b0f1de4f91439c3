"""Routed experts in plain torch, one expert after the other."""

from __future__ import annotations

import torch

from hypic_sdk.kernels.activation import sigmoid
from hypic_sdk.kernels.linear.op import ROW_MULTIPLE, linear
from hypic_sdk.kernels.mlp.reference import swiglu


def route(
    router_logits: torch.Tensor,
    top_k: int,
    renormalise: bool,
    row_count: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and weights [L, top_k] of the best experts, best first."""
    wide = router_logits if router_logits.dtype == torch.float64 else router_logits.float()
    # a stable sort of the logits, not topk of the shares: that leaves the order of ties open
    indices = wide.sort(dim=-1, descending=True, stable=True).indices[:, :top_k].contiguous()
    weights = wide.softmax(-1).gather(1, indices)
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    if row_count is not None:
        is_row = (torch.arange(len(indices), device=indices.device) < row_count)[:, None]
        indices = indices.where(is_row, indices[:1])
        weights = weights.masked_fill(~is_row, 0.0)
    return indices, weights


def route_with_swiglu(
    router_logits: torch.Tensor,
    gate_up_LI: torch.Tensor,
    top_k: int,
    renormalise: bool,
    row_count: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Indices and weights as of `route`; silu(gate) * up, [L, I]."""
    return *route(router_logits, top_k, renormalise, row_count), swiglu(gate_up_LI)


def experts(
    x_LD: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    row_independent: bool,
    shared: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """[L, D]; experts in rising order, so each row adds up its own in that order."""
    out_LD, top_k = torch.zeros_like(x_LD, dtype=weights.dtype), indices.shape[1]
    # places of [L, top_k] by expert; a stable sort keeps the rows of an expert in rising order
    order = indices.flatten().argsort(stable=True)
    counts = torch.bincount(indices.flatten(), minlength=gate_up.shape[0])
    for expert, chosen in enumerate(order.split(counts.tolist())):
        if not len(chosen):
            continue
        rows = chosen // top_k
        products = _expert(x_LD[rows], gate_up[expert], down[expert], row_independent)
        out_LD.index_add_(0, rows, products.to(out_LD.dtype) * weights.flatten()[chosen, None])
    out_LD = out_LD.to(x_LD.dtype)
    return out_LD if shared is None else out_LD + shared[0] * sigmoid(shared[1])


def _expert(
    x_RD: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, row_independent: bool
) -> torch.Tensor:
    """down(silu(gate(x)) * up(x)) of the rows of one expert."""
    num_rows = x_RD.shape[0]
    if row_independent:
        x_RD = torch.nn.functional.pad(x_RD, (0, 0, 0, -num_rows % ROW_MULTIPLE))
    inner = swiglu(linear(x_RD, gate_up, row_independent=row_independent))
    return linear(inner, down, row_independent=row_independent)[:num_rows]
