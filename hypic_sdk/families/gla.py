"""Gated Linear Attention (Yang et al. 2024): a diagonal decay from a gate.  HYPIC Table 1."""

from __future__ import annotations

import torch

from hypic_sdk.families.recurrence import LinearFamily, Recurrence
from hypic_sdk.kernels.activation import softplus


def gla(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    gate_logits: torch.Tensor,
    *,
    gate_divisor: float = 16.0,
    scale: float | None = None,
) -> Recurrence:
    """S <- diag(a) S + k v^T with a = sigmoid(logit)^(1 / divisor).

    Args:
        query, key: [L, Hk, K].
        value: [L, H, V].
        gate_logits: [L, H, K], computed in fp32 (fp64).
        scale: of the query; K^-0.5 if none is given.
    """
    wide = torch.promote_types(value.dtype, torch.float32)
    log_decay = -softplus(-gate_logits.to(wide)) / gate_divisor
    scale = key.shape[-1] ** -0.5 if scale is None else scale
    return Recurrence(query, key, value, log_decay=log_decay, scale=scale)


def sample(rng: torch.Generator, L: int, H: int, K: int, V: int, dtype: torch.dtype) -> Recurrence:
    """Random natural inputs."""
    query, key, gate_logits = (torch.randn(L, H, K, generator=rng, dtype=dtype) for _ in range(3))
    value = torch.randn(L, H, V, generator=rng, dtype=dtype)
    return gla(query, key, value, gate_logits)


FAMILY = LinearFamily(name="gla", sample=sample)
