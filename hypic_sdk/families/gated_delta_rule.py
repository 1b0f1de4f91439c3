"""Gated DeltaNet (Yang et al. 2025; Qwen3.5): a decay a head, then erase.  HYPIC Table 1, dense."""

from __future__ import annotations

from dataclasses import replace

import torch

from hypic_sdk.families.recurrence import LinearFamily, Recurrence
from hypic_sdk.kernels.delta_gates.op import GateLogits


def gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    strength_logits: torch.Tensor,
    decay_logits: torch.Tensor,
    A_log: torch.Tensor,
    decay_bias: torch.Tensor,
    *,
    strength_max: float = 1.0,
    scale: float | None = None,
) -> Recurrence:
    """S <- (I - b k k^T) exp(g) S + b k v^T with unit keys.

    b = strength_max * sigmoid(logit);  g = -exp(A_log) * softplus(logit + bias), which are left to
    who reads them: the scan of live rows makes them on its way.

    Args:
        query, key: [L, Hk, K] before normalisation.
        value: [L, H, V].
        strength_logits, decay_logits: [L, H]; A_log, decay_bias: [H].  Computed in fp32 (fp64).
        strength_max: 2 where negative eigenvalues are allowed (OLMo-Hybrid).
        scale: of the query; K^-0.5 if none is given.
    """
    made = Recurrence(
        query,
        key,
        value,
        scale=key.shape[-1] ** -0.5 if scale is None else scale,
        unit_keys=True,
        gate_logits=GateLogits(strength_logits, decay_logits, A_log, decay_bias),
    )
    if strength_max == 1.0:
        return made
    made = made.written_out()
    assert made.erase is not None, "logits are written out"
    return replace(made, erase=strength_max * made.erase)


def sample(rng: torch.Generator, L: int, H: int, K: int, V: int, dtype: torch.dtype) -> Recurrence:
    """Random natural inputs; two state heads a key head where H is even."""
    key_heads = H // 2 if H % 2 == 0 else H
    query, key = (torch.randn(L, key_heads, K, generator=rng, dtype=dtype) for _ in range(2))
    value = torch.randn(L, H, V, generator=rng, dtype=dtype)
    strength, decay = (torch.randn(L, H, generator=rng, dtype=dtype) for _ in range(2))
    A_log, bias = (torch.randn(H, generator=rng, dtype=dtype) for _ in range(2))
    made = gated_delta_rule(query, key, value, strength, decay, A_log, bias - 3.0)
    return made.written_out()


FAMILY = LinearFamily(name="gated_delta_rule", sample=sample)
