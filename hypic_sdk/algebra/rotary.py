"""Rotary position for everyone above the kernels: keys, queries and states whose keys were rotated.

A state recorded at local positions 0.. is moved to a segment that starts at p by R(p) on its
rotary key rows; a scalar transition commutes with that turn (design 2).
"""

from hypic_sdk.kernels.rotation import RotarySpec, rotary_angles, rotate, rotate_state

__all__ = ["RotarySpec", "rotary_angles", "rotate", "rotate_state"]
