"""The gates in Triton: one launch, each element from its own logits alone.

Kernels that read a token's gates but once make them by `gates_of` instead: the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv

_BLOCK = 1024


@triton.jit
def gates_of(strength, decay, A_log, bias, COMPUTE: tl.constexpr):
    """Log decay and strength of logits, numbers or blocks, in COMPUTE.

    The one product that is added to anything, the logarithm's, goes through a choice first, and
    who calls only multiplies with what is returned: a compiler has nothing to fuse, and bits are
    the same in any kernel.
    """
    decay = decay.to(COMPUTE) + bias.to(COMPUTE)
    rate = tl.exp(A_log.to(COMPUTE))
    # log(1 + y) with y at most 1: exact for a small y too, where 1 + y is rounded
    y = tl.exp(-tl.abs(decay))
    one = 1.0 + y
    lost = one - 1.0
    log = tl.where(lost == 0.0, y, tl.log(one) * (y / tl.where(lost == 0.0, 1.0, lost)))
    step = log + tl.maximum(decay, 0.0)
    # the exponent is never positive, so nothing overflows
    strength = strength.to(COMPUTE)
    small = tl.exp(-tl.abs(strength))
    return -rate * step, tl.where(strength >= 0.0, 1.0, small) / (1.0 + small)


@triton.jit
def _gates_kernel(
    strength_ptr,
    decay_ptr,
    A_log_ptr,  # [H]
    bias_ptr,  # [H]
    log_decay_ptr,  # [L, H]
    erase_ptr,  # [L, H]
    strength_stride,
    decay_stride,
    total,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    o_lh = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m_lh = o_lh < total
    i_row, i_head = o_lh // H, o_lh % H
    # [B]
    b_strength = tl.load(strength_ptr + i_row * strength_stride + i_head, m_lh, other=0.0)
    b_decay = tl.load(decay_ptr + i_row * decay_stride + i_head, m_lh, other=0.0)
    b_bias = tl.load(bias_ptr + i_head, m_lh, other=0.0)
    b_A_log = tl.load(A_log_ptr + i_head, m_lh, other=0.0)
    b_log_decay, b_erase = gates_of(b_strength, b_decay, b_A_log, b_bias, COMPUTE)
    tl.store(log_decay_ptr + o_lh, b_log_decay, m_lh)
    tl.store(erase_ptr + o_lh, b_erase, m_lh)


def delta_gates(
    strength_LH: torch.Tensor,
    decay_LH: torch.Tensor,
    A_log_H: torch.Tensor,
    bias_H: torch.Tensor,
    wide: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference."""
    strength_LH, decay_LH = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (strength_LH, decay_LH)
    )
    log_decay, erase = (
        torch.empty(decay_LH.shape, dtype=wide, device=decay_LH.device) for _ in range(2)
    )
    total = decay_LH.numel()
    if total:
        _gates_kernel[(cdiv(total, _BLOCK),)](
            strength_LH,
            decay_LH,
            A_log_H.contiguous(),
            bias_H.contiguous(),
            log_decay,
            erase,
            strength_LH.stride(0),
            decay_LH.stride(0),
            total,
            H=decay_LH.shape[1],
            BLOCK=_BLOCK,
            COMPUTE=tl.float64 if wide == torch.float64 else tl.float32,
            num_warps=4,
        )
    return log_decay, erase
