"""Keys and values into slots, in Triton: a program takes heads of some rows of a layer."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2

# heads of a program, of one row or of several; no bits hang on it
HEADS = 8
WARPS = 4


@triton.jit(do_not_specialize=["total"])
def _place_kernel(
    key_ptr,
    value_ptr,
    source_ptr,  # read with HAS_SOURCE only
    target_ptr,
    keys_ptr,
    values_ptr,
    cos_ptr,  # read with F > 0 only, as sin_ptr
    sin_ptr,
    key_layer_stride,
    key_row_stride,
    key_head_stride,
    value_layer_stride,
    value_row_stride,
    value_head_stride,
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
    HAS_SOURCE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    i_a = tl.program_id(1).to(tl.int64)
    o_r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    i_l, i_g = (o_r // G).to(tl.int64), (o_r % G).to(tl.int64)
    # [BR]; a row without a slot loads and stores nothing, its offsets are never used
    i_target = tl.load(target_ptr + i_l, o_r < total, other=-1).to(tl.int64)
    m_r = (i_target >= 0)[:, None]
    i_source = i_l
    if HAS_SOURCE:
        i_source = tl.load(source_ptr + i_l, o_r < total, other=0).to(tl.int64)
    o_key = i_a * key_layer_stride + i_source * key_row_stride + i_g * key_head_stride
    o_value = i_a * value_layer_stride + i_source * value_row_stride + i_g * value_head_stride
    o_keys = i_a * keys_layer_stride + i_target * keys_slot_stride + i_g * keys_head_stride
    o_values = i_a * values_layer_stride + i_target * values_slot_stride + i_g * values_head_stride
    # [BR, 1]
    key_ptr += o_key[:, None]
    keys_ptr += o_keys[:, None]

    o_e = tl.arange(0, BLOCK_E)[None, :]
    m_re = m_r & (o_e < E)
    # [BR, BE]
    b_value = tl.load(value_ptr + o_value[:, None] + o_e, mask=m_re, other=0.0)
    b_value = b_value.to(values_ptr.dtype.element_ty)
    tl.store(values_ptr + o_values[:, None] + o_e, b_value, mask=m_re)

    m_rest = m_re & (o_e >= 2 * F)
    # [BR, BE], the dimensions that do not turn
    b_rest = tl.load(key_ptr + o_e, mask=m_rest, other=0.0)
    tl.store(keys_ptr + o_e, b_rest.to(keys_ptr.dtype.element_ty), mask=m_rest)

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
        b_new_first = (b_first * b_cos - b_second * b_sin).to(keys_ptr.dtype.element_ty)
        b_new_second = (b_second * b_cos + b_first * b_sin).to(keys_ptr.dtype.element_ty)
        tl.store(keys_ptr + o_first, b_new_first, mask=m_rf)
        tl.store(keys_ptr + o_second, b_new_second, mask=m_rf)


def place_kv(
    key_LGE: torch.Tensor,
    value_LGE: torch.Tensor,
    slots_L: torch.Tensor,
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
    *,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    interleaved: bool,
) -> None:
    """As the reference; the rows' keys and values may be strided, but for their last axis."""
    _launch(
        _last_axis_contiguous(key_LGE)[None],
        _last_axis_contiguous(value_LGE)[None],
        None,
        slots_L,
        keys_PGE[None],
        values_PGE[None],
        cos,
        sin,
        interleaved,
    )


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
    _launch(
        keys_APGE,
        values_APGE,
        source_slots_L,
        target_slots_L,
        keys_APGE,
        values_APGE,
        cos,
        sin,
        interleaved,
    )


def _last_axis_contiguous(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _launch(
    key: torch.Tensor,  # [A, L or P, G, E]
    value: torch.Tensor,
    source_slots_L: torch.Tensor | None,
    target_slots_L: torch.Tensor,
    keys_APGE: torch.Tensor,
    values_APGE: torch.Tensor,
    cos_LF: torch.Tensor | None,
    sin_LF: torch.Tensor | None,
    interleaved: bool,
) -> None:
    num_rows, (A, _, G, E) = target_slots_L.shape[0], keys_APGE.shape
    assert keys_APGE.stride(3) == values_APGE.stride(3) == 1, "a slab's last axis is contiguous"
    if num_rows == 0:
        return
    F, compute = 0, tl.float32
    if cos_LF is not None and sin_LF is not None:
        F = cos_LF.shape[1]
        cos_LF, sin_LF = cos_LF.contiguous(), sin_LF.contiguous()
        if torch.float64 in (cos_LF.dtype, key.dtype):
            compute = tl.float64
    target_slots_L = target_slots_L.contiguous()
    has_source = source_slots_L is not None
    _place_kernel.run(
        key,
        value,
        source_slots_L.contiguous() if has_source else target_slots_L,
        target_slots_L,
        keys_APGE,
        values_APGE,
        key if cos_LF is None else cos_LF,
        key if sin_LF is None else sin_LF,
        *key.stride()[:3],
        *value.stride()[:3],
        *keys_APGE.stride()[:3],
        *values_APGE.stride()[:3],
        num_rows * G,
        grid=(cdiv(num_rows * G, HEADS), A),
        warmup=False,
        G=G,
        E=E,
        F=F,
        HAS_SOURCE=has_source,
        INTERLEAVED=interleaved,
        COMPUTE=compute,
        BLOCK_R=HEADS,
        BLOCK_E=next_power_of_2(E),
        BLOCK_F=next_power_of_2(max(F, 1)),
        num_warps=WARPS,
    )
