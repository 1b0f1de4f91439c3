"""Retention (RetNet, Sun et al. 2023): a constant decay a head.  HYPIC Table 1, scalar."""

from __future__ import annotations

import torch

from hypic_sdk.families.recurrence import LinearFamily, Recurrence


def retention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    *,
    scale: float | None = None,
) -> Recurrence:
    """S <- exp(g) S + k v^T with the same g each token, so nothing is stored of the transition.

    Args:
        query, key: [L, Hk, K].
        value: [L, H, V].
        log_decay: [H], at most 0, fp32 (fp64).
        scale: of the query; K^-0.5 if none is given.
    """
    scale = key.shape[-1] ** -0.5 if scale is None else scale
    return Recurrence(query, key, value, scale=scale, constant_log_decay=log_decay)


def retention_log_decay(num_heads: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """RetNet's own decays, log(1 - 2^(-5-h)) for head h: [H]."""
    heads = torch.arange(num_heads, dtype=torch.float64)
    return torch.log1p(-torch.pow(2.0, -5.0 - heads)).to(dtype)


def sample(rng: torch.Generator, L: int, H: int, K: int, V: int, dtype: torch.dtype) -> Recurrence:
    """Random natural inputs with RetNet's own decays."""
    query, key = (torch.randn(L, H, K, generator=rng, dtype=dtype) for _ in range(2))
    value = torch.randn(L, H, V, generator=rng, dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    return retention(query, key, value, retention_log_decay(H, wide))


FAMILY = LinearFamily(name="retention", sample=sample)
