"""What goes into attention, in Triton: programs of query heads, then programs of key heads.

How many heads a program takes follows from their size alone, and is what `norm` takes of rows of
that size: a head is summed in the same order by both.  Only stores depend on where a row goes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2
from hypic_sdk.kernels.head_norms import HeadNorms
from hypic_sdk.kernels.norm.kernel import BLOCK, WARPS, root_mean_square
from hypic_sdk.kernels.place_entries.kernel import turn


@triton.jit
def _normed(b_x, b_size, weight_ptr, o, m_o, CENTRE: tl.constexpr, COMPUTE: tl.constexpr):
    """Columns `o` of heads of sizes `b_size` [BP], rounded as they are by a norm of its own."""
    b_weight = tl.load(weight_ptr + o, m_o, other=0.0).to(COMPUTE) + CENTRE
    return (b_x.to(COMPUTE) / b_size[:, None] * b_weight).to(b_x.dtype)


@triton.jit
def _pairs(o_f, F: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Columns of the two numbers of each pair."""
    if INTERLEAVED:
        return 2 * o_f, 2 * o_f + 1
    else:
        return o_f, o_f + F


@triton.jit
def _heads(
    x_ptr,  # [BP, 1]
    weight_ptr,  # read with HAS_NORM only
    cos_ptr,  # [BP, 1], a row's F numbers; read with F > 0 only, as sin_ptr
    sin_ptr,
    m_p,  # [BP, 1]
    E: tl.constexpr,
    F: tl.constexpr,
    EPS: tl.constexpr,
    CENTRE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    NORM_IN: tl.constexpr,
    TURN_IN: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """Heads [BP, BE] after their norm, and both numbers of their pairs [BP, BF] after rotation."""
    o_e = tl.arange(0, BLOCK_E)[None, :]
    m_e = o_e < E
    b_all = tl.load(x_ptr + o_e, m_p & m_e, other=0.0)
    if HAS_NORM:
        b_size = root_mean_square(b_all.to(NORM_IN), E, EPS)
        b_all = _normed(b_all, b_size, weight_ptr, o_e, m_e, CENTRE, NORM_IN)
    b_first, b_second = b_all, b_all
    if F > 0:
        o_f = tl.arange(0, BLOCK_F)[None, :]
        m_f = o_f < F
        m_pf = m_p & m_f
        o_first, o_second = _pairs(o_f, F, INTERLEAVED)
        b_cos = tl.load(cos_ptr + o_f, m_pf, other=0.0).to(TURN_IN)
        b_sin = tl.load(sin_ptr + o_f, m_pf, other=0.0).to(TURN_IN)
        # read once more, so that the numbers of a pair meet
        b_first = tl.load(x_ptr + o_first, m_pf, other=0.0)
        b_second = tl.load(x_ptr + o_second, m_pf, other=0.0)
        if HAS_NORM:
            b_first = _normed(b_first, b_size, weight_ptr, o_first, m_f, CENTRE, NORM_IN)
            b_second = _normed(b_second, b_size, weight_ptr, o_second, m_f, CENTRE, NORM_IN)
        b_first, b_second = turn(b_first.to(TURN_IN), b_second.to(TURN_IN), b_cos, b_sin)
    return b_all, b_first, b_second


@triton.jit
def _store_turned(
    out_ptr,  # [BP, 1]
    b_all,
    b_first,
    b_second,
    m_p,
    E: tl.constexpr,
    F: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """Heads after rotation: what does not turn, and the pairs."""
    o_e = tl.arange(0, BLOCK_E)[None, :]
    dtype = out_ptr.dtype.element_ty
    tl.store(out_ptr + o_e, b_all.to(dtype), m_p & (o_e < E) & (o_e >= 2 * F))
    if F > 0:
        o_f = tl.arange(0, BLOCK_F)[None, :]
        o_first, o_second = _pairs(o_f, F, INTERLEAVED)
        tl.store(out_ptr + o_first, b_first.to(dtype), m_p & (o_f < F))
        tl.store(out_ptr + o_second, b_second.to(dtype), m_p & (o_f < F))


@triton.jit(do_not_specialize=["num_rows", "query_programs"])
def _inputs_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    query_weight_ptr,  # read with HAS_NORM only, as key_weight_ptr
    key_weight_ptr,
    cos_ptr,  # [L, F]; read with F > 0 only, as sin_ptr
    sin_ptr,
    slots_ptr,
    entry_slots_ptr,  # read with HAS_ENTRIES only
    out_ptr,  # [L, Q, E]
    turned_ptr,  # [L, G, E]; written with HAS_TURNED only
    keys_ptr,
    values_ptr,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    keys_stride,
    keys_head_stride,
    values_stride,
    values_head_stride,
    num_rows,
    query_programs,
    Q: tl.constexpr,
    G: tl.constexpr,
    E: tl.constexpr,
    F: tl.constexpr,
    EPS: tl.constexpr,
    CENTRE: tl.constexpr,  # added to the weights
    HAS_NORM: tl.constexpr,
    HAS_ENTRIES: tl.constexpr,
    HAS_TURNED: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    NORM_IN: tl.constexpr,
    TURN_IN: tl.constexpr,
    BLOCK_P: tl.constexpr,  # heads
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    i_p = tl.program_id(0)
    if i_p < query_programs:
        o_q = i_p * BLOCK_P + tl.arange(0, BLOCK_P)
        m_q = (o_q < num_rows * Q)[:, None]
        # [BP, 1]
        i_row, i_q = (o_q // Q).to(tl.int64)[:, None], (o_q % Q)[:, None]
        b_query, b_first, b_second = _heads(
            query_ptr + i_row * query_stride + i_q * query_head_stride,
            query_weight_ptr,
            cos_ptr + i_row * F,
            sin_ptr + i_row * F,
            m_q,
            E,
            F,
            EPS,
            CENTRE,
            HAS_NORM,
            INTERLEAVED,
            NORM_IN,
            TURN_IN,
            BLOCK_E,
            BLOCK_F,
        )
        p_out = out_ptr + o_q.to(tl.int64)[:, None] * E
        _store_turned(p_out, b_query, b_first, b_second, m_q, E, F, INTERLEAVED, BLOCK_E, BLOCK_F)
    else:
        o_g = (i_p - query_programs) * BLOCK_P + tl.arange(0, BLOCK_P)
        m_g = (o_g < num_rows * G)[:, None]
        # [BP, 1]
        i_l, i_g = (o_g // G).to(tl.int64)[:, None], (o_g % G).to(tl.int64)[:, None]
        b_key, b_left, b_right = _heads(
            key_ptr + i_l * key_stride + i_g * key_head_stride,
            key_weight_ptr,
            cos_ptr + i_l * F,
            sin_ptr + i_l * F,
            m_g,
            E,
            F,
            EPS,
            CENTRE,
            HAS_NORM,
            INTERLEAVED,
            NORM_IN,
            TURN_IN,
            BLOCK_E,
            BLOCK_F,
        )
        o_e = tl.arange(0, BLOCK_E)[None, :]
        p_value = value_ptr + i_l * value_stride + i_g * value_head_stride
        # [BP, BE]
        b_value = tl.load(p_value + o_e, m_g & (o_e < E), other=0.0)
        b_value = b_value.to(values_ptr.dtype.element_ty)
        # [BP, 1]; where a row has no slot nothing is stored, and its offsets are never used
        i_slot = tl.load(slots_ptr + i_l, m_g, other=-1).to(tl.int64)
        m_slot = i_slot >= 0
        p_keys = keys_ptr + i_slot * keys_stride + i_g * keys_head_stride
        p_values = values_ptr + i_slot * values_stride + i_g * values_head_stride
        tl.store(p_values + o_e, b_value, m_slot & (o_e < E))
        _store_turned(p_keys, b_key, b_left, b_right, m_slot, E, F, INTERLEAVED, BLOCK_E, BLOCK_F)
        if HAS_ENTRIES:
            i_entry = tl.load(entry_slots_ptr + i_l, m_g, other=-1).to(tl.int64)
            m_entry = (i_entry >= 0) & (o_e < E)
            p_keys = keys_ptr + i_entry * keys_stride + i_g * keys_head_stride
            p_values = values_ptr + i_entry * values_stride + i_g * values_head_stride
            tl.store(p_values + o_e, b_value, m_entry)
            tl.store(p_keys + o_e, b_key.to(keys_ptr.dtype.element_ty), m_entry)
        if HAS_TURNED:
            p_turned = turned_ptr + o_g.to(tl.int64)[:, None] * E
            _store_turned(
                p_turned, b_key, b_left, b_right, m_g, E, F, INTERLEAVED, BLOCK_E, BLOCK_F
            )


def attention_inputs(
    query_LQE: torch.Tensor,
    key_LGE: torch.Tensor,
    value_LGE: torch.Tensor,
    slots_L: torch.Tensor,
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
    *,
    norms: HeadNorms | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    interleaved: bool,
    entry_slots_L: torch.Tensor | None,
    turned_LGE: torch.Tensor | None,
) -> torch.Tensor:
    """As the reference; rows may be strided, but for their last axis."""
    assert keys_PGE.stride(2) == values_PGE.stride(2) == 1, "a slab's last axis is contiguous"
    (L, Q, E), G = query_LQE.shape, key_LGE.shape[1]
    query_LQE, key_LGE, value_LGE = map(_last_axis_contiguous, (query_LQE, key_LGE, value_LGE))
    F, turn_in = 0, tl.float32
    if cos is not None and sin is not None:
        F = cos.shape[1]
        cos, sin = cos.contiguous(), sin.contiguous()
        if torch.float64 in (cos.dtype, key_LGE.dtype):
            turn_in = tl.float64
    block_e = next_power_of_2(E)
    block_p = max(1, BLOCK // block_e)
    has_queries = norms is not None or F > 0
    # contiguous: those of a projection are slices of it
    out = (
        torch.empty((L, Q, E), dtype=key_LGE.dtype, device=key_LGE.device)
        if has_queries
        else query_LQE
    )
    query_programs = cdiv(L * Q, block_p) if has_queries else 0
    if L == 0:
        return out
    _inputs_kernel.run(
        query_LQE,
        key_LGE,
        value_LGE,
        key_LGE if norms is None else norms.query_E.contiguous(),
        key_LGE if norms is None else norms.key_E.contiguous(),
        key_LGE if cos is None else cos,
        key_LGE if sin is None else sin,
        slots_L.contiguous(),
        slots_L if entry_slots_L is None else entry_slots_L.contiguous(),
        out,
        key_LGE if turned_LGE is None else turned_LGE,
        keys_PGE,
        values_PGE,
        *query_LQE.stride()[:2],
        *key_LGE.stride()[:2],
        *value_LGE.stride()[:2],
        *keys_PGE.stride()[:2],
        *values_PGE.stride()[:2],
        L,
        query_programs,
        grid=(query_programs + cdiv(L * G, block_p),),
        warmup=False,
        Q=Q,
        G=G,
        E=E,
        F=F,
        EPS=0.0 if norms is None else norms.eps,
        CENTRE=0.0 if norms is None else float(norms.zero_centred),
        HAS_NORM=norms is not None,
        HAS_ENTRIES=entry_slots_L is not None,
        HAS_TURNED=turned_LGE is not None,
        INTERLEAVED=interleaved,
        NORM_IN=tl.float64 if key_LGE.dtype == torch.float64 else tl.float32,
        TURN_IN=turn_in,
        BLOCK_P=block_p,
        BLOCK_E=block_e,
        BLOCK_F=next_power_of_2(max(F, 1)),
        num_warps=WARPS,
    )
    return out


def _last_axis_contiguous(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
