"""The products of experts with rows of their own, every tile made in the same way.

Rows lie in the order of their experts.  A launch has a program for every tile of rows that there
could be; which expert's rows it gets is worked out on the device from where each expert's rows end.
An output's sum runs over the inputs in blocks of one width, so a row's bits do not depend on how
many rows its expert has, or which.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.linear.kernel import Tile

# the best of seven at 160 and 320 rows an expert of a large model on an H200
GATED = Tile(64, 128, 64, 4, 4)
DOWN = Tile(128, 256, 64, 8, 3)


@triton.jit
def _own_rows(ends_ptr, i_t, NUM_EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr, ROWS: tl.constexpr):
    """The expert of tile `i_t`, its first place and where its expert's places end.

    A tile beyond the last has no places.
    """
    o_e = tl.arange(0, BLOCK_E)
    m_e = o_e < NUM_EXPERTS
    b_end = tl.load(ends_ptr + o_e, m_e, other=0)
    b_start = tl.load(ends_ptr + o_e - 1, m_e & (o_e > 0), other=0)
    b_tiles = tl.where(m_e, (b_end - b_start + ROWS - 1) // ROWS, 0)
    b_last = tl.cumsum(b_tiles, 0)  # one behind the expert's last tile
    expert = tl.sum((m_e & (b_last <= i_t)).to(tl.int32), 0)
    is_own = o_e == expert
    first = tl.sum(tl.where(is_own, b_start + (i_t - (b_last - b_tiles)) * ROWS, 0), 0)
    end = tl.sum(tl.where(is_own, b_end, 0), 0)
    return expert, first, end


@triton.jit
def _gated_kernel(
    x_ptr,  # [L, D]
    rows_ptr,  # [T]: the row at each place
    gate_up_ptr,  # [NUM_EXPERTS, 2 I, D]
    ends_ptr,  # [NUM_EXPERTS] int32
    out_ptr,  # [T, I]
    D,
    inner_size,
    x_stride,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    IS_EVEN: tl.constexpr,  # D is a multiple of BLOCK_D
    BLOCK_T: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    num_i = tl.cdiv(inner_size, BLOCK_I)
    i_p = tl.program_id(0)
    i_i = i_p % num_i
    expert, first, end = _own_rows(ends_ptr, i_p // num_i, NUM_EXPERTS, BLOCK_E, BLOCK_T)
    if first < end:
        o_t, o_d = first + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
        m_t = o_t < end
        o_i = i_i * BLOCK_I + tl.arange(0, BLOCK_I)
        b_row = tl.load(rows_ptr + o_t, m_t, other=0)
        p_x = x_ptr + b_row[:, None] * x_stride + o_d[None, :]
        expert_ptr = gate_up_ptr + expert.to(tl.int64) * 2 * inner_size * D
        p_gate = expert_ptr + (o_i % inner_size)[:, None] * D + o_d[None, :]
        p_up = p_gate + inner_size * D
        # [BT, BI]
        b_gate = tl.zeros([BLOCK_T, BLOCK_I], dtype=tl.float32)
        b_up = tl.zeros([BLOCK_T, BLOCK_I], dtype=tl.float32)
        for start in range(0, D, BLOCK_D):
            if IS_EVEN:
                b_x = tl.load(p_x)
                b_gate_w = tl.load(p_gate)
                b_up_w = tl.load(p_up)
            else:
                m_d = (start + o_d < D)[None, :]
                b_x = tl.load(p_x, m_d, other=0.0)
                b_gate_w = tl.load(p_gate, m_d, other=0.0)
                b_up_w = tl.load(p_up, m_d, other=0.0)
            b_gate = tl.dot(b_x, tl.trans(b_gate_w), b_gate)
            b_up = tl.dot(b_x, tl.trans(b_up_w), b_up)
            p_x += BLOCK_D
            p_gate += BLOCK_D
            p_up += BLOCK_D
        b_out = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
        p_out = out_ptr + o_t.to(tl.int64)[:, None] * inner_size + o_i[None, :]
        m_out = m_t[:, None] & (o_i < inner_size)[None, :]
        tl.store(p_out, b_out.to(out_ptr.dtype.element_ty), m_out)


@triton.jit
def _down_kernel(
    inner_ptr,  # [T, I]
    down_ptr,  # [NUM_EXPERTS, D, I]
    ends_ptr,  # [NUM_EXPERTS] int32
    out_ptr,  # [T, D]
    D,
    inner_size,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    IS_EVEN: tl.constexpr,  # I is a multiple of BLOCK_I
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    num_d = tl.cdiv(D, BLOCK_D)
    i_p = tl.program_id(0)
    i_d = i_p % num_d
    expert, first, end = _own_rows(ends_ptr, i_p // num_d, NUM_EXPERTS, BLOCK_E, BLOCK_T)
    if first < end:
        o_t, o_i = first + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_I)
        m_t = o_t < end
        o_d = i_d * BLOCK_D + tl.arange(0, BLOCK_D)
        # a place beyond the expert's reads its last and is not written
        p_inner = inner_ptr + tl.minimum(o_t, end - 1).to(tl.int64)[:, None] * inner_size
        p_inner += o_i[None, :]
        p_w = down_ptr + expert.to(tl.int64) * D * inner_size
        p_w += (o_d % D)[:, None] * inner_size + o_i[None, :]
        # [BT, BD]
        b_out = tl.zeros([BLOCK_T, BLOCK_D], dtype=tl.float32)
        for start in range(0, inner_size, BLOCK_I):
            if IS_EVEN:
                b_inner = tl.load(p_inner)
                b_w = tl.load(p_w)
            else:
                m_i = (start + o_i < inner_size)[None, :]
                b_inner = tl.load(p_inner, m_i, other=0.0)
                b_w = tl.load(p_w, m_i, other=0.0)
            b_out = tl.dot(b_inner, tl.trans(b_w), b_out)
            p_inner += BLOCK_I
            p_w += BLOCK_I
        p_out = out_ptr + o_t.to(tl.int64)[:, None] * D + o_d[None, :]
        m_out = m_t[:, None] & (o_d < D)[None, :]
        tl.store(p_out, b_out.to(out_ptr.dtype.element_ty), m_out)


def grouped_products(
    x_LD: torch.Tensor,
    rows: torch.Tensor,
    ends: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gated: Tile = GATED,
    downward: Tile = DOWN,
) -> torch.Tensor:
    """down(silu(gate(x)) * up(x)) of every place, with sums in fp32.

    Args:
        rows: [T] int64: the row of x at each place; places lie in the order of experts.
        ends: [num_experts] int32: one behind the last place of each expert, rising.
        gate_up: [num_experts, 2 I, D], the gate's I rows first.
        down: [num_experts, D, I].
    Returns:
        [T, D] in x's dtype; between the two products [T, I] is rounded to that dtype.
    """
    count, (num_experts, two_inner, width) = len(rows), gate_up.shape
    inner_size = two_inner // 2
    x = x_LD if x_LD.stride(1) == 1 else x_LD.contiguous()
    inner = x.new_empty((count, inner_size))
    sizes = {"NUM_EXPERTS": num_experts, "BLOCK_E": triton.next_power_of_2(num_experts)}
    _gated_kernel[(_num_tiles(count, num_experts, gated, inner_size),)](
        x,
        rows,
        gate_up.contiguous(),
        ends,
        inner,
        width,
        inner_size,
        x.stride(0),
        IS_EVEN=width % gated.inputs == 0,
        BLOCK_T=gated.rows,
        BLOCK_I=gated.outputs,
        BLOCK_D=gated.inputs,
        num_warps=gated.num_warps,
        num_stages=gated.num_stages,
        **sizes,
    )
    out = x.new_empty((count, width))
    _down_kernel[(_num_tiles(count, num_experts, downward, width),)](
        inner,
        down.contiguous(),
        ends,
        out,
        width,
        inner_size,
        IS_EVEN=inner_size % downward.inputs == 0,
        BLOCK_T=downward.rows,
        BLOCK_D=downward.outputs,
        BLOCK_I=downward.inputs,
        num_warps=downward.num_warps,
        num_stages=downward.num_stages,
        **sizes,
    )
    return out


def _num_tiles(count: int, num_experts: int, tile: Tile, num_outputs: int) -> int:
    """Programs for as many tiles as there can be: an expert fills all of its own but the last."""
    tiles = min(count, count // tile.rows + num_experts)
    return tiles * triton.cdiv(num_outputs, tile.outputs)
