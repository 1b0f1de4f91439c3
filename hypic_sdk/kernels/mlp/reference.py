"""Gates of blocks in plain torch."""

from __future__ import annotations

import torch

from hypic_sdk.kernels.activation import sigmoid, silu


def swiglu(gate_up_LI: torch.Tensor) -> torch.Tensor:
    """As `op.swiglu`."""
    gate, up = gate_up_LI.chunk(2, dim=-1)
    return silu(gate).mul_(up)


def gate_heads(x_LQE: torch.Tensor, gate_LQE: torch.Tensor) -> torch.Tensor:
    """As `op.gate_heads`."""
    return sigmoid(gate_LQE).mul_(x_LQE)
