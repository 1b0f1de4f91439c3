"""Attention over slots, in Triton: all runs of a batch in one launch, two where keys are split.

The query heads of a key head stand as rows of one block.  Scores are taken to base 2 and the sum
over keys runs in order, block by block, so a run's bits follow from the run alone.  Keys that every
row of a task sees come first and take no mask; the rest are at the diagonal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.blocks import next_power_of_2
from hypic_sdk.kernels.kept import kept_for_same
from hypic_sdk.kernels.live_attention.table import AttentionLaunch, AttentionTable

PARTIALS_AT_ONCE = 32  # that a sum takes


class Tile(NamedTuple):
    """How a program goes over keys."""

    keys: int  # of a block
    warps: int
    stages: int  # blocks that are on their way or computed


# the best of some six each on one H200, Qwen3.5-35B-A3B (16 query heads, 2 key heads of 256), bf16
FEW = Tile(32, 4, 3)  # of up to 16 query heads a task: decode
SHORT = Tile(32, 8, 3)  # of runs of up to 256 rows
LONG = Tile(64, 8, 2)
_WIDE_KEYS = 16  # of a block in fp32, whose products take no matrix unit
_FEW_HEADS = 16
_LARGE_SUM = 16384  # numbers of a task's sum; fewer are no work for more than 4 warps
_OVERHEAD_BYTES = 4096  # of shared memory, besides a program's queries, keys and values


class Merged(Protocol):
    """A launch whose rows may be in parts."""

    @property
    def merges(self) -> torch.Tensor:
        """[merges, 4] int64."""
        ...


@triton.jit
def turned(b_raw, ptr, o_at, o_table, cos_ptr, sin_ptr, b_sign, m_turned):
    """A block rotated: `o_at` the other dimension of each pair, `o_table` the pair's angle."""
    b_pair = tl.load(ptr + o_at, m_turned, other=0.0)
    b_cos = tl.load(cos_ptr + o_table, m_turned, other=1.0)
    b_sin = tl.load(sin_ptr + o_table, m_turned, other=0.0) * b_sign
    return (b_raw.to(tl.float32) * b_cos + b_pair.to(tl.float32) * b_sin).to(b_raw.dtype)


@triton.jit
def _see_block(
    b_query, b_key, b_value, b_most, b_weight, b_sum, o_n, stop_key, b_last, scale,
    MASKED: tl.constexpr,
):  # fmt: skip
    """One block of keys [BE, BN] and values [BN, BE]; row i sees keys up to b_last[i]."""
    # [BM, BN]
    b_score = tl.dot(b_query, b_key, input_precision="ieee")
    if MASKED:
        seen = (o_n < stop_key)[None, :] & (o_n[None, :] <= b_last[:, None])
        b_score = tl.where(seen, b_score, float("-inf"))
    # scale is positive, so the greatest stays the greatest, and scaling is one with subtracting
    b_new_most = tl.maximum(b_most, tl.max(b_score, 1) * scale)
    b_base = b_new_most
    if MASKED:
        # a row that has seen nothing yet: 0 instead of -inf, so that no inf - inf arises
        b_base = tl.where(b_new_most == float("-inf"), 0.0, b_new_most)
    b_weights = tl.exp2(b_score * scale - b_base[:, None])
    b_shrink = tl.exp2(b_most - b_base)
    b_weight = b_weight * b_shrink + tl.sum(b_weights, 1)
    b_sum = b_sum * b_shrink[:, None]
    b_sum = tl.dot(b_weights.to(b_value.dtype), b_value, acc=b_sum, input_precision="ieee")
    return b_new_most, b_weight, b_sum


@triton.jit
def _read_block(
    keys_ptr, values_ptr, keys_stride, values_stride, b_slot, m_n,
    cos_ptr, sin_ptr, o_turn,
    E: tl.constexpr, F: tl.constexpr, BLOCK_E: tl.constexpr,
    TURN_KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Keys [BE, BN] and values [BN, BE] of some slots; where MASKED, of those in `m_n`."""
    o_e = tl.arange(0, BLOCK_E)
    o_key, o_value = b_slot[None, :] * keys_stride, b_slot[:, None] * values_stride
    if MASKED:
        m_en = (o_e < E)[:, None] & m_n[None, :]
        b_key = tl.load(keys_ptr + o_key + o_e[:, None], m_en, other=0.0)
        m_ne = m_n[:, None] & (o_e < E)[None, :]
        b_value = tl.load(values_ptr + o_value + o_e[None, :], m_ne, other=0.0)
    elif E == BLOCK_E:
        b_key = tl.load(keys_ptr + o_key + o_e[:, None])
        b_value = tl.load(values_ptr + o_value + o_e[None, :])
    else:
        b_key = tl.load(keys_ptr + o_key + o_e[:, None], (o_e < E)[:, None], other=0.0)
        b_value = tl.load(values_ptr + o_value + o_e[None, :], (o_e < E)[None, :], other=0.0)
    if TURN_KEYS:
        # of each dimension: the other one of its pair, the pair's angle, the sine's sign
        o_pair = tl.where(o_e < F, o_e + F, o_e - F)
        o_angle = tl.where(o_e < F, o_e, o_e - F)
        b_sign = tl.where(o_e < F, -1.0, 1.0)
        m_turned = (o_e < 2 * F)[:, None] & m_n[None, :]
        b_key = turned(
            b_key, keys_ptr, o_key + o_pair[:, None],
            (o_turn * F)[None, :] + o_angle[:, None],
            cos_ptr, sin_ptr, b_sign[:, None], m_turned,
        )  # fmt: skip
    return b_key, b_value


@triton.jit
def attend_keys(
    b_query,  # [BM, BE]
    keys_ptr,  # of the key head, as are values
    values_ptr,
    keys_stride,
    values_stride,
    slots_ptr,  # of key 0
    first_key,  # int32, as all numbers of keys
    stop_key,
    last_key,  # that row 0 sees; row i sees i more
    o_row,  # [BM]
    scale,  # times log2(e)
    key_rows,  # descriptors of [slots, G * E], or None
    value_rows,
    first_slot,  # of key 0, where they are given
    column,
    cos_ptr,  # [positions, F] fp32, or None
    sin_ptr,
    key_turn,  # the angle's position for key 0, and ..
    key_step,  # .. for each further key
    E: tl.constexpr,
    F: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BY_RANGE: tl.constexpr,
    TURN_KEYS: tl.constexpr,
):
    """Keys [first_key, stop_key): greatest scores, weights and sums of the rows, not divided."""
    # [BM]
    b_most = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    b_weight = tl.zeros([BLOCK_M], dtype=tl.float32)
    # [BM, BE]
    b_sum = tl.zeros([BLOCK_M, BLOCK_E], dtype=tl.float32)
    b_last = last_key + o_row
    o_block = tl.arange(0, BLOCK_N)
    common = tl.maximum(tl.minimum(stop_key, last_key + 1) - first_key, 0)
    full_stop = first_key + common // BLOCK_N * BLOCK_N
    if BY_RANGE:
        for i_n in range(first_key, full_stop, BLOCK_N):
            b_key = key_rows.load([first_slot + i_n, column]).T
            b_value = value_rows.load([first_slot + i_n, column])
            b_most, b_weight, b_sum = _see_block(
                *(b_query, b_key, b_value, b_most, b_weight, b_sum),
                *(o_block + i_n, stop_key, b_last, scale, False),
            )
    else:
        # [BN]: slots are read a block ahead, so that keys are on their way while others are
        # computed
        b_next_slot = tl.load(
            slots_ptr + first_key + o_block, first_key + o_block < stop_key, other=0
        )
        for i_n in range(first_key, full_stop, BLOCK_N):
            o_n = i_n + o_block
            b_slot = b_next_slot
            b_next_slot = tl.load(slots_ptr + o_n + BLOCK_N, o_n + BLOCK_N < stop_key, other=0)
            b_key, b_value = _read_block(
                *(keys_ptr, values_ptr, keys_stride, values_stride, b_slot, o_n < stop_key),
                *(cos_ptr, sin_ptr, key_turn + o_n * key_step, E, F, BLOCK_E, TURN_KEYS, False),
            )
            b_most, b_weight, b_sum = _see_block(
                *(b_query, b_key, b_value, b_most, b_weight, b_sum),
                *(o_n, stop_key, b_last, scale, False),
            )
    # one or two blocks as a rule
    for i_n in tl.range(full_stop, stop_key, BLOCK_N, num_stages=1):
        o_n = i_n + o_block
        m_n = o_n < stop_key
        if BY_RANGE:
            b_slot = (first_slot + o_n).to(tl.int64)
        else:
            b_slot = tl.load(slots_ptr + o_n, m_n, other=0)
        b_key, b_value = _read_block(
            *(keys_ptr, values_ptr, keys_stride, values_stride, b_slot, m_n),
            *(cos_ptr, sin_ptr, key_turn + o_n * key_step, E, F, BLOCK_E, TURN_KEYS, True),
        )
        b_most, b_weight, b_sum = _see_block(
            *(b_query, b_key, b_value, b_most, b_weight, b_sum),
            *(o_n, stop_key, b_last, scale, True),
        )
    return b_most, b_weight, b_sum


@triton.jit
def keep_rows(
    b_most, b_weight, b_sum,
    out_ptr, partial_ptr, weight_ptr, out_stride, out_head_stride,
    row, o_row, o_head, m_me, partial, i_g,
    G: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """What a task found: a part, to be summed, or its rows' output."""
    o_m, o_e = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_E)
    if partial >= 0:
        o_part = (partial * G + i_g) * BLOCK_M
        tl.store(partial_ptr + (o_part + o_m)[:, None] * E + o_e[None, :], b_sum, m_me)
        tl.store(weight_ptr + 2 * o_part + o_m, b_most)
        tl.store(weight_ptr + 2 * o_part + BLOCK_M + o_m, b_weight)
    else:
        o_out = (row + o_row) * out_stride + o_head * out_head_stride
        b_out = (b_sum / b_weight[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + o_out[:, None] + o_e[None, :], b_out, m_me)


@triton.jit
def _attend_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    key_rows,
    value_rows,
    origin_ptr,  # from which a run's slots are counted
    tasks_ptr,  # [tasks, 8]
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
    BY_RANGE: tl.constexpr,
):
    # heads of a task side by side: their keys lie side by side too
    i_task, i_g = tl.program_id(0).to(tl.int64) // G, tl.program_id(0).to(tl.int64) % G
    task_ptr = tasks_ptr + i_task * 8
    row, num_rows = tl.load(task_ptr), tl.load(task_ptr + 1).to(tl.int32)
    if num_rows == 0:  # left over: nobody's
        return
    position, slots_start = tl.load(task_ptr + 2).to(tl.int32), tl.load(task_ptr + 3)
    first_key, stop_key = tl.load(task_ptr + 4).to(tl.int32), tl.load(task_ptr + 5).to(tl.int32)
    partial, first_slot = tl.load(task_ptr + 6), tl.load(task_ptr + 7).to(tl.int32)
    o_m, o_e = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_E)
    o_row = o_m // GROUP
    o_head = i_g * GROUP + o_m % GROUP
    m_me = (o_row < num_rows)[:, None] & (o_e < E)[None, :]
    o_query = (row + o_row) * query_stride + o_head * query_head_stride
    # [BM, BE]
    b_query = tl.load(query_ptr + o_query[:, None] + o_e[None, :], m_me, other=0.0)
    b_most, b_weight, b_sum = attend_keys(
        *(b_query, keys_ptr + i_g * keys_head_stride, values_ptr + i_g * values_head_stride),
        *(keys_stride, values_stride, origin_ptr + slots_start, first_key, stop_key, position),
        *(o_row, scale, key_rows, value_rows, first_slot, (i_g * E).to(tl.int32)),
        *(None, None, 0, 0, E, 0, BLOCK_M, BLOCK_N, BLOCK_E, BY_RANGE, False),
    )
    keep_rows(
        *(b_most, b_weight, b_sum, out_ptr, partial_ptr, weight_ptr, out_stride, out_head_stride),
        *(row, o_row, o_head, m_me, partial, i_g, G, E, BLOCK_M, BLOCK_E),
    )


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
    """As the reference, for up to 32 bits."""
    assert query_LQE.dtype != torch.float64, "the op's door keeps fp64 from here"
    if not isinstance(runs, AttentionTable) and not runs:
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


def tile_of(
    block_m: int, block_e: int, dtype: torch.dtype, device: torch.device, *, is_long: bool = False
) -> Tile:
    """Of tasks of `block_m` query heads, in shared memory that the device has."""
    if dtype == torch.float32:
        return Tile(_WIDE_KEYS, 8 if block_m * block_e >= _LARGE_SUM else 4, 1)
    tile = LONG if is_long else FEW if block_m <= _FEW_HEADS else SHORT
    if block_m * block_e < _LARGE_SUM:
        tile = tile._replace(warps=min(4, tile.warps))
    return _fitting(block_m, block_e, dtype.itemsize, tile, device)


@functools.lru_cache(maxsize=64)
def _fitting(block_m: int, block_e: int, itemsize: int, tile: Tile, device: torch.device) -> Tile:
    """Half as many keys a block, and half again, until a program fits the device's memory."""
    if device.type != "cuda":
        return tile
    there = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    row_bytes = block_e * itemsize
    keys = tile.keys
    while keys > 16 and (block_m + 2 * tile.stages * keys) * row_bytes + _OVERHEAD_BYTES > there:
        keys //= 2
    return tile._replace(keys=keys)


def _rows_of(slab_PGE: torch.Tensor, block_n: int, block_e: int) -> TensorDescriptor | None:
    """Rows of all heads as a device copies them by itself, or nothing where they do not fit."""
    P, G, E = slab_PGE.shape
    is_able = slab_PGE.device.type != "cuda" or _copies_tiles(slab_PGE.device)
    step, head_step, _ = slab_PGE.stride()
    lies = E == block_e and (G == 1 or head_step == E) and slab_PGE.data_ptr() % 16 == 0
    if not is_able or not lies or step * slab_PGE.itemsize % 16 or P >= 2**31:
        return None
    rows = slab_PGE.as_strided((P, G * E), (step, 1))
    return TensorDescriptor.from_tensor(rows, [block_n, E])


@functools.cache
def _copies_tiles(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


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
    block_m, block_e = launch.block_m, max(16, next_power_of_2(E))
    assert scale > 0, "the greatest score is taken before scaling"
    dtype, device = query_LQE.dtype, query_LQE.device
    tile = tile_of(block_m, block_e, dtype, device, is_long=launch.is_long)
    key_rows, value_rows = None, None
    if launch.has_ranges:
        key_rows, value_rows = (_rows_of(x, tile.keys, block_e) for x in (keys_PGE, values_PGE))
    by_range = key_rows is not None and value_rows is not None
    partial = query_LQE.new_empty((launch.num_partials, G, block_m, E), dtype=torch.float32)
    weight = query_LQE.new_empty((launch.num_partials, G, 2, block_m), dtype=torch.float32)
    _attend_kernel.run(
        query_LQE,
        keys_PGE,
        values_PGE,
        key_rows if by_range else None,
        value_rows if by_range else None,
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
        grid=(launch.tasks.shape[0] * G,),
        warmup=False,
        G=G,
        GROUP=group,
        E=E,
        BLOCK_M=block_m,
        BLOCK_N=tile.keys,
        BLOCK_E=block_e,
        BY_RANGE=by_range,
        num_warps=tile.warps,
        num_stages=tile.stages,
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
    if not launch.merges.shape[0]:
        return
    _, G, block_m, E = partial.shape
    _merge_kernel.run(
        launch.merges,
        out_LQE,
        partial,
        weight,
        *out_LQE.stride()[:2],
        grid=(launch.merges.shape[0], G * group),
        warmup=False,
        G=G,
        GROUP=group,
        E=E,
        BLOCK_M=block_m,
        BLOCK_E=block_e,
        BLOCK_P=PARTIALS_AT_ONCE,
        num_warps=4,
    )
