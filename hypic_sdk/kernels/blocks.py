"""How many blocks cover an axis, and how wide a block is: plain integers, on the host.

Triton's own functions of these names serve its compiler as well, and cost a launch a tenth of its
time each.
"""

from __future__ import annotations


def cdiv(length: int, block: int) -> int:
    """Blocks that cover `length` things."""
    return -(-length // block)


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is not smaller; `number` is at least 1."""
    return 1 << (number - 1).bit_length()
