"""Causal depthwise conv in Triton: tiles of rows and channels.

Few rows and no work tails: one launch, whose programs have some channels each and all rows; what
they keep is read before it is written.  Else a launch that only reads, tiles of rows and of what is
kept of them, and one that writes the tails; of many rows, as cold segments have them, `slide` makes
the first.  A row's sum is taken in one order everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2
from hypic_sdk.kernels.items import ColdRun, Item
from hypic_sdk.kernels.kept import kept_for_same
from hypic_sdk.kernels.short_conv.slide import conv_many_rows
from hypic_sdk.kernels.short_conv.table import ConvTable


class Tile(NamedTuple):
    """What a program computes, and by how many warps; no bits hang on it."""

    rows: int
    channels: int
    warps: int


# (rows of a call up to which, tile): few rows spread over many programs; many rows share weights,
# and read an input once for all its taps
# (the best of eight at 32, 120 and 5,000 rows on an H200)
TILES = (
    (64, Tile(1, 512, 4)),
    (256, Tile(4, 256, 4)),
    (1024, Tile(8, 256, 4)),
    (1 << 62, Tile(32, 128, 4)),
)
# up to so many rows, the most that a graph has, seams may be the greater part, whose inputs are
# looked up; more are stretches of inputs behind each other
FEWER_ROWS = 2048
PUT_TILE = Tile(8, 256, 4)
# one launch for all: up to so many rows, as a decode batch has them, ..
AT_ONCE_ROWS = 64
# .. and so many kept ones (W-1 a tail), which lie in registers meanwhile: the smallest that fits
AT_ONCE_KEPT = (64, 256, 512)
AT_ONCE_TILE = Tile(32, 32, 8)


@triton.jit
def _inputs(
    place,  # [BL]
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
    """The inputs at places, [BL, BC]: zeros for none."""
    TAIL: tl.constexpr = W - 1
    o_c = o_c[None, :]
    row = -2 - place
    m_input = (place >= 0)[:, None] & (o_c < C)
    b_input = tl.load(inputs_ptr + place[:, None] * inputs_stride + o_c, m_input, other=0.0)
    in_tails = row >= 0
    if HAS_WORKS:
        work_row = row - num_tail_rows
        in_tails = in_tails & (work_row < 0)
        m_work = (work_row >= 0)[:, None] & (o_c < C)
        o_work = (work_row // TAIL) * works_stride + (work_row % TAIL) * C
        b_input += tl.load(works_ptr + o_work[:, None] + o_c, m_work, other=0.0)
    o_tail = (row // TAIL) * tails_stride + (row % TAIL) * C
    m_tail = in_tails[:, None] & (o_c < C)
    return b_input + tl.load(tails_ptr + o_tail[:, None] + o_c, m_tail, other=0.0)


@triton.jit
def _slide(
    o_b,
    m_l,
    first_ptr,  # the first tap of the first row
    weight_ptr,
    inputs_stride,
    o_c,
    C,
    W: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_C: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """What rows take from the inputs just before them, [BL, BC]: each is fetched once for all."""
    m_c = o_c < C
    b_out = tl.zeros([BLOCK_L, BLOCK_C], dtype=COMPUTE)
    for i_w in tl.static_range(W - 1):
        o_input = (o_b + i_w)[:, None] * inputs_stride + o_c[None, :]
        b_input = tl.load(first_ptr + o_input, m_l[:, None] & m_c[None, :], other=0.0)
        b_tap = tl.load(weight_ptr + o_c * W + i_w, m_c, other=0.0).to(COMPUTE)
        b_out += b_input.to(COMPUTE) * b_tap[None, :]
    return b_out


@triton.jit
def _look_up(
    o_l,
    m_l,
    inputs_ptr,
    weight_ptr,
    tails_ptr,
    works_ptr,
    places_ptr,
    inputs_stride,
    tails_stride,
    works_stride,
    num_tail_rows,
    o_c,
    C,
    W: tl.constexpr,
    HAS_WORKS: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_C: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The same, wherever the inputs lie."""
    b_out = tl.zeros([BLOCK_L, BLOCK_C], dtype=COMPUTE)
    for i_w in tl.static_range(W - 1):
        b_input = _inputs(
            tl.load(places_ptr + o_l * W + i_w, m_l, other=-1),
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
        b_tap = tl.load(weight_ptr + o_c * W + i_w, o_c < C, other=0.0).to(COMPUTE)
        b_out += b_input.to(COMPUTE) * b_tap[None, :]
    return b_out


@triton.jit
def _convolve(
    i_first,
    inputs_ptr,
    weight_ptr,
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
    L,
    C,
    W: tl.constexpr,
    HAS_WORKS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_W: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Outputs of rows from `i_first` on, one block of them and of channels."""
    o_b = tl.arange(0, BLOCK_L)
    o_l = (i_first + o_b).to(tl.int64)
    m_l, m_c = o_l < L, o_c < C
    own = tl.load(places_ptr + o_l * W + W - 1, m_l, other=-1)
    if BLOCK_L > 1:
        # whether each tap of each row is the input just as many rows before it
        o_w = tl.arange(0, BLOCK_W)[None, :]
        m_lw = m_l[:, None] & (o_w < W)
        b_place = tl.load(places_ptr + o_l[:, None] * W + o_w, m_lw, other=0)
        is_other = (b_place < 0) | (b_place != o_l[:, None] + o_w - (W - 1))
        if tl.sum(tl.sum((m_lw & is_other).to(tl.int32), 1), 0) == 0:
            b_out = _slide(
                o_b,
                m_l,
                inputs_ptr + (i_first - (W - 1)) * inputs_stride,
                weight_ptr,
                inputs_stride,
                o_c,
                C,
                W,
                BLOCK_L,
                BLOCK_C,
                COMPUTE,
            )
        else:
            b_out = _look_up(
                o_l,
                m_l,
                inputs_ptr,
                weight_ptr,
                tails_ptr,
                works_ptr,
                places_ptr,
                inputs_stride,
                tails_stride,
                works_stride,
                num_tail_rows,
                o_c,
                C,
                W,
                HAS_WORKS,
                BLOCK_L,
                BLOCK_C,
                COMPUTE,
            )
    else:
        b_out = _look_up(
            o_l,
            m_l,
            inputs_ptr,
            weight_ptr,
            tails_ptr,
            works_ptr,
            places_ptr,
            inputs_stride,
            tails_stride,
            works_stride,
            num_tail_rows,
            o_c,
            C,
            W,
            HAS_WORKS,
            BLOCK_L,
            BLOCK_C,
            COMPUTE,
        )
    # a row of nobody has no channels
    m_own = (own >= 0)[:, None] & m_c[None, :]
    o_own = o_b[:, None] * inputs_stride + o_c[None, :]
    b_own = tl.load(inputs_ptr + i_first * inputs_stride + o_own, m_own, other=0.0)
    b_tap = tl.load(weight_ptr + o_c * W + W - 1, m_c, other=0.0).to(COMPUTE)
    b_out += b_own.to(COMPUTE) * b_tap[None, :]
    if HAS_BIAS:
        b_out += tl.load(bias_ptr + o_c, m_c, other=0.0).to(COMPUTE)[None, :]
    if SILU:
        b_out = b_out / (1.0 + tl.exp(-b_out))
    b_out = tl.where(m_own, b_out, 0.0).to(out_ptr.dtype.element_ty)
    o_out = o_b[:, None] * C + o_c[None, :]
    tl.store(out_ptr + i_first * C + o_out, b_out, m_l[:, None] & m_c[None, :])


@triton.jit(do_not_specialize=["num_tail_rows", "L", "num_kept", "num_blocks"])
def _conv_kernel(
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
    num_blocks,  # of rows; those of what is kept stand behind them
    C,
    W: tl.constexpr,
    HAS_WORKS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_W: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    i_block = tl.program_id(0).to(tl.int64)
    o_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    if i_block < num_blocks:
        _convolve(
            i_block * BLOCK_L,
            inputs_ptr,
            weight_ptr,
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
            L,
            C,
            W,
            HAS_WORKS,
            HAS_BIAS,
            SILU,
            BLOCK_L,
            BLOCK_C,
            BLOCK_W,
            COMPUTE,
        )
    elif W > 1:  # else there is nothing to keep
        o_r = (i_block - num_blocks) * BLOCK_L + tl.arange(0, BLOCK_L)
        m_r = o_r < num_kept
        place = tl.load(kept_places_ptr + o_r, m_r, other=-1)
        b_kept = _inputs(
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
            W,
            HAS_WORKS,
        ).to(kept_ptr.dtype.element_ty)
        o_kept = o_r[:, None] * C + o_c[None, :]
        tl.store(kept_ptr + o_kept, b_kept, m_r[:, None] & (o_c < C)[None, :])


@triton.jit(do_not_specialize=["num_kept"])
def _put_kernel(
    kept_ptr,  # [rows, C]
    slots_ptr,  # [rows / (W-1)]; without a slot: not kept
    tails_ptr,
    tails_stride,
    num_kept,
    C,
    W: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    o_r = tl.program_id(0).to(tl.int64) * BLOCK_L + tl.arange(0, BLOCK_L)
    o_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    TAIL: tl.constexpr = W - 1
    slot = tl.load(slots_ptr + o_r // TAIL, o_r < num_kept, other=-1)
    m_rc = (slot >= 0)[:, None] & (o_c < C)
    b_kept = tl.load(kept_ptr + o_r[:, None] * C + o_c, m_rc, other=0.0)
    o_tail = slot * tails_stride + (o_r % TAIL) * C
    tl.store(tails_ptr + o_tail[:, None] + o_c, b_kept, m_rc)


@triton.jit(do_not_specialize=["L", "num_kept"])
def _at_once_kernel(
    inputs_ptr,
    weight_ptr,  # [C, W]
    bias_ptr,
    tails_ptr,
    places_ptr,  # [L, W]
    kept_places_ptr,  # [rows]
    slots_ptr,  # [rows / (W-1)]; without a slot: not kept
    out_ptr,  # [L, C]
    inputs_stride,
    tails_stride,
    L,
    num_kept,
    C,
    W: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    KEPT: tl.constexpr,  # rows at least; 0: none
    BLOCK_L: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_W: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    o_c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    if KEPT > 0:
        o_r = tl.arange(0, KEPT).to(tl.int64)
        slot = tl.load(slots_ptr + o_r // (W - 1), o_r < num_kept, other=-1)
        place = tl.load(kept_places_ptr + o_r, slot >= 0, other=-1)
        # [KEPT, BC]
        b_kept = _inputs(
            place,
            inputs_ptr,
            tails_ptr,
            tails_ptr,
            inputs_stride,
            tails_stride,
            tails_stride,
            0,
            o_c,
            C,
            W,
            False,
        ).to(tails_ptr.dtype.element_ty)
    for i_first in range(0, L, BLOCK_L):
        _convolve(
            i_first,
            inputs_ptr,
            weight_ptr,
            bias_ptr,
            tails_ptr,
            tails_ptr,
            places_ptr,
            out_ptr,
            inputs_stride,
            tails_stride,
            tails_stride,
            0,
            o_c,
            L,
            C,
            W,
            False,
            HAS_BIAS,
            SILU,
            BLOCK_L,
            BLOCK_C,
            BLOCK_W,
            COMPUTE,
        )
    if KEPT > 0:
        # nobody else has these channels: the tails may go once all of the program's warps have read
        tl.debug_barrier()
        o_tail = slot * tails_stride + (o_r % (W - 1)) * C
        m_tail = (slot >= 0)[:, None] & (o_c < C)[None, :]
        tl.store(tails_ptr + o_tail[:, None] + o_c[None, :], b_kept, m_tail)


@kept_for_same(maxsize=4, num_sequences=2)
def _table(
    items: Sequence[Item],
    cold_runs: Sequence[ColdRun],
    sizes: tuple[int, int, int],
    device: torch.device,
) -> ConvTable:
    return ConvTable.of(items, cold_runs, sizes, device)


def short_conv(
    inputs_LC: torch.Tensor,
    weight_CW: torch.Tensor,
    bias_C: torch.Tensor | None,
    activation: str | None,
    items: Sequence[Item] | ConvTable,
    cold_runs: Sequence[ColdRun],
    tails_SWC: torch.Tensor,
    work_tails_XWC: torch.Tensor | None,
    out_LC: torch.Tensor,
) -> None:
    """As the reference."""
    num_rows, width = inputs_LC.shape[0], weight_CW.shape[1]
    works_XWC = None if not cold_runs else work_tails_XWC
    table = _table_of(items, cold_runs, (num_rows, width, tails_SWC.shape[0]), inputs_LC.device)
    inputs_LC = inputs_LC if inputs_LC.stride(1) == 1 else inputs_LC.contiguous()
    for slab in (tails_SWC, works_XWC):
        assert slab is None or slab.stride(2) == 1, "a slab's last axis is contiguous"
        assert slab is None or width == 1 or slab[0].is_contiguous(), "rows are contiguous"
    if not num_rows + table.kept.shape[0]:
        return
    rows = inputs_LC, weight_CW.contiguous(), bias_C
    options = {
        "W": width,
        "HAS_BIAS": bias_C is not None,
        "SILU": activation == "silu",
        "BLOCK_W": next_power_of_2(width),
        "COMPUTE": tl.float64 if inputs_LC.dtype == torch.float64 else tl.float32,
    }
    num_kept = table.kept.shape[0]
    if works_XWC is None and num_rows <= AT_ONCE_ROWS and num_kept <= AT_ONCE_KEPT[-1]:
        _at_once(rows, table, tails_SWC, out_LC, options)
        return
    conv = _in_tiles if num_rows <= FEWER_ROWS else conv_many_rows
    kept = conv(rows, table, tails_SWC, works_XWC, out_LC, options)
    num_tails = table.tail_slots.shape[0] * (width - 1)
    _put(kept, num_tails, table.tail_slots, tails_SWC)
    if works_XWC is not None and num_tails < num_kept:
        _put(kept[num_tails:], num_kept - num_tails, table.work_slots, works_XWC)


def _table_of(
    items: Sequence[Item] | ConvTable,
    cold_runs: Sequence[ColdRun],
    sizes: tuple[int, int, int],
    device: torch.device,
) -> ConvTable:
    if isinstance(items, ConvTable):
        assert not cold_runs, "a table says what cold runs do as well"
        return items
    return _table(items, cold_runs, sizes, device)


_Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]  # inputs, weight, bias


def _at_once(
    rows: _Rows,
    table: ConvTable,
    tails_SWC: torch.Tensor,
    out_LC: torch.Tensor,
    options: dict[str, object],
) -> None:
    """One launch: outputs, and the tails that are kept."""
    (inputs_LC, weight_CW, bias_C), num_kept = rows, table.kept.shape[0]
    (num_rows, C), tile = inputs_LC.shape, AT_ONCE_TILE
    block_c = min(tile.channels, next_power_of_2(C))
    _at_once_kernel.run(
        inputs_LC,
        weight_CW,
        inputs_LC if bias_C is None else bias_C,
        tails_SWC,
        table.places,
        table.kept,
        table.tail_slots,
        out_LC,
        inputs_LC.stride(0),
        tails_SWC.stride(0),
        num_rows,
        num_kept,
        C,
        grid=(cdiv(C, block_c),),
        warmup=False,
        KEPT=next(size for size in AT_ONCE_KEPT if size >= num_kept) if num_kept else 0,
        BLOCK_L=tile.rows,
        BLOCK_C=block_c,
        num_warps=tile.warps,
        num_stages=1,
        **options,
    )


def _in_tiles(
    rows: _Rows,
    table: ConvTable,
    tails_SWC: torch.Tensor,
    works_XWC: torch.Tensor | None,
    out_LC: torch.Tensor,
    options: dict[str, object],
) -> torch.Tensor:
    """Outputs; what is to be kept, [kept, C], gathered from all over the slabs."""
    (inputs_LC, weight_CW, bias_C), num_kept = rows, table.kept.shape[0]
    num_rows, C = inputs_LC.shape
    works = tails_SWC if works_XWC is None else works_XWC
    tile = next(tile for most, tile in TILES if num_rows <= most)
    block_c = min(tile.channels, next_power_of_2(C))
    num_blocks = cdiv(num_rows, tile.rows)
    kept = inputs_LC.new_empty((num_kept, C), dtype=tails_SWC.dtype)
    _conv_kernel.run(
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
        num_blocks,
        C,
        grid=(num_blocks + cdiv(num_kept, tile.rows), cdiv(C, block_c)),
        warmup=False,
        HAS_WORKS=works_XWC is not None,
        BLOCK_L=tile.rows,
        BLOCK_C=block_c,
        num_warps=tile.warps,
        **options,
    )
    return kept


def _put(kept: torch.Tensor, num_kept: int, slots: torch.Tensor, tails_SWC: torch.Tensor) -> None:
    """The first rows of what was gathered from all over the slab, to their own slots."""
    C, width = kept.shape[1], tails_SWC.shape[1] + 1
    if not num_kept:
        return
    block_c = min(PUT_TILE.channels, next_power_of_2(C))
    _put_kernel.run(
        kept,
        slots,
        tails_SWC,
        tails_SWC.stride(0),
        num_kept,
        C,
        grid=(cdiv(num_kept, PUT_TILE.rows), cdiv(C, block_c)),
        warmup=False,
        W=width,
        BLOCK_L=PUT_TILE.rows,
        BLOCK_C=block_c,
        num_warps=PUT_TILE.warps,
    )
