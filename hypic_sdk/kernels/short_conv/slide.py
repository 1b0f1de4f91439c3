"""The conv of many rows in Triton: a program has some rows of some channels, and reads each once.

Where every tap of a program's rows is the input just as many rows before it, as it is inside of a
long stretch, all inputs are on their way before the first output is stored, and taps are taken from
registers.  Else rows go one by one, their inputs wherever they lie.  Sums are taken in the order of
`kernel`'s.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2
from hypic_sdk.kernels.short_conv.table import ConvTable


class Stretch(NamedTuple):
    """What a program computes, and by how many warps; no bits hang on it."""

    rows: int
    channels: int
    warps: int


# (rows of a call up to which, stretch)
STRETCHES = ((1 << 62, Stretch(16, 256, 2)),)
_KEPT_ROWS = 4  # of a program that gathers what is kept


@triton.jit
def _channels(o_c, C, is_there):
    """Which of a row's channels are there: none, if the row is not."""
    return o_c < tl.where(is_there, C, 0)


@triton.jit
def _input_row(
    place,
    inputs_ptr,
    tails_ptr,
    works_ptr,
    inputs_stride,
    tails_stride,
    works_stride,
    num_tail_rows,
    o_c,
    C,
    W: tl.constexpr,
    HAS_WORKS: tl.constexpr,
):
    """The input at a place, [BC]: zeros for none."""
    TAIL: tl.constexpr = W - 1
    row = -2 - place
    m_input = _channels(o_c, C, place >= 0)
    b_input = tl.load(inputs_ptr + place * inputs_stride + o_c, m_input, other=0.0)
    in_tails = row >= 0
    if HAS_WORKS:
        work_row = row - num_tail_rows
        in_tails = in_tails & (work_row < 0)
        o_work = (work_row // TAIL) * works_stride + (work_row % TAIL) * C
        m_work = _channels(o_c, C, work_row >= 0)
        b_input += tl.load(works_ptr + o_work + o_c, m_work, other=0.0)
    o_tail = (row // TAIL) * tails_stride + (row % TAIL) * C
    m_tail = _channels(o_c, C, in_tails)
    return b_input + tl.load(tails_ptr + o_tail + o_c, m_tail, other=0.0)


@triton.jit
def _finished(b_out, bias_ptr, o_c, C, HAS_BIAS: tl.constexpr, SILU: tl.constexpr):
    """A sum with its bias, activated."""
    if HAS_BIAS:
        b_out += tl.load(bias_ptr + o_c, o_c < C, other=0.0).to(b_out.dtype)
    if SILU:
        b_out = b_out / (1.0 + tl.exp(-b_out))
    return b_out


@triton.jit
def _slide(
    i_first,
    inputs_ptr,
    taps,
    bias_ptr,
    out_ptr,
    inputs_stride,
    o_c,
    C,
    W: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Rows whose inputs are those just before them, and they themselves."""
    m_c = o_c < C
    inputs = ()
    for i_r in tl.static_range(ROWS + W - 1):
        row = i_first + (i_r - (W - 1))
        inputs = inputs + (tl.load(inputs_ptr + row * inputs_stride + o_c, m_c, other=0.0),)  # noqa: RUF005
    for i_r in tl.static_range(ROWS):
        row = i_first + i_r
        b_out = tl.zeros([BLOCK_C], dtype=COMPUTE)
        for i_w in tl.static_range(W):
            b_out += inputs[i_r + i_w].to(COMPUTE) * taps[i_w]
        b_out = _finished(b_out, bias_ptr, o_c, C, HAS_BIAS, SILU)
        tl.store(out_ptr + row * C + o_c, b_out.to(out_ptr.dtype.element_ty), m_c)


@triton.jit
def _look_up(
    row,
    inputs_ptr,
    taps,
    bias_ptr,
    tails_ptr,
    works_ptr,
    places_ptr,
    out_ptr,
    inputs_stride,
    tails_stride,
    works_stride,
    num_tail_rows,
    o_c,
    C,
    W: tl.constexpr,
    HAS_WORKS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK_C: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A row whose inputs lie anywhere; zeros if it is nobody's."""
    own = tl.load(places_ptr + row * W + W - 1)
    m_own = _channels(o_c, C, own >= 0)
    b_out = tl.zeros([BLOCK_C], dtype=COMPUTE)
    for i_w in tl.static_range(W - 1):
        b_input = _input_row(
            tl.load(places_ptr + row * W + i_w),
            inputs_ptr,
            tails_ptr,
            works_ptr,
            inputs_stride,
            tails_stride,
            works_stride,
            num_tail_rows,
            o_c,
            C,
            W,
            HAS_WORKS,
        )
        b_out += b_input.to(COMPUTE) * taps[i_w]
    b_own = tl.load(inputs_ptr + row * inputs_stride + o_c, m_own, other=0.0)
    b_out += b_own.to(COMPUTE) * taps[W - 1]
    b_out = _finished(b_out, bias_ptr, o_c, C, HAS_BIAS, SILU)
    b_out = tl.where(m_own, b_out, 0.0)
    tl.store(out_ptr + row * C + o_c, b_out.to(out_ptr.dtype.element_ty), o_c < C)


@triton.jit(do_not_specialize=["num_tail_rows", "L", "num_kept", "num_gathers"])
def _slide_kernel(
    inputs_ptr,
    weight_ptr,  # [C, W]
    bias_ptr,
    tails_ptr,
    works_ptr,
    places_ptr,  # [L, W]
    kept_places_ptr,  # [rows]
    out_ptr,  # [L, C]
    kept_ptr,  # [rows, C]
    inputs_stride,
    tails_stride,
    works_stride,
    num_tail_rows,
    L,
    num_kept,
    num_gathers,  # blocks of rows that are kept; those of outputs stand behind them
    C,
    W: tl.constexpr,
    HAS_WORKS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    ROWS: tl.constexpr,
    KEPT_ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_W: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    i_block = tl.program_id(1).to(tl.int64)
    o_c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    if i_block >= num_gathers:
        i_first = (i_block - num_gathers) * ROWS
        taps = ()
        for i_w in tl.static_range(W):
            b_tap = tl.load(weight_ptr + o_c * W + i_w, o_c < C, other=0.0)
            taps = taps + (b_tap.to(COMPUTE),)  # noqa: RUF005
        # whether all rows are there, and each tap of each is the input just as many rows before it
        o_l, o_w = i_first + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_W)[None, :]
        b_place = tl.load(places_ptr + o_l * W + o_w, (o_l < L) & (o_w < W), other=-1)
        is_other = (o_w < W) & ((b_place < 0) | (b_place != o_l + o_w - (W - 1)))
        if tl.sum(tl.sum(is_other.to(tl.int32), 1), 0) == 0:
            _slide(
                i_first,
                inputs_ptr,
                taps,
                bias_ptr,
                out_ptr,
                inputs_stride,
                o_c,
                C,
                W,
                HAS_BIAS,
                SILU,
                ROWS,
                BLOCK_C,
                COMPUTE,
            )
        else:
            for row in range(i_first, tl.minimum(i_first + ROWS, L)):
                _look_up(
                    row,
                    inputs_ptr,
                    taps,
                    bias_ptr,
                    tails_ptr,
                    works_ptr,
                    places_ptr,
                    out_ptr,
                    inputs_stride,
                    tails_stride,
                    works_stride,
                    num_tail_rows,
                    o_c,
                    C,
                    W,
                    HAS_WORKS,
                    HAS_BIAS,
                    SILU,
                    BLOCK_C,
                    COMPUTE,
                )
    elif W > 1:  # else there is nothing to keep
        first = i_block * KEPT_ROWS
        for row in range(first, tl.minimum(first + KEPT_ROWS, num_kept)):
            b_kept = _input_row(
                tl.load(kept_places_ptr + row),
                inputs_ptr,
                tails_ptr,
                works_ptr,
                inputs_stride,
                tails_stride,
                works_stride,
                num_tail_rows,
                o_c,
                C,
                W,
                HAS_WORKS,
            )
            tl.store(kept_ptr + row * C + o_c, b_kept.to(kept_ptr.dtype.element_ty), o_c < C)


def conv_many_rows(
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    table: ConvTable,
    tails_SWC: torch.Tensor,
    works_XWC: torch.Tensor | None,
    out_LC: torch.Tensor,
    options: dict[str, object],
) -> torch.Tensor:
    """Outputs; what is to be kept, [kept, C], gathered from all over the slabs.

    Args:
        rows: inputs [L, C], whose last axis is contiguous, weight [C, W] and bias.
        options: W, BLOCK_W, HAS_BIAS, SILU and COMPUTE, as `kernel` makes them.
    """
    (inputs_LC, weight_CW, bias_C), num_kept = rows, table.kept.shape[0]
    num_rows, C = inputs_LC.shape
    works = tails_SWC if works_XWC is None else works_XWC
    stretch = next(stretch for most, stretch in STRETCHES if num_rows <= most)
    block_c = min(stretch.channels, next_power_of_2(C))
    num_gathers = cdiv(num_kept, _KEPT_ROWS)
    kept = inputs_LC.new_empty((num_kept, C), dtype=tails_SWC.dtype)
    _slide_kernel.run(
        inputs_LC,
        weight_CW,
        inputs_LC if bias_C is None else bias_C,
        tails_SWC,
        works,
        table.places,
        table.kept,
        out_LC,
        kept,
        inputs_LC.stride(0),
        tails_SWC.stride(0),
        works.stride(0),
        tails_SWC.shape[0] * tails_SWC.shape[1],
        num_rows,
        num_kept,
        num_gathers,
        C,
        grid=(cdiv(C, block_c), num_gathers + cdiv(num_rows, stretch.rows)),
        warmup=False,
        HAS_WORKS=works_XWC is not None,
        ROWS=stretch.rows,
        KEPT_ROWS=_KEPT_ROWS,
        BLOCK_C=block_c,
        num_warps=stretch.warps,
        **options,
    )
    return kept
