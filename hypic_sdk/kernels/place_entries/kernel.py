"""Cached entries to other slots, in Triton: a program takes heads of some rows of a layer."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2

# heads of a program, of one row or of several; no bits hang on it
HEADS = 8
WARPS = 4


@triton.jit
def turn(b_first, b_second, b_cos, b_sin):
    """Pairs of numbers turned by their angles.

    Which product is rounded is said: a compiler would choose by what stands around it, and a key's
    bits would depend on the kernel that turns it.
    """
    b_new_first = tl.fma(b_first, b_cos, -(b_second * b_sin))
    return b_new_first, tl.fma(b_second, b_cos, b_first * b_sin)


@triton.jit(do_not_specialize=["total"])
def _place_kernel(
    source_ptr,
    target_ptr,
    keys_ptr,
    values_ptr,
    cos_ptr,  # read with F > 0 only, as sin_ptr
    sin_ptr,
    keys_layer_stride,
    keys_slot_stride,
    keys_head_stride,
    values_layer_stride,
    values_slot_stride,
    values_head_stride,
    total,  # rows * heads
    G: tl.constexpr,
    E: tl.constexpr,
    F: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    i_a = tl.program_id(1).to(tl.int64)
    o_r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    i_l, i_g = (o_r // G).to(tl.int64), (o_r % G).to(tl.int64)
    # [BR]; a row without a target loads and stores nothing, its offsets are never used
    i_target = tl.load(target_ptr + i_l, o_r < total, other=-1).to(tl.int64)
    m_r = (i_target >= 0)[:, None]
    i_source = tl.load(source_ptr + i_l, o_r < total, other=0).to(tl.int64)
    keys_ptr += i_a * keys_layer_stride
    values_ptr += i_a * values_layer_stride
    # [BR, 1]
    key_ptr = keys_ptr + (i_source * keys_slot_stride + i_g * keys_head_stride)[:, None]
    out_ptr = keys_ptr + (i_target * keys_slot_stride + i_g * keys_head_stride)[:, None]
    o_value = (i_source * values_slot_stride + i_g * values_head_stride)[:, None]
    o_out = (i_target * values_slot_stride + i_g * values_head_stride)[:, None]

    o_e = tl.arange(0, BLOCK_E)[None, :]
    m_re = m_r & (o_e < E)
    # [BR, BE]
    b_value = tl.load(values_ptr + o_value + o_e, mask=m_re, other=0.0)
    tl.store(values_ptr + o_out + o_e, b_value, mask=m_re)

    m_rest = m_re & (o_e >= 2 * F)
    # [BR, BE], the dimensions that do not turn
    b_rest = tl.load(key_ptr + o_e, mask=m_rest, other=0.0)
    tl.store(out_ptr + o_e, b_rest, mask=m_rest)

    if F > 0:
        o_f = tl.arange(0, BLOCK_F)[None, :]
        m_rf = m_r & (o_f < F)
        if INTERLEAVED:
            o_first, o_second = 2 * o_f, 2 * o_f + 1
        else:
            o_first, o_second = o_f, o_f + F
        # [BR, BF]
        b_cos = tl.load(cos_ptr + i_l[:, None] * F + o_f, mask=m_rf, other=0.0).to(COMPUTE)
        b_sin = tl.load(sin_ptr + i_l[:, None] * F + o_f, mask=m_rf, other=0.0).to(COMPUTE)
        b_first = tl.load(key_ptr + o_first, mask=m_rf, other=0.0).to(COMPUTE)
        b_second = tl.load(key_ptr + o_second, mask=m_rf, other=0.0).to(COMPUTE)
        b_first, b_second = turn(b_first, b_second, b_cos, b_sin)
        tl.store(out_ptr + o_first, b_first.to(out_ptr.dtype.element_ty), mask=m_rf)
        tl.store(out_ptr + o_second, b_second.to(out_ptr.dtype.element_ty), mask=m_rf)


def place_entries(
    keys_APGE: torch.Tensor,
    values_APGE: torch.Tensor,
    source_slots_L: torch.Tensor,
    target_slots_L: torch.Tensor,
    *,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    interleaved: bool,
) -> None:
    """As the reference; a target that were a source as well would be a race."""
    num_rows, (A, _, G, E) = target_slots_L.shape[0], keys_APGE.shape
    assert keys_APGE.stride(3) == values_APGE.stride(3) == 1, "a slab's last axis is contiguous"
    if num_rows == 0:
        return
    F, compute = 0, tl.float32
    if cos is not None and sin is not None:
        F = cos.shape[1]
        cos, sin = cos.contiguous(), sin.contiguous()
        if torch.float64 in (cos.dtype, keys_APGE.dtype):
            compute = tl.float64
    _place_kernel.run(
        source_slots_L.contiguous(),
        target_slots_L.contiguous(),
        keys_APGE,
        values_APGE,
        keys_APGE if cos is None else cos,
        keys_APGE if sin is None else sin,
        *keys_APGE.stride()[:3],
        *values_APGE.stride()[:3],
        num_rows * G,
        grid=(cdiv(num_rows * G, HEADS), A),
        warmup=False,
        G=G,
        E=E,
        F=F,
        INTERLEAVED=interleaved,
        COMPUTE=compute,
        BLOCK_R=HEADS,
        BLOCK_E=next_power_of_2(E),
        BLOCK_F=next_power_of_2(max(F, 1)),
        num_warps=WARPS,
    )
