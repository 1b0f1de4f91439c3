"""Rotary position: angle tables, rotation of queries and keys, rotation of a recurrent state.

The one place that knows the formula.  `algebra.rotary` gives these names to the rooms above; they
lie here because ops rotate too, and `kernels` imports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RotarySpec:
    """Rotary embedding of the first `rotary_dims` of a head: pair i turns by p * theta^(-2i/dims).

    Pairs are (i, i + rotary_dims/2), the NeoX halves, or with `interleaved` (2i, 2i + 1).
    """

    theta: float
    rotary_dims: int
    interleaved: bool = False

    def __post_init__(self) -> None:
        if self.rotary_dims < 2 or self.rotary_dims % 2:
            raise ValueError(f"rotary_dims must be even and at least 2, got {self.rotary_dims}")
        if not self.theta > 0.0:
            raise ValueError(f"theta must be positive, got {self.theta}")


def rotary_angles(
    spec: RotarySpec, positions: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of every pair's angle at each position.

    Args:
        positions: [L] integers, of any sign (a difference of positions is one).
        dtype: of the result.  Angles are computed in fp64 from the integers and rounded last.
    Returns:
        cos, sin, each [L, rotary_dims / 2].
    """
    if positions.is_floating_point():
        raise ValueError(f"positions must be integers, got {positions.dtype}")
    pairs = torch.arange(0, spec.rotary_dims, 2, dtype=torch.float64, device=positions.device)
    frequencies = torch.pow(spec.theta, -pairs / spec.rotary_dims)
    angles = positions.to(torch.float64)[:, None] * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False
) -> torch.Tensor:
    """Rotate the first rotary_dims of the last axis; the rest passes.

    Args:
        x: [L, heads, E].
        cos, sin: [L, rotary_dims / 2] of `rotary_angles`.
    Returns:
        [L, heads, E], a new tensor in x's dtype; products are taken in the wider of the two dtypes.
    """
    if x.ndim != 3 or cos.shape != sin.shape or cos.shape[0] != x.shape[0]:
        raise ValueError(f"tables {tuple(cos.shape)} do not fit rows {tuple(x.shape)}")
    return _turn_last(x, cos[:, None], sin[:, None], interleaved)


def rotate_state(state: torch.Tensor, spec: RotarySpec, position: int) -> torch.Tensor:
    """R(position) S: move a state whose keys were rotated from local position 0 to `position`.

    Args:
        state: [.., H, K, V] with the rotated key rows first.
    Returns:
        the turned state, a new contiguous tensor.
    Source:
        HYPIC Eq. 8; design 2.
    """
    cos, sin = rotary_angles(spec, torch.tensor([position], device=state.device), state.dtype)
    turned = _turn_last(state.transpose(-1, -2), cos[0], sin[0], spec.interleaved)
    return turned.transpose(-1, -2).contiguous()


def _turn_last(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    half = cos.shape[-1]
    if x.shape[-1] < 2 * half:
        raise ValueError(f"cannot rotate {2 * half} of {x.shape[-1]} dimensions")
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., :half], turned[..., half:]
    # separate products and sums: no fused multiply-add, so a row's bits do not depend on its place
    new_first = first * cos - second * sin
    new_second = second * cos + first * sin
    if interleaved:
        turned = torch.stack((new_first, new_second), dim=-1).flatten(-2)
    else:
        turned = torch.cat((new_first, new_second), dim=-1)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)
