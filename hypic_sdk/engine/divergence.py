"""How far one distribution over the next token is from another."""

from __future__ import annotations

import torch


def divergence_rows(wanted_NV: torch.Tensor, other_NV: torch.Tensor) -> torch.Tensor:
    """KL(wanted || other) of each row of logits, in nats: [N] fp64."""
    wanted = wanted_NV.double().log_softmax(-1)
    other = other_NV.double().log_softmax(-1)
    return (wanted.exp() * (wanted - other)).sum(-1).clamp_min(0.0)
