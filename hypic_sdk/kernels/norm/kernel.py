"""RMSNorm in Triton: a program takes a row, or several short ones of the same size.

How many follows from their length alone, so that a row is summed in one order whatever is beside
it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2

# numbers of a program: as many rows of a power of two as fit them, one at least
BLOCK = 2048
WARPS = 8


@triton.jit
def root_mean_square(b_x, D: tl.constexpr, EPS: tl.constexpr):
    """Sizes [BP] of rows [BP, BD] of D numbers, zeros behind; one order of sums for all ops."""
    return tl.sqrt(tl.sum(b_x * b_x, 1) / D + EPS)


@triton.jit(do_not_specialize=["total"])
def _norm_kernel(
    x_ptr,
    gate_ptr,  # read with GATE > 0, or with ADD, when it is what is added
    weight_ptr,
    sum_ptr,  # [rows * heads, D]; written with ADD only
    out_ptr,  # [rows * heads, D]
    x_stride,
    x_head_stride,
    gate_stride,
    gate_head_stride,
    total,  # rows * heads
    HEADS: tl.constexpr,
    BY_HEAD: tl.constexpr,  # each head has a weight of its own
    D: tl.constexpr,
    EPS: tl.constexpr,
    CENTRE: tl.constexpr,  # added to the weight
    GATE: tl.constexpr,  # 0 none, 1 silu, 2 sigmoid
    GATE_FIRST: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_P: tl.constexpr,  # rows of D numbers
    BLOCK_D: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    o_p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    o_d = tl.arange(0, BLOCK_D)[None, :]
    m_pd = (o_p < total)[:, None] & (o_d < D)
    # [BP, 1]
    i_row, i_head = (o_p // HEADS).to(tl.int64)[:, None], (o_p % HEADS)[:, None]
    o_out = o_p.to(tl.int64)[:, None] * D + o_d
    # [BP, BD]
    b_x = tl.load(x_ptr + i_row * x_stride + i_head * x_head_stride + o_d, m_pd, other=0.0)
    b_x = b_x.to(COMPUTE)
    o_gate = i_row * gate_stride + i_head * gate_head_stride + o_d
    if ADD:
        b_x += tl.load(gate_ptr + o_gate, m_pd, other=0.0).to(COMPUTE)
        b_sum = b_x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + o_out, b_sum, m_pd)
        b_x = b_sum.to(COMPUTE)
    # [BP, BD], or [1, BD] for all rows alike
    o_weight, m_weight = o_d, o_d < D
    if BY_HEAD:
        o_weight, m_weight = i_head * D + o_d, m_pd
    b_weight = tl.load(weight_ptr + o_weight, m_weight, other=0.0).to(COMPUTE) + CENTRE
    if GATE > 0:
        b_gate = tl.load(gate_ptr + o_gate, m_pd, other=0.0).to(COMPUTE)
        b_factor = 1.0 / (1.0 + tl.exp(-b_gate))
        if GATE == 1:
            b_factor *= b_gate
        if GATE_FIRST:
            b_x *= b_factor
    # [BP]
    b_size = root_mean_square(b_x, D, EPS)
    b_out = b_x / b_size[:, None] * b_weight
    if GATE > 0 and not GATE_FIRST:
        b_out *= b_factor
    tl.store(out_ptr + o_out, b_out.to(out_ptr.dtype.element_ty), m_pd)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, zero_centred: bool
) -> torch.Tensor:
    """As the reference."""
    out = x.new_empty(x.shape)
    if x.ndim not in (2, 3):
        x = x.reshape(-1, x.shape[-1])
    _launch(x, None, weight, eps, out, centre=float(zero_centred))
    return out


def add_rms_norm(
    x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, *, eps: float, zero_centred: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference."""
    total, out = x.new_empty(x.shape), x.new_empty(x.shape)
    if x.ndim != 2:
        x, added = x.reshape(-1, x.shape[-1]), added.reshape(-1, x.shape[-1])
    _launch(x, added, weight, eps, out, centre=float(zero_centred), total=total)
    return total, out


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
    out = x_LHV.new_empty(x_LHV.shape)
    if x_LHV.ndim != 3:
        shape = x_LHV.shape
        x_LHV, gate_LHV = (x.reshape(-1, *shape[-2:]) for x in (x_LHV, gate_LHV))
    gate = 1 if activation == "silu" else 2
    _launch(x_LHV, gate_LHV, weight_V, eps, out, gate=gate, gate_first=gate_first)
    return out


def _launch(
    x: torch.Tensor,  # [rows, D] or [rows, heads, D], as it lies: often a slice of a projection
    other: torch.Tensor | None,  # a gate or what is added, of x's shape
    weight: torch.Tensor,  # [D] or [heads, D]
    eps: float,
    out: torch.Tensor,  # contiguous, of as many numbers as x
    *,
    centre: float = 0.0,
    gate: int = 0,
    gate_first: bool = False,
    total: torch.Tensor | None = None,  # where the sum of both goes
) -> None:
    if not out.numel():
        return
    shape = x.shape
    size, heads = shape[-1], shape[1] if len(shape) == 3 else 1
    num_rows = shape[0] * heads
    x, x_strides = _strided(x)
    other, other_strides = (x, x_strides) if other is None else _strided(other)
    block_d = next_power_of_2(size)
    block_p = max(1, BLOCK // block_d)
    _norm_kernel.run(
        x,
        other,
        weight.contiguous(),
        out if total is None else total,
        out,
        x_strides[0],
        x_strides[-2],
        other_strides[0],
        other_strides[-2],
        num_rows,
        grid=(cdiv(num_rows, block_p),),
        warmup=False,
        HEADS=heads,
        BY_HEAD=weight.ndim == 2,
        D=size,
        EPS=eps,
        CENTRE=centre,
        GATE=gate,
        GATE_FIRST=gate_first,
        ADD=total is not None,
        BLOCK_P=block_p,
        BLOCK_D=block_d,
        COMPUTE=tl.float64 if x.dtype == torch.float64 else tl.float32,
        num_warps=WARPS,
    )


def _strided(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """x, or a copy whose last axis is contiguous, and its strides."""
    strides = x.stride()
    if strides[-1] == 1:
        return x, strides
    x = x.contiguous()
    return x, x.stride()
