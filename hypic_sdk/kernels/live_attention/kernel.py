"""Attention over slots, in Triton: all runs of a batch in one launch, two where keys are split.

The query heads of a key head stand as rows of one block.  Scores are taken to base 2 and the sum
over keys runs in order, block by block, so a run's bits follow from the run alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.kept import kept_for_same
from hypic_sdk.kernels.live_attention import reference
from hypic_sdk.kernels.live_attention.table import AttentionLaunch, AttentionTable

PARTIALS_AT_ONCE = 32  # that a sum takes


class Merged(Protocol):
    """A launch whose rows may be in parts."""

    @property
    def merges(self) -> torch.Tensor:
        """[merges, 4] int64."""
        ...


@triton.jit
def _attend_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    origin_ptr,  # from which a run's slots are counted
    tasks_ptr,  # [tasks, 7]
    out_ptr,
    partial_ptr,  # [partials, G, BLOCK_M, E] fp32: sums that are not divided yet
    weight_ptr,  # [partials, G, 2, BLOCK_M] fp32: greatest score, sum of weights
    query_stride,
    query_head_stride,
    keys_stride,
    keys_head_stride,
    values_stride,
    values_head_stride,
    out_stride,
    out_head_stride,
    scale,  # times log2(e)
    G: tl.constexpr,
    GROUP: tl.constexpr,
    E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    i_task, i_g = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    task_ptr = tasks_ptr + i_task * 7
    row, num_rows = tl.load(task_ptr), tl.load(task_ptr + 1)
    position, slots_start = tl.load(task_ptr + 2), tl.load(task_ptr + 3)
    first_key, stop_key = tl.load(task_ptr + 4), tl.load(task_ptr + 5)
    partial = tl.load(task_ptr + 6)
    o_m, o_e = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_E)
    o_row = o_m // GROUP
    o_head = i_g * GROUP + o_m % GROUP
    m_me = (o_row < num_rows)[:, None] & (o_e < E)[None, :]
    o_query = (row + o_row) * query_stride + o_head * query_head_stride
    # [BM, BE]
    b_query = tl.load(query_ptr + o_query[:, None] + o_e[None, :], m_me, other=0.0)
    keys_ptr += i_g * keys_head_stride
    values_ptr += i_g * values_head_stride
    # [BM]
    b_most = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    b_weight = tl.zeros([BLOCK_M], dtype=tl.float32)
    # [BM, BE]
    b_sum = tl.zeros([BLOCK_M, BLOCK_E], dtype=tl.float32)
    slots_ptr = origin_ptr + slots_start
    o_n = first_key + tl.arange(0, BLOCK_N)
    # [BN]: slots are read a block ahead, so that keys are on their way while others are computed
    b_next_slot = tl.load(slots_ptr + o_n, o_n < stop_key, other=0)
    for i_n in range(first_key, stop_key, BLOCK_N):
        o_n = i_n + tl.arange(0, BLOCK_N)
        m_n = o_n < stop_key
        b_slot = b_next_slot
        b_next_slot = tl.load(slots_ptr + o_n + BLOCK_N, o_n + BLOCK_N < stop_key, other=0)
        # [BE, BN]
        b_key = tl.load(
            keys_ptr + b_slot[None, :] * keys_stride + o_e[:, None],
            (o_e < E)[:, None] & m_n[None, :],
            other=0.0,
        )
        # [BN, BE]
        b_value = tl.load(
            values_ptr + b_slot[:, None] * values_stride + o_e[None, :],
            m_n[:, None] & (o_e < E)[None, :],
            other=0.0,
        )
        # [BM, BN]
        b_score = tl.dot(b_query, b_key, input_precision="ieee") * scale
        seen = m_n[None, :] & (o_n[None, :] <= (position + o_row)[:, None])
        b_score = tl.where(seen, b_score, float("-inf"))
        b_new_most = tl.maximum(b_most, tl.max(b_score, 1))
        # a row that has seen nothing yet: 0 instead of -inf, so that no inf - inf arises
        b_base = tl.where(b_new_most == float("-inf"), 0.0, b_new_most)
        b_weights = tl.exp2(b_score - b_base[:, None])
        b_shrink = tl.exp2(b_most - b_base)
        b_weight = b_weight * b_shrink + tl.sum(b_weights, 1)
        b_sum = b_sum * b_shrink[:, None]
        b_sum = tl.dot(b_weights.to(b_value.dtype), b_value, acc=b_sum, input_precision="ieee")
        b_most = b_new_most
    if partial >= 0:
        o_part = (partial * G + i_g) * BLOCK_M
        tl.store(partial_ptr + (o_part + o_m)[:, None] * E + o_e[None, :], b_sum, m_me)
        tl.store(weight_ptr + 2 * o_part + o_m, b_most)
        tl.store(weight_ptr + 2 * o_part + BLOCK_M + o_m, b_weight)
    else:
        o_out = (row + o_row) * out_stride + o_head * out_head_stride
        # a task of no keys has no weights, and no rows either
        b_out = b_sum / tl.where(b_weight > 0.0, b_weight, 1.0)[:, None]
        b_out = b_out.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + o_out[:, None] + o_e[None, :], b_out, m_me)


@triton.jit
def _merge_kernel(
    merges_ptr,  # [merges, 4]
    out_ptr,
    partial_ptr,
    weight_ptr,
    out_stride,
    out_head_stride,
    G: tl.constexpr,
    GROUP: tl.constexpr,
    E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    i_merge, i_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    merge_ptr = merges_ptr + i_merge * 4
    row, place = tl.load(merge_ptr), tl.load(merge_ptr + 1)
    first, count = tl.load(merge_ptr + 2), tl.load(merge_ptr + 3)
    i_m = place * GROUP + i_head % GROUP
    o_p, o_e = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_E)
    m_e = o_e < E
    most = tl.full([], float("-inf"), dtype=tl.float32)
    weight = tl.zeros([], dtype=tl.float32)
    # [BE]
    b_sum = tl.zeros([BLOCK_E], dtype=tl.float32)
    for i_part in range(0, count, BLOCK_P):
        m_p = i_part + o_p < count
        # [BP]
        o_part = ((first + i_part + o_p) * G + i_head // GROUP) * BLOCK_M
        b_most = tl.load(weight_ptr + 2 * o_part + i_m, m_p, other=float("-inf"))
        b_weight = tl.load(weight_ptr + 2 * o_part + BLOCK_M + i_m, m_p, other=0.0)
        # [BP, BE]
        b_own = tl.load(
            partial_ptr + (o_part + i_m)[:, None] * E + o_e[None, :],
            m_p[:, None] & m_e[None, :],
            other=0.0,
        )
        # the first stretch has the row's first key, so this is never -inf
        new_most = tl.maximum(most, tl.max(b_most, 0))
        shrink = tl.exp2(most - new_most)
        b_shrink = tl.exp2(b_most - new_most)
        weight = weight * shrink + tl.sum(b_weight * b_shrink, 0)
        b_sum = b_sum * shrink + tl.sum(b_own * b_shrink[:, None], 0)
        most = new_most
    b_out = (b_sum / tl.where(count > 0, weight, 1.0)).to(out_ptr.dtype.element_ty)
    m_out = o_e < tl.where(count > 0, E, 0)
    tl.store(out_ptr + row * out_stride + i_head * out_head_stride + o_e, b_out, m_out)


@kept_for_same(maxsize=32)  # live runs, whole segments, and each unfinished one
def _table(
    runs: Sequence[AttentionRun], group: int, is_wide: bool, device: torch.device
) -> AttentionTable:
    return AttentionTable.of(runs, group, is_wide=is_wide, device=device)


def live_attention(
    query_LQE: torch.Tensor,
    runs: Sequence[AttentionRun] | AttentionTable,
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
    *,
    scale: float,
    out_LQE: torch.Tensor,
) -> None:
    """As the reference; fp64 goes through the reference itself."""
    is_table = isinstance(runs, AttentionTable)
    if query_LQE.dtype == torch.float64 or (not is_table and not runs):
        assert not isinstance(runs, AttentionTable), "the kernel knows no fp64"
        reference.live_attention(
            query_LQE, runs, keys_PGE, values_PGE, scale=scale, out_LQE=out_LQE
        )
        return
    query_LQE, keys_PGE, values_PGE = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (query_LQE, keys_PGE, values_PGE)
    )
    group, device = query_LQE.shape[1] // keys_PGE.shape[1], query_LQE.device
    if isinstance(runs, AttentionTable):
        table = runs
    else:
        table = _table(runs, group, query_LQE.dtype == torch.float32, device)
    for launch in table.launches:
        _launch(launch, table.origin, query_LQE, keys_PGE, values_PGE, out_LQE, group, scale)


def _shape_of(block_m: int, block_e: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Keys of a block, warps of a program, and how many blocks are on their way or computed."""
    if dtype == torch.float32:  # its products take no matrix unit
        return 16, 8 if block_m * block_e >= 16384 else 4, 1
    return 64, 8 if block_m * block_e >= 16384 else 4, 2


def _launch(
    launch: AttentionLaunch,
    origin: torch.Tensor,
    query_LQE: torch.Tensor,
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
    out_LQE: torch.Tensor,
    group: int,
    scale: float,
) -> None:
    _, G, E = keys_PGE.shape
    block_m, block_e = launch.block_m, max(16, triton.next_power_of_2(E))
    block_n, num_warps, num_stages = _shape_of(block_m, block_e, query_LQE.dtype)
    partial = query_LQE.new_empty((launch.num_partials, G, block_m, E), dtype=torch.float32)
    weight = query_LQE.new_empty((launch.num_partials, G, 2, block_m), dtype=torch.float32)
    _attend_kernel[(len(launch.tasks), G)](
        query_LQE,
        keys_PGE,
        values_PGE,
        origin,
        launch.tasks,
        out_LQE,
        partial,
        weight,
        *query_LQE.stride()[:2],
        *keys_PGE.stride()[:2],
        *values_PGE.stride()[:2],
        *out_LQE.stride()[:2],
        scale * math.log2(math.e),
        G=G,
        GROUP=group,
        E=E,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_E=block_e,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    merge(launch, out_LQE, partial, weight, group, block_e)


def merge(
    launch: Merged,
    out_LQE: torch.Tensor,
    partial: torch.Tensor,
    weight: torch.Tensor,
    group: int,
    block_e: int,
) -> None:
    """Add up the parts of rows whose keys were read in stretches, if there are any."""
    if not len(launch.merges):
        return
    _, G, block_m, E = partial.shape
    _merge_kernel[(len(launch.merges), G * group)](
        launch.merges,
        out_LQE,
        partial,
        weight,
        *out_LQE.stride()[:2],
        G=G,
        GROUP=group,
        E=E,
        BLOCK_M=block_m,
        BLOCK_E=block_e,
        BLOCK_P=PARTIALS_AT_ONCE,
        num_warps=4,
    )
