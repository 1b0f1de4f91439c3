"""What blocks do between their products: gates."""

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


def gate_heads(x_LQE: torch.Tensor, gate_LQE: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(gate): an attention block's gate of its output.

    Args:
        x_LQE, gate_LQE: [L, Q, E] of one dtype, any float; may be slices of a projection.
    Returns:
        [L, Q, E], new, in that dtype; the sigmoid is rounded to it before the product.
    Error:
        an element's bits depend on its own number and gate alone.
    """
    if x_LQE.ndim != 3 or x_LQE.shape != gate_LQE.shape or x_LQE.dtype != gate_LQE.dtype:
        raise ValueError(
            f"{tuple(x_LQE.shape)} {x_LQE.dtype} and gate {tuple(gate_LQE.shape)}"
            f" {gate_LQE.dtype} do not fit each other"
        )
    run = backend.select(
        "gate_heads", reference.gate_heads, _gate_heads_kernel, device=x_LQE.device
    )
    return run(x_LQE, gate_LQE)


def _swiglu_kernel() -> Callable[..., torch.Tensor]:
    from hypic_sdk.kernels.mlp import kernel

    return kernel.swiglu


def _gate_heads_kernel() -> Callable[..., torch.Tensor]:
    from hypic_sdk.kernels.mlp import kernel

    return kernel.gate_heads
