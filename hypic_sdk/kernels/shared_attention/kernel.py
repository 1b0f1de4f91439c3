"""Attention over live and shared keys, in Triton: `live_attention`'s kernel with a rotation in it.

A task's keys are all live or all of one interior, so that one turn of its queries fits all of them;
live keys of a run lie behind each other, whatever stands between them in the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.live_attention.kernel import merge
from hypic_sdk.kernels.shared_attention import reference
from hypic_sdk.kernels.shared_attention.plan import SharedLaunch, SharedRun, SharedTable, Turn


@triton.jit
def _attend_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    slots_ptr,
    tasks_ptr,  # [tasks, 10]
    cos_ptr,  # [positions, F] fp32
    sin_ptr,
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
    F: tl.constexpr,
    TURN_KEYS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    i_task, i_g = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    task_ptr = tasks_ptr + i_task * 10
    row, num_rows = tl.load(task_ptr), tl.load(task_ptr + 1)
    last_key, slots_start = tl.load(task_ptr + 2), tl.load(task_ptr + 3)
    first_key, stop_key = tl.load(task_ptr + 4), tl.load(task_ptr + 5)
    partial, query_turn = tl.load(task_ptr + 6), tl.load(task_ptr + 7)
    key_turn, key_step = tl.load(task_ptr + 8), tl.load(task_ptr + 9)
    o_m, o_e = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_E)
    # of each dimension: the other one of its pair, the pair's angle, the sine's sign
    o_pair = tl.where(o_e < F, o_e + F, o_e - F)
    o_angle = tl.where(o_e < F, o_e, o_e - F)
    b_sign = tl.where(o_e < F, -1.0, 1.0)
    m_turned = o_e < 2 * F
    o_row = o_m // GROUP
    o_head = i_g * GROUP + o_m % GROUP
    m_m = o_row < num_rows
    m_me = m_m[:, None] & (o_e < E)[None, :]
    m_turn = m_m[:, None] & m_turned[None, :]
    o_query = ((row + o_row) * query_stride + o_head * query_head_stride)[:, None]
    o_table = ((query_turn + o_row) * F)[:, None] + o_angle[None, :]
    # [BM, BE]
    b_raw = tl.load(query_ptr + o_query + o_e[None, :], m_me, other=0.0)
    b_pair = tl.load(query_ptr + o_query + o_pair[None, :], m_turn, other=0.0)
    b_cos = tl.load(cos_ptr + o_table, m_turn, other=1.0)
    b_sin = tl.load(sin_ptr + o_table, m_turn, other=0.0) * b_sign[None, :]
    b_query = (b_raw.to(tl.float32) * b_cos + b_pair.to(tl.float32) * b_sin).to(b_raw.dtype)
    keys_ptr += i_g * keys_head_stride
    values_ptr += i_g * values_head_stride
    # [BM]
    b_most = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    b_weight = tl.zeros([BLOCK_M], dtype=tl.float32)
    # [BM, BE]
    b_sum = tl.zeros([BLOCK_M, BLOCK_E], dtype=tl.float32)
    for i_n in range(first_key, stop_key, BLOCK_N):
        o_n = i_n + tl.arange(0, BLOCK_N)
        m_n = o_n < stop_key
        # [BN]
        b_slot = tl.load(slots_ptr + slots_start + o_n, m_n, other=0)
        # [BE, BN]
        b_key = tl.load(
            keys_ptr + b_slot[None, :] * keys_stride + o_e[:, None],
            (o_e < E)[:, None] & m_n[None, :],
            other=0.0,
        )
        if TURN_KEYS:
            m_en = m_turned[:, None] & m_n[None, :]
            o_key = ((key_turn + o_n * key_step) * F)[None, :] + o_angle[:, None]
            b_other = tl.load(
                keys_ptr + b_slot[None, :] * keys_stride + o_pair[:, None], m_en, other=0.0
            )
            b_key_cos = tl.load(cos_ptr + o_key, m_en, other=1.0)
            b_key_sin = tl.load(sin_ptr + o_key, m_en, other=0.0) * b_sign[:, None]
            b_wide = b_key.to(tl.float32) * b_key_cos + b_other.to(tl.float32) * b_key_sin
            b_key = b_wide.to(b_key.dtype)
        # [BN, BE]
        b_value = tl.load(
            values_ptr + b_slot[:, None] * values_stride + o_e[None, :],
            m_n[:, None] & (o_e < E)[None, :],
            other=0.0,
        )
        # [BM, BN]
        b_score = tl.dot(b_query, b_key, input_precision="ieee") * scale
        seen = m_n[None, :] & (o_n[None, :] <= (last_key + o_row)[:, None])
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
        b_out = (b_sum / b_weight[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + o_out[:, None] + o_e[None, :], b_out, m_me)


def shared_attention(
    query_LQE: torch.Tensor,
    runs: Sequence[SharedRun],
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
    *,
    cos: torch.Tensor,
    sin: torch.Tensor,
    turn: Turn,
    scale: float,
    out_LQE: torch.Tensor,
    table: SharedTable | None = None,
) -> None:
    """As the reference; fp64 goes through the reference itself."""
    if query_LQE.dtype == torch.float64 or not runs:
        reference.shared_attention(
            *(query_LQE, runs, keys_PGE, values_PGE),
            cos=cos, sin=sin, turn=turn, scale=scale, out_LQE=out_LQE,
        )  # fmt: skip
        return
    query_LQE, keys_PGE, values_PGE = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (query_LQE, keys_PGE, values_PGE)
    )
    group = query_LQE.shape[1] // keys_PGE.shape[1]
    if table is None:
        table = SharedTable.of(runs, group, turn, is_wide=query_LQE.dtype == torch.float32)
    cos, sin = cos.contiguous(), sin.contiguous()
    for launch in table.launches:
        _launch(
            *(launch, table.slots, query_LQE, keys_PGE, values_PGE),
            *(cos, sin, out_LQE, group, scale, turn == "key"),
        )


def _launch(
    launch: SharedLaunch,
    slots: torch.Tensor,
    query_LQE: torch.Tensor,
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    out_LQE: torch.Tensor,
    group: int,
    scale: float,
    turn_keys: bool,
) -> None:
    _, G, E = keys_PGE.shape
    block_m, block_e = launch.block_m, max(16, triton.next_power_of_2(E))
    is_wide = query_LQE.dtype == torch.float32
    partial = query_LQE.new_empty((launch.num_partials, G, block_m, E), dtype=torch.float32)
    weight = query_LQE.new_empty((launch.num_partials, G, 2, block_m), dtype=torch.float32)
    _attend_kernel[(len(launch.tasks), G)](
        query_LQE,
        keys_PGE,
        values_PGE,
        slots,
        launch.tasks,
        cos,
        sin,
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
        F=cos.shape[1],
        TURN_KEYS=turn_keys,
        BLOCK_M=block_m,
        BLOCK_N=16 if is_wide else 32 if block_e >= 256 else 64,
        BLOCK_E=block_e,
        num_warps=8 if block_m * block_e >= 16384 else 4,
        num_stages=1 if is_wide else 2,
    )
    merge(launch, out_LQE, partial, weight, group, block_e)
