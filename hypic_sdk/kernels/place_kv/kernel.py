"""Keys and values into slots, in Triton: one program a row and layer, all heads at once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
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
    G,
    E: tl.constexpr,
    F: tl.constexpr,
    HAS_SOURCE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    i_l, i_a = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    i_target = tl.load(target_ptr + i_l).to(tl.int64)
    i_source = i_l
    if HAS_SOURCE:
        i_source = tl.load(source_ptr + i_l).to(tl.int64)
    # a row without a slot has no heads: it loads and stores nothing, its offsets are never used
    num_heads = tl.where(i_target >= 0, G, 0)
    key_ptr += i_a * key_layer_stride + i_source * key_row_stride
    value_ptr += i_a * value_layer_stride + i_source * value_row_stride
    keys_ptr += i_a * keys_layer_stride + i_target * keys_slot_stride
    values_ptr += i_a * values_layer_stride + i_target * values_slot_stride

    o_g, o_e = tl.arange(0, BLOCK_G).to(tl.int64)[:, None], tl.arange(0, BLOCK_E)[None, :]
    m_ge = (o_g < num_heads) & (o_e < E)
    # [BG, BE]
    b_value = tl.load(value_ptr + o_g * value_head_stride + o_e, mask=m_ge, other=0.0)
    b_value = b_value.to(values_ptr.dtype.element_ty)
    tl.store(values_ptr + o_g * values_head_stride + o_e, b_value, mask=m_ge)

    m_rest = m_ge & (o_e >= 2 * F)
    # [BG, BE], the dimensions that do not turn
    b_rest = tl.load(key_ptr + o_g * key_head_stride + o_e, mask=m_rest, other=0.0)
    b_rest = b_rest.to(keys_ptr.dtype.element_ty)
    tl.store(keys_ptr + o_g * keys_head_stride + o_e, b_rest, mask=m_rest)

    if F > 0:
        o_f = tl.arange(0, BLOCK_F)[None, :]
        m_f = o_f < F
        m_gf = (o_g < num_heads) & m_f
        if INTERLEAVED:
            o_first, o_second = 2 * o_f, 2 * o_f + 1
        else:
            o_first, o_second = o_f, o_f + F
        # [1, BF]
        b_cos = tl.load(cos_ptr + i_l * F + o_f, mask=m_f, other=0.0).to(COMPUTE)
        b_sin = tl.load(sin_ptr + i_l * F + o_f, mask=m_f, other=0.0).to(COMPUTE)
        # [BG, BF]
        b_first = tl.load(key_ptr + o_g * key_head_stride + o_first, mask=m_gf, other=0.0)
        b_second = tl.load(key_ptr + o_g * key_head_stride + o_second, mask=m_gf, other=0.0)
        b_first, b_second = b_first.to(COMPUTE), b_second.to(COMPUTE)
        b_new_first = (b_first * b_cos - b_second * b_sin).to(keys_ptr.dtype.element_ty)
        b_new_second = (b_second * b_cos + b_first * b_sin).to(keys_ptr.dtype.element_ty)
        tl.store(keys_ptr + o_g * keys_head_stride + o_first, b_new_first, mask=m_gf)
        tl.store(keys_ptr + o_g * keys_head_stride + o_second, b_new_second, mask=m_gf)


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
    _place_kernel[(num_rows, A)](
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
        G,
        E=E,
        F=F,
        HAS_SOURCE=has_source,
        INTERLEAVED=interleaved,
        COMPUTE=compute,
        BLOCK_G=triton.next_power_of_2(G),
        BLOCK_E=triton.next_power_of_2(E),
        BLOCK_F=triton.next_power_of_2(max(F, 1)),
    )
