"""Routed experts: choose, multiply by groups, add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.experts import kernel, reference


class Routing(NamedTuple):
    """The experts of each row and their shares."""

    indices: torch.Tensor  # [L, top_k] int64, best first, all different
    weights: torch.Tensor  # [L, top_k]


def route(router_logits: torch.Tensor, *, top_k: int, renormalise: bool) -> Routing:
    """Softmax over all experts, then the best `top_k`; the lower index wins a tie.

    Args:
        router_logits: [L, num_experts], any float dtype.
        renormalise: the chosen weights are scaled to a sum of 1.
    Returns:
        weights in fp32, or fp64 for fp64 logits.
    """
    if router_logits.ndim != 2 or not 1 <= top_k <= router_logits.shape[1]:
        raise ValueError(f"top {top_k} of router logits {tuple(router_logits.shape)}")
    run = backend.select("route", reference.route, None, device=router_logits.device)
    return Routing(*run(router_logits, top_k, renormalise))


def experts(
    x_LD: torch.Tensor,
    routing: Routing,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    row_independent: bool,
) -> torch.Tensor:
    """Sum over a row's experts of weight * down(silu(gate(x)) * up(x)).

    Args:
        gate_up: [num_experts, 2 I, D], the gate's I rows first.
        down: [num_experts, D, I].
        row_independent: a row's bits depend on that row alone.  On a CPU every expert's rows are
            filled up to a multiple of 16.
    Returns:
        [L, D] in x's dtype; the experts of a row are added in order of their index, in fp32 (fp64).
    """
    num_experts, two_inner, width = gate_up.shape
    if x_LD.shape[1] != width or down.shape != (num_experts, width, two_inner // 2):
        raise ValueError(
            f"experts {tuple(gate_up.shape)} and {tuple(down.shape)} do not fit rows"
            f" {tuple(x_LD.shape)}"
        )
    if routing.indices.shape != routing.weights.shape or routing.indices.shape[0] != x_LD.shape[0]:
        raise ValueError(
            f"routing {tuple(routing.indices.shape)}, {tuple(routing.weights.shape)} does not fit"
            f" rows {tuple(x_LD.shape)}"
        )
    run = backend.select(
        "experts",
        reference.experts,
        _grouped_kernel if x_LD.is_cuda and kernel.suits(x_LD, gate_up, down) else None,
        device=x_LD.device,
        needs_triton=False,
    )
    return run(
        x_LD, routing.indices, routing.weights, gate_up, down, row_independent=row_independent
    )


def _grouped_kernel() -> Callable[..., torch.Tensor]:
    return kernel.experts
