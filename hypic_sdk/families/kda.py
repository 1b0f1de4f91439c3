"""Kimi Delta Attention (Kimi Linear 2025): a decay a key channel, then erase.  HYPIC Table 1."""

from __future__ import annotations

import torch

from hypic_sdk.families.recurrence import LinearFamily, Recurrence
from hypic_sdk.kernels.activation import sigmoid, softplus


def kda(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    strength_logits: torch.Tensor,
    gate_logits: torch.Tensor,
    A_log: torch.Tensor,
    gate_bias: torch.Tensor,
    *,
    lower_bound: float | None = None,
    scale: float | None = None,
) -> Recurrence:
    """S <- (I - b k k^T) diag(exp(g)) S + b k v^T with unit keys and b = sigmoid(logit).

    g = -exp(A_log) * softplus(logit + bias); with `lower_bound` (negative: Ling-3.0, GLM)
    g = lower_bound * sigmoid(exp(A_log) * (logit + bias)).

    Args:
        query, key: [L, Hk, K] before normalisation.
        value: [L, H, V].
        strength_logits: [L, H]; gate_logits: [L, H, K]; A_log: [H]; gate_bias: [H, K].  Computed in
            fp32 (fp64).
        scale: of the query; K^-0.5 if none is given.
    """
    wide = torch.promote_types(value.dtype, torch.float32)
    shifted = gate_logits.to(wide) + gate_bias.to(wide)
    speed = A_log.to(wide).exp()[:, None]
    if lower_bound is None:
        log_decay = -speed * softplus(shifted)
    else:
        log_decay = lower_bound * sigmoid(speed * shifted)
    return Recurrence(
        query,
        key,
        value,
        log_decay=log_decay,
        erase=sigmoid(strength_logits.to(wide)),
        scale=key.shape[-1] ** -0.5 if scale is None else scale,
        unit_keys=True,
    )


def sample(rng: torch.Generator, L: int, H: int, K: int, V: int, dtype: torch.dtype) -> Recurrence:
    """Random natural inputs."""
    query, key, gate = (torch.randn(L, H, K, generator=rng, dtype=dtype) for _ in range(3))
    value = torch.randn(L, H, V, generator=rng, dtype=dtype)
    strength = torch.randn(L, H, generator=rng, dtype=dtype)
    A_log = torch.randn(H, generator=rng, dtype=dtype)
    bias = torch.randn(H, K, generator=rng, dtype=dtype) - 3.0
    return kda(query, key, value, strength, gate, A_log, bias)


FAMILY = LinearFamily(name="kda", sample=sample)
