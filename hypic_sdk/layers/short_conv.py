"""Weights of a causal depthwise conv; its history is the context's business."""

from __future__ import annotations

import torch
from torch import nn

from hypic_sdk.layers.context import ForwardContext


class ShortConv(nn.Module):
    """Depthwise conv of width W over C channels, the newest input under the last column."""

    def __init__(
        self,
        layer: int,
        channels: int,
        width: int,
        *,
        dtype: torch.dtype,
        bias: bool = False,
        activation: str | None = "silu",
    ) -> None:
        super().__init__()
        self.layer = layer  # 0-based among linear layers
        self.weight = nn.Parameter(torch.empty(channels, width, dtype=dtype), requires_grad=False)
        self.bias = (
            nn.Parameter(torch.empty(channels, dtype=dtype), requires_grad=False) if bias else None
        )
        self.activation = activation

    def forward(self, inputs_LC: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[L, C] -> [L, C]."""
        return context.short_conv(
            self.layer, inputs_LC, self.weight, self.bias, activation=self.activation
        )
