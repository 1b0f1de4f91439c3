"""Gates of feed-forward blocks in Triton: one pass over the rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024


@triton.jit
def _swiglu_kernel(
    gate_up_ptr,  # [L, 2 I], the gate's I columns first
    out_ptr,  # [L, I]
    row_stride,
    num_inner,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    i_l = tl.program_id(0).to(tl.int64)
    o_i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_i = o_i < num_inner
    row_ptr = gate_up_ptr + i_l * row_stride
    b_gate = tl.load(row_ptr + o_i, m_i, other=0.0).to(COMPUTE)
    b_up = tl.load(row_ptr + num_inner + o_i, m_i, other=0.0)
    b_gate = (b_gate / (1.0 + tl.exp(-b_gate))).to(b_up.dtype).to(COMPUTE)
    b_inner = (b_gate * b_up.to(COMPUTE)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + i_l * num_inner + o_i, b_inner, m_i)


@triton.jit
def _add_gated_kernel(
    routed_ptr,
    shared_ptr,
    gate_ptr,  # [L]
    out_ptr,  # [L, D]
    D,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    i_l = tl.program_id(0).to(tl.int64)
    o_d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_d = o_d < D
    gate = tl.load(gate_ptr + i_l)
    share = (1.0 / (1.0 + tl.exp(-gate.to(COMPUTE)))).to(gate.dtype).to(COMPUTE)
    b_routed = tl.load(routed_ptr + i_l * D + o_d, m_d, other=0.0)
    b_shared = tl.load(shared_ptr + i_l * D + o_d, m_d, other=0.0).to(COMPUTE)
    b_shared = (b_shared * share).to(b_routed.dtype).to(COMPUTE)
    b_out = (b_routed.to(COMPUTE) + b_shared).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + i_l * D + o_d, b_out, m_d)


def swiglu(gate_up_LI: torch.Tensor) -> torch.Tensor:
    """As the reference."""
    gate_up_LI = gate_up_LI if gate_up_LI.stride(1) == 1 else gate_up_LI.contiguous()
    num_rows, num_inner = gate_up_LI.shape[0], gate_up_LI.shape[1] // 2
    out = torch.empty((num_rows, num_inner), dtype=gate_up_LI.dtype, device=gate_up_LI.device)
    if not out.numel():
        return out
    block = min(_BLOCK, triton.next_power_of_2(num_inner))
    _swiglu_kernel[(num_rows, triton.cdiv(num_inner, block))](
        gate_up_LI,
        out,
        gate_up_LI.stride(0),
        num_inner,
        BLOCK=block,
        COMPUTE=_compute(gate_up_LI),
    )
    return out


def add_gated(
    routed_LD: torch.Tensor, shared_LD: torch.Tensor, gate_L1: torch.Tensor
) -> torch.Tensor:
    """As the reference."""
    out = torch.empty(routed_LD.shape, dtype=routed_LD.dtype, device=routed_LD.device)
    if not out.numel():
        return out
    num_rows, width = out.shape
    block = min(_BLOCK, triton.next_power_of_2(width))
    _add_gated_kernel[(num_rows, triton.cdiv(width, block))](
        routed_LD.contiguous(),
        shared_LD.contiguous(),
        gate_L1.contiguous(),
        out,
        width,
        BLOCK=block,
        COMPUTE=_compute(out),
    )
    return out


def _compute(x: torch.Tensor) -> tl.dtype:
    return tl.float64 if x.dtype == torch.float64 else tl.float32
