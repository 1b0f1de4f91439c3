"""Decay and strength of the gated delta rule in one pass over the logits."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.delta_gates import reference


def delta_gates(
    strength_LH: torch.Tensor,
    decay_LH: torch.Tensor,
    A_log_H: torch.Tensor,
    bias_H: torch.Tensor,
    wide: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log decay = -exp(A_log) softplus(decay + bias) and erase = sigmoid(strength).

    Args:
        strength_LH, decay_LH: logits [L, H], any float dtype; may be slices of a projection.
        A_log_H, bias_H: [H], any float dtype.
        wide: fp32 or fp64: what is computed in, and of both results.
    Returns:
        log decay and erase, [L, H] each, new.
    Error:
        a handful of roundings of `wide`; an element depends on its own logits alone.
    Source:
        Gated DeltaNet (Yang et al. 2025).
    """
    heads = decay_LH.shape[-1:]
    if strength_LH.shape != decay_LH.shape or not A_log_H.shape == bias_H.shape == heads:
        raise ValueError(
            f"strength {tuple(strength_LH.shape)}, decay {tuple(decay_LH.shape)}, A_log"
            f" {tuple(A_log_H.shape)} and bias {tuple(bias_H.shape)} do not fit each other"
        )
    run = backend.select(
        "delta_gates", reference.delta_gates, _delta_gates_kernel, device=decay_LH.device
    )
    return run(strength_LH, decay_LH, A_log_H, bias_H, wide)


def _delta_gates_kernel() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    from hypic_sdk.kernels.delta_gates import kernel

    return kernel.delta_gates
