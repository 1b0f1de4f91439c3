"""Noise that is a function of a seed and a counter: no generator, no order of drawing."""

from __future__ import annotations

import torch

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def uniform(seeds_R: torch.Tensor, steps_R: torch.Tensor) -> torch.Tensor:
    """A number in (0, 1) for each pair of seed and step, [R] fp64, never 0 or 1.

    Source:
        the finaliser of SplitMix64 (Steele, Lea, Flood 2014), over the seed and then, with the
        step, over its result; the upper 48 bits, at half steps.
    """
    mixed = _mix(_mix(seeds_R + GOLDEN) + steps_R * GOLDEN)
    return (_shift_right(mixed, 16).double() + 0.5) * 2.0**-48


def _mix(x: torch.Tensor) -> torch.Tensor:
    # int64 products wrap around, as those of unsigned numbers do
    x = (x ^ _shift_right(x, 30)) * _FACTORS[0]
    x = (x ^ _shift_right(x, 27)) * _FACTORS[1]
    return x ^ _shift_right(x, 31)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """The logical shift: torch's own copies the sign down."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
