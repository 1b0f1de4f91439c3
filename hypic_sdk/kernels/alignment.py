"""Tensors at addresses that are alike: a library's choice of instructions follows the address."""

from __future__ import annotations

import torch

# what torch's CPU allocator gives, and a divisor of what its GPU allocator gives
_BYTES = 64


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x where it is contiguous at a multiple of 64 bytes, as fresh memory is; else a copy that is.

    So a view of a larger tensor is treated as its copy would be, bit for bit.
    """
    if x.is_contiguous() and x.data_ptr() % _BYTES == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)
