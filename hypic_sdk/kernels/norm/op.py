"""RMSNorm over the last axis, plain and with a gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.norm import reference

Activation = Literal["silu", "sigmoid"]


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, zero_centred: bool
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.

    Args:
        x: [.., D], any float dtype.
        weight: [D], any float dtype.
        zero_centred: the factor is 1 + weight.
    Returns:
        [.., D] in x's dtype; computed in fp32, or fp64 for an fp64 x, and rounded last.
    Error:
        a row's bits depend on that row alone.
    """
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"weight {tuple(weight.shape)} does not fit rows {tuple(x.shape)}")
    run = backend.select("rms_norm", reference.rms_norm, _rms_norm_kernel, device=x.device)
    return run(x, weight, eps=eps, zero_centred=zero_centred)


def add_rms_norm(
    x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, *, eps: float, zero_centred: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual and norm in one: x + added, and `rms_norm` of it.

    Args:
        x, added: [.., D] of one shape and dtype.
        weight, eps, zero_centred: as in `rms_norm`.
    Returns:
        the sum, rounded to x's dtype, and the norm of the rounded sum; both [.., D], new.
    Error:
        the bits of both are those of the two steps one after the other.
    """
    if added.shape != x.shape or added.dtype != x.dtype:
        raise ValueError(
            f"{tuple(added.shape)} {added.dtype} can not be added to {tuple(x.shape)} {x.dtype}"
        )
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"weight {tuple(weight.shape)} does not fit rows {tuple(x.shape)}")
    run = backend.select(
        "add_rms_norm", reference.add_rms_norm, _add_rms_norm_kernel, device=x.device
    )
    return run(x, added, weight, eps=eps, zero_centred=zero_centred)


def gated_rms_norm(
    x_LHV: torch.Tensor,
    gate_LHV: torch.Tensor,
    weight_V: torch.Tensor,
    *,
    eps: float,
    activation: Activation,
    gate_first: bool,
) -> torch.Tensor:
    """RMSNorm over V with a gate: norm(x) * weight * act(gate), or norm(x * act(gate)) * weight.

    Args:
        x_LHV, gate_LHV: of one shape, any float dtypes.
        weight_V: [V], or [H, V] where each head has its own.
        gate_first: the gate goes before the norm (Mamba-2).
    Returns:
        [L, H, V] in x's dtype; computed in fp32, or fp64 for an fp64 x, and rounded last.
    Error:
        a row's bits depend on that row alone.
    """
    if gate_LHV.shape != x_LHV.shape:
        raise ValueError(f"gate {tuple(gate_LHV.shape)} does not fit rows {tuple(x_LHV.shape)}")
    if weight_V.shape not in (x_LHV.shape[-1:], x_LHV.shape[-2:]):
        raise ValueError(f"weight {tuple(weight_V.shape)} does not fit rows {tuple(x_LHV.shape)}")
    if activation not in ("silu", "sigmoid"):
        raise ValueError(f"activation is silu or sigmoid, got {activation!r}")
    run = backend.select(
        "gated_rms_norm",
        reference.gated_rms_norm,
        _gated_rms_norm_kernel,
        device=x_LHV.device,
    )
    return run(x_LHV, gate_LHV, weight_V, eps=eps, activation=activation, gate_first=gate_first)


def _rms_norm_kernel() -> Callable[..., torch.Tensor]:
    from hypic_sdk.kernels.norm import kernel

    return kernel.rms_norm


def _add_rms_norm_kernel() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    from hypic_sdk.kernels.norm import kernel

    return kernel.add_rms_norm


def _gated_rms_norm_kernel() -> Callable[..., torch.Tensor]:
    from hypic_sdk.kernels.norm import kernel

    return kernel.gated_rms_norm
