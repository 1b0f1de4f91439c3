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

from hypic_sdk.kernels.blocks import next_power_of_2
from hypic_sdk.kernels.live_attention.kernel import attend_keys, keep_rows, merge, tile_of, turned
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
    i_task, i_g = tl.program_id(0).to(tl.int64) // G, tl.program_id(0).to(tl.int64) % G
    task_ptr = tasks_ptr + i_task * 10
    row, num_rows = tl.load(task_ptr), tl.load(task_ptr + 1).to(tl.int32)
    last_key, slots_start = tl.load(task_ptr + 2).to(tl.int32), tl.load(task_ptr + 3)
    first_key, stop_key = tl.load(task_ptr + 4).to(tl.int32), tl.load(task_ptr + 5).to(tl.int32)
    partial, query_turn = tl.load(task_ptr + 6), tl.load(task_ptr + 7).to(tl.int32)
    key_turn, key_step = tl.load(task_ptr + 8).to(tl.int32), tl.load(task_ptr + 9).to(tl.int32)
    o_m, o_e = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_E)
    o_row = o_m // GROUP
    o_head = i_g * GROUP + o_m % GROUP
    m_m = o_row < num_rows
    m_me = m_m[:, None] & (o_e < E)[None, :]
    o_query = ((row + o_row) * query_stride + o_head * query_head_stride)[:, None]
    # of each dimension: the other one of its pair, the pair's angle, the sine's sign
    o_pair = tl.where(o_e < F, o_e + F, o_e - F)
    o_angle = tl.where(o_e < F, o_e, o_e - F)
    b_sign = tl.where(o_e < F, -1.0, 1.0)
    # [BM, BE]
    b_query = tl.load(query_ptr + o_query + o_e[None, :], m_me, other=0.0)
    b_query = turned(
        *(b_query, query_ptr, o_query + o_pair[None, :]),
        *(((query_turn + o_row) * F)[:, None] + o_angle[None, :], cos_ptr, sin_ptr),
        *(b_sign[None, :], m_m[:, None] & (o_e < 2 * F)[None, :]),
    )
    b_most, b_weight, b_sum = attend_keys(
        *(b_query, keys_ptr + i_g * keys_head_stride, values_ptr + i_g * values_head_stride),
        *(keys_stride, values_stride, slots_ptr + slots_start, first_key, stop_key, last_key),
        *(o_row, scale, None, None, 0, 0, cos_ptr, sin_ptr, key_turn, key_step),
        *(E, F, BLOCK_M, BLOCK_N, BLOCK_E, False, TURN_KEYS),
    )
    keep_rows(
        *(b_most, b_weight, b_sum, out_ptr, partial_ptr, weight_ptr, out_stride, out_head_stride),
        *(row, o_row, o_head, m_me, partial, i_g, G, E, BLOCK_M, BLOCK_E),
    )


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
    """As the reference, for up to 32 bits."""
    assert query_LQE.dtype != torch.float64, "the op's door keeps fp64 from here"
    if not runs:
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
    block_m, block_e = launch.block_m, max(16, next_power_of_2(E))
    tile = tile_of(block_m, block_e, query_LQE.dtype, query_LQE.device)
    partial = query_LQE.new_empty((launch.num_partials, G, block_m, E), dtype=torch.float32)
    weight = query_LQE.new_empty((launch.num_partials, G, 2, block_m), dtype=torch.float32)
    _attend_kernel[(len(launch.tasks) * G,)](
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
        BLOCK_N=tile.keys,
        BLOCK_E=block_e,
        num_warps=tile.warps,
        # pairs and angles of keys, on their way too, would not fit into shared memory
        num_stages=1 if turn_keys else tile.stages,
    )
    merge(launch, out_LQE, partial, weight, group, block_e)
