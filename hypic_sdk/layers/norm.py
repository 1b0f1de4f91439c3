"""Root-mean-square norms: of rows, and of state heads under a gate."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from hypic_sdk.kernels.norm.op import add_rms_norm, gated_rms_norm, rms_norm


class RMSNorm(nn.Module):
    """x / rms(x) times `weight`, or times 1 + `weight` if zero-centred."""

    def __init__(self, size: int, *, eps: float, zero_centred: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self.eps = eps
        self.zero_centred = zero_centred

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis, in fp32 (fp64 for fp64); the result has x's dtype."""
        return rms_norm(x, self.weight, eps=self.eps, zero_centred=self.zero_centred)

    def after(self, x: torch.Tensor, added: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A residual and its norm: x + added, and what `forward` makes of it."""
        return add_rms_norm(x, added, self.weight, eps=self.eps, zero_centred=self.zero_centred)


class GatedRMSNorm(nn.Module):
    """RMSNorm over the value axis of each state head, with a gate (plain weight, never 1 + w).

    `gate_first`: the gate is applied before the norm (Mamba-2) instead of after it.
    """

    def __init__(
        self,
        value_size: int,
        *,
        eps: float,
        activation: Literal["silu", "sigmoid"],
        gate_first: bool,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(value_size, dtype=dtype), requires_grad=False)
        self.eps = eps
        self.activation = activation
        self.gate_first = gate_first

    def forward(self, x_LHV: torch.Tensor, gate_LHV: torch.Tensor) -> torch.Tensor:
        """norm(x) * activation(gate), or norm(x * activation(gate))."""
        return gated_rms_norm(
            x_LHV,
            gate_LHV,
            self.weight,
            eps=self.eps,
            activation=self.activation,
            gate_first=self.gate_first,
        )
