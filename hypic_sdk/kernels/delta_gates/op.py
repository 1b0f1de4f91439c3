"""Decay and strength of the gated delta rule in one pass over the logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.delta_gates import reference


@dataclass(frozen=True, slots=True, eq=False)
class GateLogits:
    """What decay and strength are made of: arguments of `delta_gates`, as they are there."""

    strength_LH: torch.Tensor
    decay_LH: torch.Tensor
    A_log_H: torch.Tensor
    bias_H: torch.Tensor

    def check(self) -> None:
        """Raise ValueError where the shapes do not fit each other."""
        strength, decay = self.strength_LH.shape, self.decay_LH.shape
        A_log, bias = self.A_log_H.shape, self.bias_H.shape
        if strength != decay or not A_log == bias == decay[-1:]:
            raise ValueError(
                f"strength {tuple(strength)}, decay {tuple(decay)}, A_log {tuple(A_log)} and bias"
                f" {tuple(bias)} do not fit each other"
            )

    def rows(self, start: int, stop: int) -> GateLogits:
        """The same for tokens [start, stop), as views."""
        strength_LH, decay_LH = self.strength_LH[start:stop], self.decay_LH[start:stop]
        return GateLogits(strength_LH, decay_LH, self.A_log_H, self.bias_H)

    def gates(self, wide: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Log decay and erase, as `delta_gates` gives them."""
        return delta_gates(self.strength_LH, self.decay_LH, self.A_log_H, self.bias_H, wide)


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
    GateLogits(strength_LH, decay_LH, A_log_H, bias_H).check()
    run = backend.select(
        "delta_gates", reference.delta_gates, _delta_gates_kernel, device=decay_LH.device
    )
    return run(strength_LH, decay_LH, A_log_H, bias_H, wide)


def _delta_gates_kernel() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    from hypic_sdk.kernels.delta_gates import kernel

    return kernel.delta_gates
