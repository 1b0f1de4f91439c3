"""Routed experts: choose, multiply by groups, add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.experts import reference

# of the grouped product on a GPU: strides must be a multiple of 16 bytes
_ALIGNED_ELEMENTS = 8
_UNGROUPED = f"its kernel takes bfloat16, and widths that {_ALIGNED_ELEMENTS} divides"


class Routing(NamedTuple):
    """The experts of each row and their shares."""

    indices: torch.Tensor  # [L, top_k] int64, best first, all different
    weights: torch.Tensor  # [L, top_k]


class Shared(NamedTuple):
    """What every row gets beside its routed experts."""

    outputs: torch.Tensor  # [L, D] of the shared expert, in the rows' dtype
    gate: torch.Tensor  # [L, 1] logits of the same dtype; may be a slice of a projection


def route(
    router_logits: torch.Tensor,
    *,
    top_k: int,
    renormalise: bool,
    row_count: torch.Tensor | None = None,
) -> Routing:
    """Softmax over all experts, then the best `top_k`; the lower index wins a tie.

    Args:
        router_logits: [L, num_experts], any float dtype.
        renormalise: the chosen weights are scaled to a sum of 1.
        row_count: [1] int64 on the logits' device: rows from there on are padding and go where row
            0 goes, with weights of zero, so that no expert is read for them.
    Returns:
        weights in fp32, or fp64 for fp64 logits.
    """
    _check_logits(router_logits, top_k)
    run = backend.select(
        "route",
        reference.route,
        _route_kernel,
        device=router_logits.device,
        unfit=backend.unfit_in_fp32(router_logits.dtype),
    )
    return Routing(*run(router_logits, top_k, renormalise, row_count))


def route_with_swiglu(
    router_logits: torch.Tensor,
    gate_up_LI: torch.Tensor,
    *,
    top_k: int,
    renormalise: bool,
    row_count: torch.Tensor | None = None,
) -> tuple[Routing, torch.Tensor]:
    """`route`, and `swiglu` of the shared expert's rows beside it: neither needs the other.

    Args:
        router_logits, gate_up_LI: [L, num_experts] and [L, 2 I] of one dtype; may be slices of a
            projection.
    Returns:
        what `route` and `swiglu` return; on a GPU the shares to a rounding: they come from another
        compiled kernel, which may add in another order.
    """
    _check_logits(router_logits, top_k)
    num_rows, columns = gate_up_LI.shape
    if num_rows != len(router_logits) or columns % 2 or gate_up_LI.dtype != router_logits.dtype:
        raise ValueError(
            f"{tuple(gate_up_LI.shape)} {gate_up_LI.dtype} are no rows of gate and up beside router"
            f" logits {tuple(router_logits.shape)} {router_logits.dtype}"
        )
    run = backend.select(
        "route_with_swiglu",
        reference.route_with_swiglu,
        _route_with_swiglu_kernel,
        device=router_logits.device,
        unfit=backend.unfit_in_fp32(router_logits.dtype),
    )
    indices, weights, inner = run(router_logits, gate_up_LI, top_k, renormalise, row_count)
    return Routing(indices, weights), inner


def _check_logits(router_logits: torch.Tensor, top_k: int) -> None:
    if router_logits.ndim != 2 or not 1 <= top_k <= router_logits.shape[1]:
        raise ValueError(f"top {top_k} of router logits {tuple(router_logits.shape)}")


def experts(
    x_LD: torch.Tensor,
    routing: Routing,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    row_independent: bool,
    shared: Shared | None = None,
) -> torch.Tensor:
    """Sum over a row's experts of weight * down(silu(gate(x)) * up(x)), and the shared one's share.

    Args:
        gate_up: [num_experts, 2 I, D], the gate's I rows first.
        down: [num_experts, D, I].
        row_independent: a row's bits depend on that row alone.  On a CPU every expert's rows are
            filled up to a multiple of 16.
        shared: outputs * sigmoid(gate) are added to that sum.
    Returns:
        [L, D] in x's dtype; the experts of a row are added in order of their index, in fp32 (fp64).
        That sum, the sigmoid, the product with it and the last sum are rounded one after the other.
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
    if shared is not None:
        _check_shared(shared, x_LD)
    run = backend.select(
        "experts",
        reference.experts,
        _experts_kernel,
        device=x_LD.device,
        unfit="" if suits_grouped(x_LD, gate_up, down) else _UNGROUPED,
    )
    return run(
        x_LD,
        routing.indices,
        routing.weights,
        gate_up,
        down,
        row_independent=row_independent,
        shared=shared,
    )


def _check_shared(shared: Shared, x_LD: torch.Tensor) -> None:
    outputs, gate = shared
    if outputs.shape != x_LD.shape or gate.shape != (len(x_LD), 1):
        raise ValueError(
            f"shared outputs {tuple(outputs.shape)} and gate {tuple(gate.shape)} do not fit rows"
            f" {tuple(x_LD.shape)}"
        )
    if not outputs.dtype == gate.dtype == x_LD.dtype:
        raise ValueError(
            f"shared outputs {outputs.dtype} and gate {gate.dtype} for rows {x_LD.dtype}"
        )


def suits_grouped(x_LD: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> bool:
    """Whether the grouped product takes these dtypes and sizes on a GPU."""
    sizes = (gate_up.shape[2], down.shape[2])
    return all(tensor.dtype == torch.bfloat16 for tensor in (x_LD, gate_up, down)) and all(
        size % _ALIGNED_ELEMENTS == 0 for size in sizes
    )


def _route_kernel() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    from hypic_sdk.kernels.experts import kernel

    return kernel.route


def _route_with_swiglu_kernel() -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    from hypic_sdk.kernels.experts import kernel

    return kernel.route_with_swiglu


def _experts_kernel() -> Callable[..., torch.Tensor]:
    from hypic_sdk.kernels.experts import kernel

    return kernel.experts
