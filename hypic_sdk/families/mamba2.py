"""Mamba-2 (Dao and Gu 2024; Nemotron-H, Granite-4-H): a decay that follows from the step size.

HYPIC Table 1, scalar.  Its B, C and x are key, query and value; groups are key heads.
"""

from __future__ import annotations

import torch

from hypic_sdk.families.recurrence import LinearFamily, Recurrence
from hypic_sdk.kernels.activation import softplus


def mamba2(
    x: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    step_logits: torch.Tensor,
    A_log: torch.Tensor,
    step_bias: torch.Tensor,
    *,
    step_limits: tuple[float, float] = (0.0, float("inf")),
) -> Recurrence:
    """S <- exp(d A) S + B (d x)^T with the step size d = softplus(logit + bias), A = -exp(A_log).

    Args:
        x: [L, H, V]; V is the head size P.
        B, C: [L, Hk, K]; K is the state size N, Hk the number of groups.
        step_logits: [L, H]; A_log, step_bias: [H].  Computed in fp32 (fp64).
        step_limits: the step size is clamped to them.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    steps = softplus(step_logits.to(wide) + step_bias.to(wide))
    steps = steps.clamp(*step_limits)
    value = (x.to(wide) * steps[..., None]).to(x.dtype)
    return Recurrence(C, B, value, log_decay=-A_log.to(wide).exp() * steps)


def sample(rng: torch.Generator, L: int, H: int, K: int, V: int, dtype: torch.dtype) -> Recurrence:
    """Random natural inputs; two state heads a group where H is even."""
    groups = H // 2 if H % 2 == 0 else H
    B, C = (torch.randn(L, groups, K, generator=rng, dtype=dtype) for _ in range(2))
    x = torch.randn(L, H, V, generator=rng, dtype=dtype)
    step_logits, A_log, bias = (
        torch.randn(*shape, generator=rng, dtype=dtype) for shape in ((L, H), (H,), (H,))
    )
    return mamba2(x, B, C, step_logits, A_log, bias - 2.0)


FAMILY = LinearFamily(name="mamba2", sample=sample)
