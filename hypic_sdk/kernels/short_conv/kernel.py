"""Causal depthwise conv in Triton: one launch that reads, all rows and what is kept of them, and
one that writes the tails.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.items import ColdRun, Item
from hypic_sdk.kernels.kept import kept_for_same
from hypic_sdk.kernels.short_conv.table import ConvTable

_BLOCK_C = 512


@triton.jit
def _input(
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
):
    """The input at a place, one block of channels: zeros for none."""
    row = -2 - place
    work_row = row - num_tail_rows
    # all channels, or none of them
    in_inputs = o_c < tl.where(place >= 0, C, 0)
    in_works = o_c < tl.where(work_row >= 0, C, 0)
    in_tails = (o_c < tl.where(row >= 0, C, 0)) & (o_c < tl.where(work_row < 0, C, 0))
    TAIL: tl.constexpr = W - 1
    b_input = tl.load(inputs_ptr + place * inputs_stride + o_c, in_inputs, other=0.0)
    tail_ptr = tails_ptr + (row // TAIL) * tails_stride + (row % TAIL) * C
    b_input += tl.load(tail_ptr + o_c, in_tails, other=0.0)
    work_ptr = works_ptr + (work_row // TAIL) * works_stride + (work_row % TAIL) * C
    return b_input + tl.load(work_ptr + o_c, in_works, other=0.0)


@triton.jit
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
    C,
    W: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK_C: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    i_l = tl.program_id(0).to(tl.int64)
    o_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    if i_l < L:
        own = tl.load(places_ptr + i_l * W + W - 1)
        # a row of nobody has no channels
        m_c = o_c < tl.where(own >= 0, C, 0)
        # [BC]
        b_out = tl.zeros([BLOCK_C], dtype=COMPUTE)
        for i_w in tl.static_range(W - 1):
            place = tl.load(places_ptr + i_l * W + i_w)
            b_input = _input(
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
            )
            b_tap = tl.load(weight_ptr + o_c * W + i_w, m_c, other=0.0).to(COMPUTE)
            b_out += b_input.to(COMPUTE) * b_tap
        b_own = tl.load(inputs_ptr + i_l * inputs_stride + o_c, m_c, other=0.0).to(COMPUTE)
        b_out += b_own * tl.load(weight_ptr + o_c * W + W - 1, m_c, other=0.0).to(COMPUTE)
        if HAS_BIAS:
            b_out += tl.load(bias_ptr + o_c, m_c, other=0.0).to(COMPUTE)
        if SILU:
            b_out = b_out / (1.0 + tl.exp(-b_out))
        # zeros to a row of nobody
        tl.store(out_ptr + i_l * C + o_c, b_out.to(out_ptr.dtype.element_ty), o_c < C)
    elif W > 1:  # else there is nothing to keep
        i_row = i_l - L
        place = tl.load(kept_places_ptr + i_row)
        b_kept = _input(
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
        )
        tl.store(kept_ptr + i_row * C + o_c, b_kept.to(kept_ptr.dtype.element_ty), o_c < C)


@triton.jit
def _put_kernel(
    kept_ptr,  # [rows, C]
    slots_ptr,  # [rows / (W-1)]; without a slot: not kept
    tails_ptr,
    tails_stride,
    C,
    W: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    o_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    TAIL: tl.constexpr = W - 1
    slot = tl.load(slots_ptr + i_row // TAIL)
    # all channels, or none of them
    m_c = o_c < tl.where(slot >= 0, C, 0)
    b_kept = tl.load(kept_ptr + i_row * C + o_c, m_c, other=0.0)
    tl.store(tails_ptr + slot * tails_stride + (i_row % TAIL) * C + o_c, b_kept, m_c)


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
    (num_rows, C), width = inputs_LC.shape, weight_CW.shape[1]
    works_XWC = tails_SWC if work_tails_XWC is None else work_tails_XWC
    table = _table_of(items, cold_runs, (num_rows, width, tails_SWC.shape[0]), inputs_LC.device)
    inputs_LC = inputs_LC if inputs_LC.stride(1) == 1 else inputs_LC.contiguous()
    assert tails_SWC.stride(2) == 1, "a slab's last axis is contiguous"
    assert width == 1 or (tails_SWC[0].is_contiguous() and works_XWC[0].is_contiguous()), (
        "rows of the tail slabs are contiguous"
    )
    strides = inputs_LC.stride(0), tails_SWC.stride(0), works_XWC.stride(0)
    num_tail_rows = tails_SWC.shape[0] * (width - 1)
    block_c = min(_BLOCK_C, triton.next_power_of_2(C))
    blocks = triton.cdiv(C, block_c)
    kept = inputs_LC.new_empty((len(table.kept), C), dtype=tails_SWC.dtype)
    if num_rows + len(kept):
        _conv_kernel[(num_rows + len(kept), blocks)](
            inputs_LC,
            weight_CW.contiguous(),
            inputs_LC if bias_C is None else bias_C,
            tails_SWC,
            works_XWC,
            table.places,
            table.kept,
            out_LC,
            kept,
            *strides,
            num_tail_rows,
            num_rows,
            C,
            W=width,
            HAS_BIAS=bias_C is not None,
            SILU=activation == "silu",
            BLOCK_C=block_c,
            COMPUTE=tl.float64 if inputs_LC.dtype == torch.float64 else tl.float32,
        )
    if not len(kept):
        return
    num_tails = len(table.tail_slots) * (width - 1)
    _put(kept[:num_tails], table.tail_slots, tails_SWC, block_c)
    _put(kept[num_tails:], table.work_slots, works_XWC, block_c)


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


def _put(kept: torch.Tensor, slots: torch.Tensor, tails_SWC: torch.Tensor, block_c: int) -> None:
    """Rows that were gathered from all over the slab, to their own slots."""
    (num_rows, C), width = kept.shape, tails_SWC.shape[1] + 1
    if num_rows:
        _put_kernel[(num_rows, triton.cdiv(C, block_c))](
            kept, slots, tails_SWC, tails_SWC.stride(0), C, W=width, BLOCK_C=block_c
        )
