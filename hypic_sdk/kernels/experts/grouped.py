"""The products of experts with rows of their own, in two launches of our own.

Rows lie in the order of their experts; where each expert's rows end is known on the device alone,
so a grid stands for whatever could be.  Two ways to share the work out:

- A program for every tile of rows that there could be.  An output's sum runs over the inputs in
  blocks of one width, and the tile is the same for any number of rows, so a row's bits do not
  depend on how many rows its expert has, or which.
- `split` programs for every expert and block of outputs, each looping over its share of the
  expert's tiles.  With few rows an expert the work is to read its weights: such a program reads two
  numbers and then nothing but weights and rows, and few programs find nothing to do.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2


class ExpertTile(NamedTuple):
    """How the products of all experts are cut."""

    rows: int
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int
    split: int = 0  # programs that share an expert's tiles; 0: a program a tile
    # weights stand left of the product: the unit's least number of left rows is 64, of right ones 8
    weights_left: bool = False
    described: bool = False  # weights are copied by the tensor memory unit, not by address


class Tiles(NamedTuple):
    """The tiles of both products."""

    gated: ExpertTile
    down: ExpertTile


def _reading(rows: int, outputs: int, inputs: int, stages: int, split: int = 1) -> ExpertTile:
    return ExpertTile(rows, outputs, inputs, 4, stages, split, weights_left=True, described=True)


# row-independent, and beyond the means below.  Of 256 experts, eight a row, with a width of 2048
# and 512 inner columns on an H200: for gate and up the best of fourteen at 5,000 rows and 10,000;
# for down the best of thirteen at 10,000 and, 1 % behind, the second at 5,000.  Together they take
# 0.80 and 0.84 of the time of the library's products
ALIKE = Tiles(
    ExpertTile(64, 256, 64, 8, 3, described=True), ExpertTile(128, 256, 64, 8, 4, described=True)
)
# products that wait for weights: several programs stand on a unit of an H200, so that one reads
# while another begins or ends.  By the mean number of rows of an expert, up to which they serve:
# the best of those measured for the same experts at means of 1, 4, 8 and 30, in 0.63 to 0.69 of the
# time of the library's products (0.74 at 30); the limits lie between
READING = (
    (2.0, Tiles(_reading(16, 64, 64, 5), _reading(16, 128, 128, 3))),
    (5.0, Tiles(_reading(32, 64, 64, 4), _reading(32, 64, 128, 3))),
    (12.0, Tiles(_reading(64, 64, 64, 3), _reading(32, 64, 128, 3))),
    (48.0, Tiles(_reading(64, 64, 64, 4, split=2), _reading(64, 64, 64, 3))),
)
# row-independent elsewhere: in less than half the shared memory, without the unit that copies tiles
ELSEWHERE = Tiles(ExpertTile(64, 64, 64, 4, 3), ExpertTile(64, 64, 64, 4, 3))


def fitting_tiles(
    num_choices: int, num_experts: int, device: torch.device, *, row_independent: bool
) -> Tiles | None:
    """The tiles for so many choices; None where the library's products serve.

    Row-independent, they are the same for any number of choices.
    """
    if not _holds_tiles(device):
        return ELSEWHERE if row_independent else None
    if row_independent:
        return ALIKE
    mean = num_choices / num_experts
    return next((tiles for limit, tiles in READING if mean <= limit), ALIKE)


@functools.cache
def _holds_tiles(device: torch.device) -> bool:
    """Hopper and the Blackwell of data centres; others have less shared memory, or no copying unit.

    They are left to the library, save where rows must be independent of one another.
    """
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] in (9, 10)


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
def _own_places(
    ends_ptr,
    i_t,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The expert of the program `i_t`, and where its places begin and end."""
    if SPLIT:
        expert = i_t // SPLIT
        begin = tl.load(ends_ptr + expert - 1, expert > 0, other=0) + i_t % SPLIT * ROWS
        return expert, begin, tl.load(ends_ptr + expert)
    else:
        expert, begin, end = _own_rows(ends_ptr, i_t, NUM_EXPERTS, BLOCK_E, ROWS)
        return expert, begin, tl.minimum(end, begin + ROWS)


@triton.jit
def _multiply(b_sum, b_x, b_w, WEIGHTS_LEFT: tl.constexpr):
    """[BT, BO] or, with the weights left, [BO, BT]: the sum so far plus this block's products."""
    if WEIGHTS_LEFT:
        return tl.dot(b_w, tl.trans(b_x), b_sum)
    else:
        return tl.dot(b_x, tl.trans(b_w), b_sum)


@triton.jit
def _gated_tile(
    x_ptr,
    rows_ptr,
    gate_up,
    out_ptr,
    expert,
    first,
    end,
    i_i,
    D,
    inner_size,
    x_stride,
    IS_EVEN: tl.constexpr,
    WEIGHTS_LEFT: tl.constexpr,
    DESCRIBED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """silu(gate) * up of the places from `first`, at the `i_i`-th block of inner columns."""
    o_t, o_d = first + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    m_t = o_t < end
    o_i = i_i * BLOCK_I + tl.arange(0, BLOCK_I)
    b_row = tl.load(rows_ptr + o_t, m_t, other=0)
    p_x = x_ptr + b_row[:, None] * x_stride + o_d[None, :]
    gate_row = expert * 2 * inner_size + i_i * BLOCK_I
    if not DESCRIBED:
        p_gate = gate_up + expert.to(tl.int64) * 2 * inner_size * D
        p_gate += (o_i % inner_size)[:, None] * D + o_d[None, :]
        p_up = p_gate + inner_size * D
    if WEIGHTS_LEFT:
        b_gate = tl.zeros([BLOCK_I, BLOCK_T], dtype=tl.float32)
        b_up = tl.zeros([BLOCK_I, BLOCK_T], dtype=tl.float32)
    else:
        b_gate = tl.zeros([BLOCK_T, BLOCK_I], dtype=tl.float32)
        b_up = tl.zeros([BLOCK_T, BLOCK_I], dtype=tl.float32)
    for start in range(0, D, BLOCK_D):
        m_d = (start + o_d < D)[None, :]
        b_x = tl.load(p_x + start, m_t[:, None] & (IS_EVEN | m_d), other=0.0)
        if DESCRIBED:
            b_gate_w = gate_up.load([gate_row, start])
            b_up_w = gate_up.load([gate_row + inner_size, start])
        elif IS_EVEN:
            b_gate_w = tl.load(p_gate + start)
            b_up_w = tl.load(p_up + start)
        else:
            b_gate_w = tl.load(p_gate + start, m_d, other=0.0)
            b_up_w = tl.load(p_up + start, m_d, other=0.0)
        b_gate = _multiply(b_gate, b_x, b_gate_w, WEIGHTS_LEFT)
        b_up = _multiply(b_up, b_x, b_up_w, WEIGHTS_LEFT)
    b_out = (b_gate / (1.0 + tl.exp(-b_gate)) * b_up).to(out_ptr.dtype.element_ty)
    if WEIGHTS_LEFT:
        b_out = tl.trans(b_out)
    p_out = out_ptr + o_t.to(tl.int64)[:, None] * inner_size + o_i[None, :]
    tl.store(p_out, b_out, m_t[:, None] & (o_i < inner_size)[None, :])


@triton.jit
def _gated_kernel(
    x_ptr,  # [L, D]
    rows_ptr,  # [T]: the row at each place
    gate_up,  # [NUM_EXPERTS, 2 I, D], or with DESCRIBED its descriptor, [NUM_EXPERTS * 2 I, D]
    ends_ptr,  # [NUM_EXPERTS] int32
    out_ptr,  # [T, I]
    D,
    inner_size,
    x_stride,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    SPLIT: tl.constexpr,
    STEP: tl.constexpr,  # from a program's tile to its next
    IS_EVEN: tl.constexpr,  # D is a multiple of BLOCK_D
    WEIGHTS_LEFT: tl.constexpr,
    DESCRIBED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    num_i = tl.cdiv(inner_size, BLOCK_I)
    i_p = tl.program_id(0)
    i_i, i_t = i_p % num_i, i_p // num_i
    expert, begin, end = _own_places(ends_ptr, i_t, NUM_EXPERTS, BLOCK_E, SPLIT, BLOCK_T)
    for first in range(begin, end, STEP):
        _gated_tile(
            x_ptr,
            rows_ptr,
            gate_up,
            out_ptr,
            expert,
            first,
            end,
            i_i,
            D,
            inner_size,
            x_stride,
            IS_EVEN,
            WEIGHTS_LEFT,
            DESCRIBED,
            BLOCK_T,
            BLOCK_I,
            BLOCK_D,
        )


@triton.jit
def _down_tile(
    inner_ptr,
    down,
    out_ptr,
    expert,
    first,
    end,
    i_d,
    D,
    inner_size,
    IS_EVEN: tl.constexpr,
    WEIGHTS_LEFT: tl.constexpr,
    DESCRIBED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """down(inner) of the places from `first`, at the `i_d`-th block of outputs."""
    o_t, o_i = first + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_I)
    o_d = i_d * BLOCK_D + tl.arange(0, BLOCK_D)
    m_t = o_t < end
    p_inner = inner_ptr + o_t.to(tl.int64)[:, None] * inner_size + o_i[None, :]
    down_row = expert * D + i_d * BLOCK_D
    if not DESCRIBED:
        p_w = down + expert.to(tl.int64) * D * inner_size
        p_w += (o_d % D)[:, None] * inner_size + o_i[None, :]
    if WEIGHTS_LEFT:
        b_sum = tl.zeros([BLOCK_D, BLOCK_T], dtype=tl.float32)
    else:
        b_sum = tl.zeros([BLOCK_T, BLOCK_D], dtype=tl.float32)
    for start in range(0, inner_size, BLOCK_I):
        m_i = (start + o_i < inner_size)[None, :]
        b_inner = tl.load(p_inner + start, m_t[:, None] & (IS_EVEN | m_i), other=0.0)
        if DESCRIBED:
            b_w = down.load([down_row, start])
        elif IS_EVEN:
            b_w = tl.load(p_w + start)
        else:
            b_w = tl.load(p_w + start, m_i, other=0.0)
        b_sum = _multiply(b_sum, b_inner, b_w, WEIGHTS_LEFT)
    b_out = b_sum.to(out_ptr.dtype.element_ty)
    if WEIGHTS_LEFT:
        b_out = tl.trans(b_out)
    p_out = out_ptr + o_t.to(tl.int64)[:, None] * D + o_d[None, :]
    tl.store(p_out, b_out, m_t[:, None] & (o_d < D)[None, :])


@triton.jit
def _down_kernel(
    inner_ptr,  # [T, I]
    down,  # [NUM_EXPERTS, D, I], or with DESCRIBED its descriptor, [NUM_EXPERTS * D, I]
    ends_ptr,  # [NUM_EXPERTS] int32
    out_ptr,  # [T, D]
    D,
    inner_size,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    SPLIT: tl.constexpr,
    STEP: tl.constexpr,  # from a program's tile to its next
    IS_EVEN: tl.constexpr,  # I is a multiple of BLOCK_I
    WEIGHTS_LEFT: tl.constexpr,
    DESCRIBED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    num_d = tl.cdiv(D, BLOCK_D)
    i_p = tl.program_id(0)
    i_d, i_t = i_p % num_d, i_p // num_d
    expert, begin, end = _own_places(ends_ptr, i_t, NUM_EXPERTS, BLOCK_E, SPLIT, BLOCK_T)
    for first in range(begin, end, STEP):
        _down_tile(
            inner_ptr,
            down,
            out_ptr,
            expert,
            first,
            end,
            i_d,
            D,
            inner_size,
            IS_EVEN,
            WEIGHTS_LEFT,
            DESCRIBED,
            BLOCK_T,
            BLOCK_D,
            BLOCK_I,
        )


def grouped_products(
    x_LD: torch.Tensor,
    rows: torch.Tensor,
    ends: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    tiles: Tiles,
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
    inner = gated_product(x_LD, rows, ends, gate_up, tiles.gated)
    return down_product(inner, ends, down, tiles.down)


def gated_product(
    x_LD: torch.Tensor,
    rows: torch.Tensor,
    ends: torch.Tensor,
    gate_up: torch.Tensor,
    tile: ExpertTile,
) -> torch.Tensor:
    """silu(gate(x)) * up(x) of every place: [T, I] in x's dtype."""
    num_experts, two_inner, width = gate_up.shape
    inner_size = two_inner // 2
    x = x_LD if x_LD.stride(1) == 1 else x_LD.contiguous()
    inner = x.new_empty((len(rows), inner_size))
    _gated_kernel[(_num_programs(len(rows), num_experts, tile, inner_size),)](
        x,
        rows,
        _weights(gate_up, tile),
        ends,
        inner,
        width,
        inner_size,
        x.stride(0),
        IS_EVEN=width % tile.inputs == 0,
        BLOCK_I=tile.outputs,
        BLOCK_D=tile.inputs,
        **_options(num_experts, tile),
    )
    return inner


def down_product(
    inner: torch.Tensor, ends: torch.Tensor, down: torch.Tensor, tile: ExpertTile
) -> torch.Tensor:
    """down(inner) of every place: [T, D] in inner's dtype."""
    num_experts, width, inner_size = down.shape
    out = inner.new_empty((len(inner), width))
    _down_kernel[(_num_programs(len(inner), num_experts, tile, width),)](
        inner,
        _weights(down, tile),
        ends,
        out,
        width,
        inner_size,
        IS_EVEN=inner_size % tile.inputs == 0,
        BLOCK_D=tile.outputs,
        BLOCK_I=tile.inputs,
        **_options(num_experts, tile),
    )
    return out


def _num_programs(count: int, num_experts: int, tile: ExpertTile, num_outputs: int) -> int:
    """Without a split, as many tiles as there can be: an expert fills all of its own but one."""
    tiles = min(count, count // tile.rows + num_experts)
    return (tile.split * num_experts or tiles) * cdiv(num_outputs, tile.outputs)


def _weights(weights: torch.Tensor, tile: ExpertTile) -> torch.Tensor | TensorDescriptor:
    """As the kernel reads them; all experts' outputs below one another in a descriptor."""
    weights = weights.contiguous()
    if not tile.described:
        return weights
    return TensorDescriptor.from_tensor(weights.flatten(0, 1), [tile.outputs, tile.inputs])


def _options(num_experts: int, tile: ExpertTile) -> dict[str, int | bool]:
    return {
        "NUM_EXPERTS": num_experts,
        "BLOCK_E": next_power_of_2(num_experts),
        "SPLIT": tile.split,
        "STEP": max(1, tile.split) * tile.rows,
        "WEIGHTS_LEFT": tile.weights_left,
        "DESCRIBED": tile.described,
        "BLOCK_T": tile.rows,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }
