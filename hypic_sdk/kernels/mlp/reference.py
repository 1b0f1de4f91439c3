"""Gates of feed-forward blocks in plain torch."""

from __future__ import annotations

import torch

from hypic_sdk.kernels.activation import sigmoid, silu


def swiglu(gate_up_LI: torch.Tensor) -> torch.Tensor:
    """As `op.swiglu`."""
    gate, up = gate_up_LI.chunk(2, dim=-1)
    return silu(gate).mul_(up)


def add_gated(
    routed_LD: torch.Tensor, shared_LD: torch.Tensor, gate_L1: torch.Tensor
) -> torch.Tensor:
    """As `op.add_gated`."""
    return routed_LD + shared_LD * sigmoid(gate_L1)
