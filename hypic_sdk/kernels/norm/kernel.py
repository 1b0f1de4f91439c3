"""RMSNorm in Triton: one program a row, so that a row's bits are its own."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _norm_kernel(
    x_ptr,
    gate_ptr,  # read with GATE > 0, or with ADD, when it is what is added
    weight_ptr,
    total_ptr,  # [rows * heads, D]; written with ADD only
    out_ptr,  # [rows * heads, D]
    x_stride,
    x_head_stride,
    gate_stride,
    gate_head_stride,
    heads,
    weight_head_stride,  # 0: one weight for all heads
    D: tl.constexpr,
    EPS: tl.constexpr,
    CENTRE: tl.constexpr,  # added to the weight
    GATE: tl.constexpr,  # 0 none, 1 silu, 2 sigmoid
    GATE_FIRST: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_D: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    i_out = tl.program_id(0).to(tl.int64)
    i_row, i_head = i_out // heads, i_out % heads
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    # [BD]
    b_x = tl.load(x_ptr + i_row * x_stride + i_head * x_head_stride + o_d, m_d, other=0.0)
    b_x = b_x.to(COMPUTE)
    if ADD:
        o_added = i_row * gate_stride + i_head * gate_head_stride + o_d
        b_x += tl.load(gate_ptr + o_added, m_d, other=0.0).to(COMPUTE)
        b_total = b_x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + i_out * D + o_d, b_total, m_d)
        b_x = b_total.to(COMPUTE)
    b_weight = tl.load(weight_ptr + i_head * weight_head_stride + o_d, m_d, other=0.0)
    b_weight = b_weight.to(COMPUTE) + CENTRE
    if GATE > 0:
        o_gate = i_row * gate_stride + i_head * gate_head_stride + o_d
        b_gate = tl.load(gate_ptr + o_gate, m_d, other=0.0).to(COMPUTE)
        b_factor = 1.0 / (1.0 + tl.exp(-b_gate))
        if GATE == 1:
            b_factor *= b_gate
        if GATE_FIRST:
            b_x *= b_factor
    b_out = b_x / tl.sqrt(tl.sum(b_x * b_x, 0) / D + EPS) * b_weight
    if GATE > 0 and not GATE_FIRST:
        b_out *= b_factor
    tl.store(out_ptr + i_out * D + o_d, b_out.to(out_ptr.dtype.element_ty), m_d)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, zero_centred: bool
) -> torch.Tensor:
    """As the reference."""
    shape = x.shape
    # rows and heads, as they lie: a norm of heads often reads a slice of a projection
    x = x[:, None] if x.ndim == 2 else x if x.ndim == 3 else x.reshape(-1, 1, shape[-1])
    return _launch(x, None, weight, eps, centre=float(zero_centred), gate=0).view(shape)


def add_rms_norm(
    x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, *, eps: float, zero_centred: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference."""
    shape = x.shape
    x, added = (t.reshape(-1, 1, shape[-1]) for t in (x, added))
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out = _launch(x, added, weight, eps, centre=float(zero_centred), gate=0, total=total)
    return total.view(shape), out.view(shape)


def gated_rms_norm(
    x_LHV: torch.Tensor,
    gate_LHV: torch.Tensor,
    weight_V: torch.Tensor,
    *,
    eps: float,
    activation: str,
    gate_first: bool,
) -> torch.Tensor:
    """As the reference."""
    if x_LHV.ndim != 3:
        shape = x_LHV.shape
        x_LHV, gate_LHV = (x.reshape(-1, *shape[-2:]) for x in (x_LHV, gate_LHV))
    gate = 1 if activation == "silu" else 2
    return _launch(x_LHV, gate_LHV, weight_V, eps, centre=0.0, gate=gate, gate_first=gate_first)


def _launch(
    x: torch.Tensor,  # [rows, heads, D]
    gate_LHV: torch.Tensor | None,
    weight: torch.Tensor,  # [D] or [heads, D]
    eps: float,
    *,
    centre: float,
    gate: int,
    gate_first: bool = False,
    total: torch.Tensor | None = None,  # where the sum of both goes
) -> torch.Tensor:
    rows, heads, size = x.shape
    x = x if x.stride(2) == 1 else x.contiguous()
    other = x if gate_LHV is None else gate_LHV
    other = other if other.stride(2) == 1 else other.contiguous()
    weight = weight.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    block = triton.next_power_of_2(size)
    _norm_kernel[(rows * heads,)](
        x,
        other,
        weight,
        out if total is None else total,
        out,
        *x.stride()[:2],
        *other.stride()[:2],
        heads,
        size if weight.ndim == 2 else 0,
        D=size,
        EPS=eps,
        CENTRE=centre,
        GATE=gate,
        GATE_FIRST=gate_first,
        ADD=total is not None,
        BLOCK_D=block,
        COMPUTE=tl.float64 if x.dtype == torch.float64 else tl.float32,
        num_warps=min(8, max(1, block // 256)),
    )
    return out
