"""Row-independent products on a GPU: every tile of every product is made in the same way.

A matrix library picks its tile by the number of rows, and with the tile the order of a sum.  Here
an output's sum runs over the inputs in blocks of one width, whatever the number of rows, so a row's
bits are its own.  One launch a product.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Tile(NamedTuple):
    """How a product of rows with a weight is cut; a function of the weight's shape alone."""

    rows: int
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int


# the best of seven at 5,120 rows of a large model on an H200
_WIDE = Tile(128, 128, 64, 8, 3)
_NARROW = Tile(64, 64, 64, 4, 4)
_WIDE_FROM = 512  # outputs
_GROUP = 8  # tiles of rows that follow each other under the same outputs, for the cache's sake


@triton.jit
def _linear_kernel(
    x_ptr,  # [L, D]
    weight_ptr,  # [N, D]
    bias_ptr,  # [N], read with HAS_BIAS only
    out_ptr,  # [L, N]
    L,
    N,
    D,
    x_stride,
    weight_stride,
    HAS_BIAS: tl.constexpr,
    IS_EVEN: tl.constexpr,  # D is a multiple of BLOCK_D
    BLOCK_L: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
):
    num_l, num_n = tl.cdiv(L, BLOCK_L), tl.cdiv(N, BLOCK_N)
    i_p = tl.program_id(0)
    group = i_p // (GROUP * num_n)
    first_l = group * GROUP
    size = tl.minimum(num_l - first_l, GROUP)
    within = i_p % (GROUP * num_n)
    i_l = first_l + within % size
    i_n = within // size
    o_l = i_l.to(tl.int64) * BLOCK_L + tl.arange(0, BLOCK_L)
    o_n = i_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_d = tl.arange(0, BLOCK_D)
    # a row or output beyond the end reads another's and is not written
    p_x = x_ptr + (o_l % L)[:, None] * x_stride + o_d[None, :]
    p_w = weight_ptr + (o_n % N)[:, None] * weight_stride + o_d[None, :]
    # [BL, BN]
    b_out = tl.zeros([BLOCK_L, BLOCK_N], dtype=tl.float32)
    for start in range(0, D, BLOCK_D):
        if IS_EVEN:
            b_x = tl.load(p_x)
            b_w = tl.load(p_w)
        else:
            m_d = (start + o_d < D)[None, :]
            b_x = tl.load(p_x, m_d, other=0.0)
            b_w = tl.load(p_w, m_d, other=0.0)
        b_out = tl.dot(b_x, tl.trans(b_w), b_out)
        p_x += BLOCK_D
        p_w += BLOCK_D
    if HAS_BIAS:
        b_out += tl.load(bias_ptr + o_n, o_n < N, other=0.0).to(tl.float32)[None, :]
    p_out = out_ptr + o_l[:, None] * N + o_n[None, :]
    m_out = (o_l < L)[:, None] & (o_n < N)[None, :]
    tl.store(p_out, b_out.to(out_ptr.dtype.element_ty), m_out)


def tile_of(num_outputs: int) -> Tile:
    """The tile of a weight with this many outputs."""
    return _NARROW if num_outputs < _WIDE_FROM else _WIDE


def row_independent_linear(
    x_LD: torch.Tensor,
    weight_ND: torch.Tensor,
    bias_N: torch.Tensor | None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """As the reference, for 16-bit rows; sums, and the bias with them, are in fp32."""
    x = x_LD if x_LD.stride(1) == 1 else x_LD.contiguous()
    weight = weight_ND if weight_ND.stride(1) == 1 else weight_ND.contiguous()
    (num_rows, width), num_outputs = x.shape, weight.shape[0]
    out_LN = x.new_empty((num_rows, num_outputs))
    if not num_rows or not num_outputs:
        return out_LN
    tile = tile or tile_of(num_outputs)
    programs = triton.cdiv(num_rows, tile.rows) * triton.cdiv(num_outputs, tile.outputs)
    _linear_kernel[(programs,)](
        x,
        weight,
        out_LN if bias_N is None else bias_N,
        out_LN,
        num_rows,
        num_outputs,
        width,
        x.stride(0),
        weight.stride(0),
        HAS_BIAS=bias_N is not None,
        IS_EVEN=width % tile.inputs == 0,
        BLOCK_L=tile.rows,
        BLOCK_N=tile.outputs,
        BLOCK_D=tile.inputs,
        GROUP=_GROUP,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out_LN
