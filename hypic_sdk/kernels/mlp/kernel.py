"""Gates of blocks in Triton: one pass over the rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2

_BLOCK = 1024
# numbers of a program of heads; no bits hang on it
HEADS_BLOCK = 2048
HEADS_WARPS = 4


@triton.jit
def swiglu_block(row_ptr, out_ptr, i_b, num_inner, BLOCK: tl.constexpr, COMPUTE: tl.constexpr):
    """Block `i_b` of the columns of one row: of [2 I], the gate's I first, to [I]."""
    o_i = i_b * BLOCK + tl.arange(0, BLOCK)
    m_i = o_i < num_inner
    b_gate = tl.load(row_ptr + o_i, m_i, other=0.0).to(COMPUTE)
    b_up = tl.load(row_ptr + num_inner + o_i, m_i, other=0.0)
    b_gate = (b_gate / (1.0 + tl.exp(-b_gate))).to(b_up.dtype).to(COMPUTE)
    b_inner = (b_gate * b_up.to(COMPUTE)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + o_i, b_inner, m_i)


@triton.jit
def _swiglu_kernel(
    gate_up_ptr,  # [L, 2 I]
    out_ptr,  # [L, I]
    row_stride,
    num_inner,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    i_l = tl.program_id(0).to(tl.int64)
    row_ptr, out_ptr = gate_up_ptr + i_l * row_stride, out_ptr + i_l * num_inner
    swiglu_block(row_ptr, out_ptr, tl.program_id(1), num_inner, BLOCK, COMPUTE)


@triton.jit(do_not_specialize=["total"])
def _gate_heads_kernel(
    x_ptr,
    gate_ptr,
    out_ptr,  # [L, Q, E]
    x_stride,
    x_head_stride,
    gate_stride,
    gate_head_stride,
    total,  # rows * heads
    Q: tl.constexpr,
    E: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_E: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    o_p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    o_e = tl.arange(0, BLOCK_E)[None, :]
    m_pe = (o_p < total)[:, None] & (o_e < E)
    i_l, i_q = (o_p // Q).to(tl.int64)[:, None], (o_p % Q)[:, None]
    b_x = tl.load(x_ptr + i_l * x_stride + i_q * x_head_stride + o_e, m_pe, other=0.0)
    o_gate = i_l * gate_stride + i_q * gate_head_stride + o_e
    b_gate = tl.load(gate_ptr + o_gate, m_pe, other=0.0)
    b_share = 1.0 / (1.0 + tl.exp(-b_gate.to(COMPUTE)))
    b_share = b_share.to(b_gate.dtype).to(COMPUTE)
    b_out = (b_x.to(COMPUTE) * b_share).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + o_p.to(tl.int64)[:, None] * E + o_e, b_out, m_pe)


def swiglu(gate_up_LI: torch.Tensor) -> torch.Tensor:
    """As the reference."""
    gate_up_LI = gate_up_LI if gate_up_LI.stride(1) == 1 else gate_up_LI.contiguous()
    num_rows, num_inner = gate_up_LI.shape[0], gate_up_LI.shape[1] // 2
    out = torch.empty((num_rows, num_inner), dtype=gate_up_LI.dtype, device=gate_up_LI.device)
    if not out.numel():
        return out
    block = min(_BLOCK, next_power_of_2(num_inner))
    _swiglu_kernel[(num_rows, cdiv(num_inner, block))](
        gate_up_LI,
        out,
        gate_up_LI.stride(0),
        num_inner,
        BLOCK=block,
        COMPUTE=_compute(gate_up_LI),
    )
    return out


def gate_heads(x_LQE: torch.Tensor, gate_LQE: torch.Tensor) -> torch.Tensor:
    """As the reference."""
    x_LQE, gate_LQE = (x if x.stride(2) == 1 else x.contiguous() for x in (x_LQE, gate_LQE))
    out = torch.empty(x_LQE.shape, dtype=x_LQE.dtype, device=x_LQE.device)
    if not out.numel():
        return out
    num_rows, num_heads, size = out.shape
    block_e = next_power_of_2(size)
    block_p = max(1, HEADS_BLOCK // block_e)
    _gate_heads_kernel[(cdiv(num_rows * num_heads, block_p),)](
        x_LQE,
        gate_LQE,
        out,
        *x_LQE.stride()[:2],
        *gate_LQE.stride()[:2],
        num_rows * num_heads,
        Q=num_heads,
        E=size,
        BLOCK_P=block_p,
        BLOCK_E=block_e,
        COMPUTE=_compute(out),
        num_warps=HEADS_WARPS,
    )
    return out


def _compute(x: torch.Tensor) -> tl.dtype:
    return tl.float64 if x.dtype == torch.float64 else tl.float32
