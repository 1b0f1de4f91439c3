"""Choices in the order of their experts, and rising within one, by counting.

Few choices are looked at whole by a program an expert.  Many are cut into blocks: one launch counts
each expert's choices in every block, the next adds up those before each block, the last puts every
block's choices behind those of lower experts and of earlier blocks.  Whole numbers are added in any
order with one result, so the order is the same in every run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2

_LARGEST_WHOLE = 4096  # choices that every expert's program looks at
_WHOLE_PER_THREAD = 16  # of those
_BLOCK = 128  # choices of a block beyond that: every one is compared with every other
_AFTER = 32  # choices that a block's are compared with at a time
_BLOCK_WARPS = 8
_BLOCKS = 1024  # whose counts are added up at a time


@triton.jit
def _whole_kernel(
    chosen_ptr,  # [T] experts: TOP_K a row
    rows_ptr,  # out, [T]: the row at each place, by experts and, within one, rising
    places_ptr,  # out, [T]: the place of each choice
    ends_ptr,  # out, [experts] int32: one behind the last place of each
    T,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,  # no less than T
):
    i_e = tl.program_id(0)
    o_t = tl.arange(0, BLOCK)
    m_t = o_t < T
    b_expert = tl.load(chosen_ptr + o_t, m_t, other=2147483647).to(tl.int32)
    m_own = b_expert == i_e
    b_own = m_own.to(tl.int32)
    before = tl.sum((b_expert < i_e).to(tl.int32), 0)
    b_place = before + tl.cumsum(b_own, 0) - b_own
    tl.store(rows_ptr + b_place, (o_t // TOP_K).to(tl.int64), m_own)
    tl.store(places_ptr + o_t, b_place.to(tl.int64), m_own)
    tl.store(ends_ptr + i_e, before + tl.sum(b_own, 0))


@triton.jit
def _count_kernel(
    chosen_ptr,  # [T] experts
    counts_ptr,  # out, [blocks, NUM_EXPERTS] int32: choices of each expert
    T,
    NUM_EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    i_b = tl.program_id(0)
    o_t, o_e = i_b * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_E)
    m_t = o_t < T
    b_expert = tl.load(chosen_ptr + o_t, m_t, other=0).to(tl.int32)
    b_count = tl.histogram(b_expert, BLOCK_E, m_t)
    tl.store(counts_ptr + i_b * NUM_EXPERTS + o_e, b_count, o_e < NUM_EXPERTS)


@triton.jit
def _add_up_kernel(
    counts_ptr,  # [blocks + 1, experts] int32: counts; out, those before each block, then of all
    num_blocks,
    num_experts,
    STEP: tl.constexpr,
):
    i_e = tl.program_id(0)
    before = 0
    for start in range(0, num_blocks + 1, STEP):
        o_b = start + tl.arange(0, STEP)
        p_count = counts_ptr + o_b * num_experts + i_e
        b_count = tl.load(p_count, o_b < num_blocks, other=0)
        tl.store(p_count, before + tl.cumsum(b_count, 0) - b_count, o_b <= num_blocks)
        before += tl.sum(b_count, 0)


@triton.jit
def _place_kernel(
    chosen_ptr,  # [T] experts: TOP_K a row
    before_ptr,  # [blocks + 1, NUM_EXPERTS] int32: choices before each block, then all
    rows_ptr,  # out, [T]
    places_ptr,  # out, [T]
    ends_ptr,  # out, [NUM_EXPERTS] int32
    T,
    num_blocks,
    TOP_K: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_E: tl.constexpr,
    AFTER: tl.constexpr,  # choices that a block's are compared with at a time
):
    i_b = tl.program_id(0)
    o_own, o_e = tl.arange(0, BLOCK), tl.arange(0, BLOCK_E)
    o_t, m_e = i_b * BLOCK + o_own, o_e < NUM_EXPERTS
    m_t = o_t < T
    b_all = tl.load(before_ptr + num_blocks * NUM_EXPERTS + o_e, m_e, other=0)
    b_end = tl.cumsum(b_all, 0)
    if i_b == 0:
        tl.store(ends_ptr + o_e, b_end, m_e)
    b_expert = tl.load(chosen_ptr + o_t, m_t, other=0).to(tl.int32)
    b_before = tl.load(before_ptr + i_b * NUM_EXPERTS + b_expert, m_t, other=0)
    b_earlier = tl.zeros([BLOCK, AFTER], dtype=tl.int32)
    for start in range(0, BLOCK, AFTER):
        o_other = start + tl.arange(0, AFTER)
        p_other = chosen_ptr + i_b * BLOCK + o_other
        b_other = tl.load(p_other, i_b * BLOCK + o_other < T, other=0).to(tl.int32)
        # added up at the end alone, for that takes exchanges between threads
        m_earlier = (b_other[None, :] == b_expert[:, None]) & (o_other[None, :] < o_own[:, None])
        b_earlier += m_earlier.to(tl.int32)
    b_place = tl.gather(b_end - b_all, b_expert, 0) + b_before + tl.sum(b_earlier, 1)
    tl.store(rows_ptr + b_place, (o_t // TOP_K).to(tl.int64), m_t)
    tl.store(places_ptr + o_t, b_place.to(tl.int64), m_t)


def order(
    indices: torch.Tensor, num_experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bring choices into the order of experts.

    Args:
        indices: [L, top_k] int64, all below `num_experts`, contiguous, at least one.
    Returns:
        [L * top_k] int64 the row at each place, [L * top_k] int64 the place of each choice, and
        [num_experts] int32 one behind each expert's last place.
    """
    count, top_k = indices.numel(), indices.shape[1]
    rows, places = (indices.new_empty(count) for _ in range(2))
    ends = indices.new_empty(num_experts, dtype=torch.int32)
    if count <= _LARGEST_WHOLE:
        block = next_power_of_2(count)
        num_warps = max(4, min(16, block // (32 * _WHOLE_PER_THREAD)))
        _whole_kernel[(num_experts,)](
            *(indices, rows, places, ends, count), TOP_K=top_k, BLOCK=block, num_warps=num_warps
        )
        return rows, places, ends
    num_blocks = cdiv(count, _BLOCK)
    sizes = {
        "NUM_EXPERTS": num_experts,
        "BLOCK": _BLOCK,
        "BLOCK_E": next_power_of_2(num_experts),
    }
    counts = indices.new_empty((num_blocks + 1, num_experts), dtype=torch.int32)
    _count_kernel[(num_blocks,)](indices, counts, count, **sizes, num_warps=4)
    step = min(_BLOCKS, next_power_of_2(num_blocks + 1))
    _add_up_kernel[(num_experts,)](counts, num_blocks, num_experts, STEP=step, num_warps=4)
    _place_kernel[(num_blocks,)](
        *(indices, counts, rows, places, ends, count, num_blocks),
        TOP_K=top_k,
        AFTER=min(_AFTER, _BLOCK),
        num_warps=_BLOCK_WARPS,
        **sizes,
    )
    return rows, places, ends
