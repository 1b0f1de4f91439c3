"""Mamba (Gu and Dao 2023; Jamba): a decay for each channel and state entry, rank one in the log.

HYPIC Table 1, diagonal.  A state head is a group of channels that share their step size: one
channel (V = 1) in the released models.  The transition is the sum of the step sizes, since
the rates are weights.
"""

from __future__ import annotations

import torch

from hypic_sdk.families.recurrence import LinearFamily, Recurrence


def mamba1(
    x: torch.Tensor, B: torch.Tensor, C: torch.Tensor, steps: torch.Tensor, A_log: torch.Tensor
) -> Recurrence:
    """S <- exp(d A) S + B (d x)^T, A = -exp(A_log) for each channel and state entry.

    Args:
        x: [L, H, V]; H is the number of channels, V = 1 in released models.
        B, C: [L, Hk, K]; K is the state size N, Hk = 1 in released models.
        steps: [L, H], the step sizes d, not negative (softplus is the caller's).
        A_log: [H, K].
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    value = (x.to(wide) * steps.to(wide)[..., None]).to(x.dtype)
    return Recurrence(C, B, value, steps=steps.to(wide), rates=-A_log.to(wide).exp())


def sample(rng: torch.Generator, L: int, H: int, K: int, V: int, dtype: torch.dtype) -> Recurrence:
    """Random natural inputs with one B and C for all channels; A as Mamba initialises it."""
    B, C = (torch.randn(L, 1, K, generator=rng, dtype=dtype) for _ in range(2))
    x = torch.randn(L, H, V, generator=rng, dtype=dtype)
    steps = torch.nn.functional.softplus(torch.randn(L, H, generator=rng, dtype=dtype) - 3.0)
    A_log = torch.arange(1, K + 1, dtype=dtype).log().expand(H, K)
    return mamba1(x, B, C, steps, A_log)


FAMILY = LinearFamily(name="mamba1", sample=sample)
