"""SwiGLU feed-forward block."""

from __future__ import annotations

import torch
from torch import nn

from hypic_sdk.kernels.mlp.op import swiglu
from hypic_sdk.layers.context import ForwardContext
from hypic_sdk.layers.linear import Linear


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)); gate and up are the halves of one weight, gate first."""

    def __init__(self, width: int, inner: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_up = Linear(width, 2 * inner, dtype=dtype)
        self.down = Linear(inner, width, dtype=dtype)

    def forward(self, hidden_LD: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[L, D] -> [L, D]."""
        alike = context.row_independent
        inner = swiglu(self.gate_up.forward(hidden_LD, row_independent=alike))
        return self.down.forward(inner, row_independent=alike)
