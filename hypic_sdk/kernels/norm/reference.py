"""RMSNorm in plain torch: reductions over one row, no function whose bits depend on the place."""

from __future__ import annotations

import torch

from hypic_sdk.kernels.activation import sigmoid, silu


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, zero_centred: bool
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * (weight or 1 + weight), inside in fp32 or fp64."""
    wide = _wide(x)
    factor = weight.to(wide.dtype)
    if zero_centred:
        factor = factor + 1.0
    return _normalised(wide, eps).mul_(factor).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, *, eps: float, zero_centred: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """x + added, rounded to x's dtype, and the norm of that."""
    total = x + added
    return total, rms_norm(total, weight, eps=eps, zero_centred=zero_centred)


def gated_rms_norm(
    x_LHV: torch.Tensor,
    gate_LHV: torch.Tensor,
    weight_V: torch.Tensor,
    *,
    eps: float,
    activation: str,
    gate_first: bool,
) -> torch.Tensor:
    """norm(x) * weight * act(gate), or norm(x * act(gate)) * weight."""
    wide = _wide(x_LHV)
    gate_LHV = (silu if activation == "silu" else sigmoid)(gate_LHV.to(wide.dtype))
    weight_V = weight_V.to(wide.dtype)
    if gate_first:
        out_LHV = _normalised(wide * gate_LHV, eps).mul_(weight_V)
    else:
        out_LHV = _normalised(wide, eps).mul_(weight_V).mul_(gate_LHV)
    return out_LHV.to(x_LHV.dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    # contiguous: the order of a sum follows the strides
    return (x if x.dtype == torch.float64 else x.float()).contiguous()


def _normalised(wide: torch.Tensor, eps: float) -> torch.Tensor:
    return wide / wide.square().mean(-1, keepdim=True).add_(eps).sqrt_()
