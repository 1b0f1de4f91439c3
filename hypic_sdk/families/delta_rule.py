"""DeltaNet (Yang et al. 2024): erase without decay.  HYPIC Table 1, dense."""

from __future__ import annotations

import torch

from hypic_sdk.families.recurrence import LinearFamily, Recurrence
from hypic_sdk.kernels.activation import sigmoid


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    strength_logits: torch.Tensor,
    *,
    scale: float | None = None,
) -> Recurrence:
    """S <- (I - b k k^T) S + b k v^T with unit keys and b = sigmoid(logit).

    Args:
        query, key: [L, Hk, K] before normalisation.
        value: [L, H, V].
        strength_logits: [L, H], computed in fp32 (fp64).
        scale: of the query; K^-0.5 if none is given.
    """
    wide = torch.promote_types(value.dtype, torch.float32)
    return Recurrence(
        query,
        key,
        value,
        erase=sigmoid(strength_logits.to(wide)),
        scale=key.shape[-1] ** -0.5 if scale is None else scale,
        unit_keys=True,
    )


def sample(rng: torch.Generator, L: int, H: int, K: int, V: int, dtype: torch.dtype) -> Recurrence:
    """Random natural inputs."""
    query, key = (torch.randn(L, H, K, generator=rng, dtype=dtype) for _ in range(2))
    value = torch.randn(L, H, V, generator=rng, dtype=dtype)
    return delta_rule(query, key, value, torch.randn(L, H, generator=rng, dtype=dtype))


FAMILY = LinearFamily(name="delta_rule", sample=sample)
