"""Row-independent products on a GPU: every tile of every product is made in the same way.

A matrix library picks its tile by the number of rows, and with the tile the order of a sum.  Here
an output's sum runs over the inputs in blocks of one width, whatever the number of rows, so a row's
bits are its own.  One launch a product.

Two kernels.  The *described* one has the device's copy unit fetch whole tiles by a description of
the tensor, and its programs go from tile to tile, so that one is written while the next is fetched;
it wants rows at multiples of 16 bytes.  The *addressed* one computes an address for every element
and takes whatever there is.  Which one a weight gets follows from the weight and the device alone.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from hypic_sdk.kernels.blocks import cdiv


class Tile(NamedTuple):
    """How a product of rows with a weight is cut; a function of the weight's shape alone."""

    rows: int
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int
    parts: int = 1  # of the outputs, written one after the other (described tiles only)


# addressed: the best of seven at 5,120 rows of a large model on an H200
_WIDE = Tile(128, 128, 64, 8, 3)
_NARROW = Tile(64, 64, 64, 4, 4)
_WIDE_FROM = 512  # outputs
# described: the best of ten at 1,264 to 10,000 rows of a large model on an H200; with fewer outputs
# than that a wide tile leaves most of the device idle when there are few rows
_DESCRIBED_WIDE = Tile(128, 256, 64, 8, 4, parts=2)
_DESCRIBED = Tile(128, 128, 64, 4, 4)
_DESCRIBED_NARROW = Tile(64, 64, 64, 4, 4)
_DESCRIBED_WIDE_FROM = 4096  # outputs
_GROUP = 8  # tiles of rows that follow each other under the same outputs, for the cache's sake
_ALIGNED_BYTES = 16  # of a described tensor's address and rows
_LEAST_SHARED_BYTES = 224 << 10  # of a program, for the described tiles
_PROGRAMS_IN_TRIALS = 5  # where there is no GPU to ask: few, so that each takes several tiles


@triton.jit
def _tile_at(i_p, num_l, num_n, GROUP: tl.constexpr):
    """Which rows and which outputs the i-th tile has."""
    group = i_p // (GROUP * num_n)
    first_l = group * GROUP
    size = tl.minimum(num_l - first_l, GROUP)
    within = i_p % (GROUP * num_n)
    return first_l + within % size, within // size


@triton.jit
def _store_part(
    out_desc,
    out_ptr,
    bias_ptr,
    b_out,
    first_l,
    first_n,
    L,
    N,
    HAS_BIAS: tl.constexpr,
    DESCRIBED_OUT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Some outputs [ROWS, OUTPUTS] of a tile, in fp32, to where they belong."""
    o_n = first_n + tl.arange(0, OUTPUTS)
    if HAS_BIAS:
        b_out += tl.load(bias_ptr + o_n, o_n < N, other=0.0).to(tl.float32)[None, :]
    b_out = b_out.to(out_ptr.dtype.element_ty)
    if DESCRIBED_OUT:
        out_desc.store([first_l, first_n], b_out)
    else:
        o_l = first_l + tl.arange(0, ROWS)
        p_out = out_ptr + o_l.to(tl.int64)[:, None] * N + o_n[None, :]
        tl.store(p_out, b_out, (o_l < L)[:, None] & (o_n < N)[None, :])


# a row count is another one each time: no kernel of its own for those that 16 divides
@triton.jit(do_not_specialize=["L", "N"])
def _described_kernel(
    x_desc,  # [L, D] in blocks [BL, BD]
    weight_desc,  # [N, D] in blocks [BN, BD]
    out_desc,  # [L, N] in blocks [BL, BN / PARTS], with DESCRIBED_OUT only
    out_ptr,  # [L, N]
    bias_ptr,  # [N], read with HAS_BIAS only
    L,
    N,
    D,
    HAS_BIAS: tl.constexpr,
    DESCRIBED_OUT: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
):
    num_l, num_n = tl.cdiv(L, BLOCK_L), tl.cdiv(N, BLOCK_N)
    num_programs = tl.num_programs(0)
    OUTPUTS: tl.constexpr = BLOCK_N // PARTS
    # the tile that is written has a counter of its own: one tile's inputs are fetched while the one
    # before is written, and a shared counter would tie both together
    i_written = tl.program_id(0) - num_programs
    for i_p in tl.range(tl.program_id(0), num_l * num_n, num_programs, flatten=True):
        i_l, i_n = _tile_at(i_p, num_l, num_n, GROUP)
        # [BL, BN]
        b_out = tl.zeros([BLOCK_L, BLOCK_N], dtype=tl.float32)
        for i_d in range(tl.cdiv(D, BLOCK_D)):
            # zeros beyond the ends
            b_x = x_desc.load([i_l * BLOCK_L, i_d * BLOCK_D])
            b_w = weight_desc.load([i_n * BLOCK_N, i_d * BLOCK_D])
            b_out = tl.dot(b_x, b_w.T, b_out)
        i_written += num_programs
        i_l, i_n = _tile_at(i_written, num_l, num_n, GROUP)
        first_l, first_n = i_l * BLOCK_L, i_n * BLOCK_N
        if PARTS == 2:
            b_halves = tl.permute(tl.reshape(b_out, (BLOCK_L, 2, OUTPUTS)), (0, 2, 1))
            b_first, b_second = tl.split(b_halves)
            _store_part(
                out_desc, out_ptr, bias_ptr, b_first, first_l, first_n, L, N,
                HAS_BIAS, DESCRIBED_OUT, BLOCK_L, OUTPUTS,
            )  # fmt: skip
            _store_part(
                out_desc, out_ptr, bias_ptr, b_second, first_l, first_n + OUTPUTS, L, N,
                HAS_BIAS, DESCRIBED_OUT, BLOCK_L, OUTPUTS,
            )  # fmt: skip
        else:
            _store_part(
                out_desc, out_ptr, bias_ptr, b_out, first_l, first_n, L, N,
                HAS_BIAS, DESCRIBED_OUT, BLOCK_L, OUTPUTS,
            )  # fmt: skip


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
    i_l, i_n = _tile_at(tl.program_id(0), num_l, num_n, GROUP)
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
    """The tile of a weight with this many outputs, where addresses are computed."""
    return _NARROW if num_outputs < _WIDE_FROM else _WIDE


def described_tile_of(num_outputs: int) -> Tile:
    """The tile of a weight with this many outputs, where whole tiles are fetched."""
    if num_outputs >= _DESCRIBED_WIDE_FROM:
        return _DESCRIBED_WIDE
    return _DESCRIBED_NARROW if num_outputs < _WIDE_FROM else _DESCRIBED


def row_independent_linear(
    x_LD: torch.Tensor, weight_ND: torch.Tensor, bias_N: torch.Tensor | None
) -> torch.Tensor:
    """As the reference, for 16-bit rows; sums, and the bias with them, are in fp32."""
    weight = weight_ND if weight_ND.stride(1) == 1 else weight_ND.contiguous()
    if _fetches_tiles(weight.device) and can_be_described(weight):
        return described_linear(x_LD, weight, bias_N)
    return addressed_linear(x_LD, weight, bias_N)


def can_be_described(rows: torch.Tensor) -> bool:
    """Whether a matrix, and any fresh one of its width, lies as a description wants it."""
    size, (row_stride, stride) = rows.element_size(), rows.stride()
    return (
        stride == 1
        and rows.data_ptr() % _ALIGNED_BYTES == 0
        and row_stride * size % _ALIGNED_BYTES == 0
        and rows.shape[1] * size % _ALIGNED_BYTES == 0
    )


@functools.cache
def _fetches_tiles(device: torch.device) -> bool:
    """Whether a device has the copy unit, and memory for the described tiles."""
    if device.type != "cuda":
        return False
    properties = torch.cuda.get_device_properties(device)
    return properties.major >= 9 and properties.shared_memory_per_block_optin >= _LEAST_SHARED_BYTES


@functools.cache
def _num_programs(device: torch.device) -> int:
    if device.type != "cuda":
        return _PROGRAMS_IN_TRIALS
    return torch.cuda.get_device_properties(device).multi_processor_count


def described_linear(
    x_LD: torch.Tensor,
    weight: torch.Tensor,
    bias_N: torch.Tensor | None,
    tile: Tile | None = None,
    num_programs: int | None = None,
) -> torch.Tensor:
    """By fetching whole tiles, for a weight that can be described."""
    # no other way for rows that lie in another way: their bits would be others
    x = x_LD if can_be_described(x_LD) else x_LD.clone(memory_format=torch.contiguous_format)
    (num_rows, width), num_outputs = x.shape, weight.shape[0]
    out_LN = x.new_empty((num_rows, num_outputs))
    if not num_rows or not num_outputs:
        return out_LN
    tile = tile or described_tile_of(num_outputs)
    assert tile.parts in (1, 2), f"a tile is written in one part or two, not {tile.parts}"
    x_desc = _description(x, tile.rows, tile.inputs)
    # its address is a fresh one
    is_described = num_outputs * out_LN.element_size() % _ALIGNED_BYTES == 0
    tiles = cdiv(num_rows, tile.rows) * cdiv(num_outputs, tile.outputs)
    _described_kernel.run(
        x_desc,
        _description(weight, tile.outputs, tile.inputs),
        _description(out_LN, tile.rows, tile.outputs // tile.parts) if is_described else x_desc,
        out_LN,
        out_LN if bias_N is None else bias_N,
        num_rows,
        num_outputs,
        width,
        grid=(min(tiles, num_programs or _num_programs(x.device)),),
        warmup=False,
        HAS_BIAS=bias_N is not None,
        DESCRIBED_OUT=is_described,
        BLOCK_L=tile.rows,
        BLOCK_N=tile.outputs,
        BLOCK_D=tile.inputs,
        PARTS=tile.parts,
        GROUP=_GROUP,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out_LN


def _description(matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A matrix that can be described, in blocks [rows, columns]."""
    found = object.__new__(TensorDescriptor)
    fields = _fields(matrix.dtype, matrix.shape, matrix.stride(), rows, columns)
    found.__dict__.update(fields, base=matrix)
    return found


@functools.lru_cache(maxsize=512)
def _fields(
    dtype: torch.dtype, shape: tuple[int, int], strides: tuple[int, int], rows: int, columns: int
) -> dict[str, Any]:
    """Of a description, but for its base: to check them for each launch costs as much as one."""
    base = torch.empty(1, dtype=dtype, device="cpu")
    fields = vars(TensorDescriptor(base, shape, strides, [rows, columns]))
    return {name: field for name, field in fields.items() if name != "base"}


def addressed_linear(
    x_LD: torch.Tensor,
    weight: torch.Tensor,
    bias_N: torch.Tensor | None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """By computing every address, for a weight whose last axis is contiguous."""
    x = x_LD if x_LD.stride(1) == 1 else x_LD.contiguous()
    (num_rows, width), num_outputs = x.shape, weight.shape[0]
    out_LN = x.new_empty((num_rows, num_outputs))
    if not num_rows or not num_outputs:
        return out_LN
    tile = tile or tile_of(num_outputs)
    programs = cdiv(num_rows, tile.rows) * cdiv(num_outputs, tile.outputs)
    _linear_kernel.run(
        x,
        weight,
        out_LN if bias_N is None else bias_N,
        out_LN,
        num_rows,
        num_outputs,
        width,
        x.stride(0),
        weight.stride(0),
        grid=(programs,),
        warmup=False,
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
