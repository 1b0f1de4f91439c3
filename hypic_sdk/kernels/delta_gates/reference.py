"""The gates in plain torch."""

from __future__ import annotations

import torch

from hypic_sdk.kernels.activation import sigmoid, softplus


def delta_gates(
    strength_LH: torch.Tensor,
    decay_LH: torch.Tensor,
    A_log_H: torch.Tensor,
    bias_H: torch.Tensor,
    wide: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-exp(A_log) softplus(decay + bias) and sigmoid(strength), in `wide`."""
    steps = softplus(decay_LH.to(wide) + bias_H.to(wide))
    return -A_log_H.to(wide).exp() * steps, sigmoid(strength_LH.to(wide))
