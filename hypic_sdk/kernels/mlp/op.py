"""What a feed-forward block does between its products: gates, and the sum of its two branches."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.mlp import reference


def swiglu(gate_up_LI: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up.

    Args:
        gate_up_LI: [L, 2 I], the gate's I columns first; any float dtype.
    Returns:
        [L, I], new, in that dtype; silu is rounded to it before the product.
    Error:
        an element's bits depend on its own gate and up alone.
    """
    if gate_up_LI.ndim != 2 or gate_up_LI.shape[1] % 2:
        raise ValueError(f"{tuple(gate_up_LI.shape)} are no rows of gate and up")
    run = backend.select("swiglu", reference.swiglu, _swiglu_kernel, device=gate_up_LI.device)
    return run(gate_up_LI)


def add_gated(
    routed_LD: torch.Tensor, shared_LD: torch.Tensor, gate_L1: torch.Tensor
) -> torch.Tensor:
    """routed + shared * sigmoid(gate), one gate a row.

    Args:
        routed_LD, shared_LD: [L, D] of one dtype; gate_L1: [L, 1] logits of that dtype.
    Returns:
        [L, D], new; gate, product and sum are rounded to the dtype one after the other.
    """
    if routed_LD.shape != shared_LD.shape or gate_L1.shape != (len(routed_LD), 1):
        raise ValueError(
            f"routed {tuple(routed_LD.shape)}, shared {tuple(shared_LD.shape)} and gate"
            f" {tuple(gate_L1.shape)} do not fit each other"
        )
    run = backend.select(
        "add_gated", reference.add_gated, _add_gated_kernel, device=routed_LD.device
    )
    return run(routed_LD, shared_LD, gate_L1)


def _swiglu_kernel() -> Callable[..., torch.Tensor]:
    from hypic_sdk.kernels.mlp import kernel

    return kernel.swiglu


def _add_gated_kernel() -> Callable[..., torch.Tensor]:
    from hypic_sdk.kernels.mlp import kernel

    return kernel.add_gated
