"""Lightning attention (Qin et al. 2024; Ring, Ling, MiniMax): a constant decay, rotary keys.

HYPIC Table 1, scalar.  With rotary keys a state recorded at local positions is turned by
R(position) before it is used elsewhere; MiniMax passes no `rotary` and a scale of 1.
"""

from __future__ import annotations

import torch

from hypic_sdk.algebra.rotary import RotarySpec, rotary_angles, rotate
from hypic_sdk.families.recurrence import LinearFamily, Recurrence


def lightning(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    positions: torch.Tensor,
    *,
    rotary: RotarySpec | None,
    scale: float | None = None,
) -> Recurrence:
    """S <- exp(g) S + R(p) k v^T, read by R(p) q.

    Args:
        query, key: [L, Hk, K] after their norms and before rotation.
        value: [L, H, V].
        log_decay: [H], at most 0, fp32 (fp64); `lightning_log_decay` gives the released ones.
        positions: [L] int64.
        rotary: none for a layer without positions.
        scale: of the query; K^-0.5 if none is given.
    """
    if rotary is not None:
        wide = torch.promote_types(query.dtype, torch.float32)
        cos, sin = rotary_angles(rotary, positions, wide)
        query = rotate(query, cos, sin, rotary.interleaved)
        key = rotate(key, cos, sin, rotary.interleaved)
    scale = key.shape[-1] ** -0.5 if scale is None else scale
    return Recurrence(
        query, key, value, scale=scale, constant_log_decay=log_decay, key_rotation=rotary
    )


def lightning_log_decay(
    num_heads: int,
    layer: int,
    num_layers: int,
    *,
    first_layer_full: bool = True,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Minus the slopes of layer `layer` (0-based): [H].

    Args:
        first_layer_full: factor 1 - l/(L-1) + 1e-5, so that layer 0 has the full slopes (SGLang,
            vLLM); else 1 - (l-1)/(L-1) + 1e-5, as the vendor's transformers code has it.
    Source:
        hybrid_models 3.3; ALiBi's rule where the number of heads is no power of two.
    """
    index = layer if first_layer_full else layer - 1
    factor = 1.0 - index / max(num_layers - 1, 1) + 1e-5
    return torch.tensor([-slope * factor for slope in _slopes(num_heads)], dtype=dtype)


def _slopes(num_heads: int) -> list[float]:
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    if power == num_heads:
        return slopes
    return slopes + _slopes(2 * power)[0::2][: num_heads - power]


def sample(rng: torch.Generator, L: int, H: int, K: int, V: int, dtype: torch.dtype) -> Recurrence:
    """Random natural inputs at positions 0.., with the first half of the key dims rotary."""
    query, key = (torch.randn(L, H, K, generator=rng, dtype=dtype) for _ in range(2))
    value = torch.randn(L, H, V, generator=rng, dtype=dtype)
    rotary = RotarySpec(theta=10000.0, rotary_dims=2 * max(1, K // 4)) if K > 1 else None
    wide = torch.promote_types(dtype, torch.float32)
    log_decay = lightning_log_decay(H, 0, 4, dtype=wide)
    return lightning(query, key, value, log_decay, torch.arange(L), rotary=rotary)


FAMILY = LinearFamily(name="lightning", sample=sample)
