"""The walk over a segment's tiles: a block of columns of the state, or of the transition.

Both kinds of blocks go through one launch, those of a head beside each other: what they read of a
tile comes from memory once.  Which rows a tile has follows from its number: a load that waited for
another could not be on its way a tile ahead.

States are in fp32; as operands of products they are fp16, which has the range for it only because
a walk takes them, and the values, in units of a power of two near the largest value so far (or
what is left of it).  With unit keys and b in [0, 1] no column of a state is then longer than twice
the root of the tokens so far; numbers below 2^-14 lose bits, down to the 2^-25 that fp32 would not
have either beside the largest.  A transition's columns are not longer than the decay so far.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2
from hypic_sdk.kernels.scan_inputs import ScanInputs
from hypic_sdk.kernels.segment_scan.prepare import Prepared

FIELDS = 15  # of a run, in its table
# columns of a program; fixed: a segment's bits must not hang on what is beside it
# (of 32, one with Triton 3.6 ended in an illegal access on a device)
_BLOCK = 64
_WARPS = 4
# how far ahead a program loads; no bits hang on it.  Programs that have a multiprocessor each load
# two tiles ahead, in 182 KB; of more, two share one (64 KB each), and load while the other computes
_STAGES_ALONE = 3
_STAGES = 1
_ALONE_BYTES = 200 * 1024  # of shared memory, from which on two tiles ahead fit
_LARGEST_KEY_ALONE = 128


@triton.jit
def power_of_two(x):
    """The largest that is not larger than `x`, from 2^-100 on: to divide by it is exact."""
    return (tl.maximum(x, 2.0**-100).to(tl.int32, bitcast=True) & 0x7F800000).to(
        tl.float32, bitcast=True
    )


@triton.jit
def _halves(b_stacked, C: tl.constexpr, BLOCK_X: tl.constexpr):
    """[2C, BX] as its first and its last C rows."""
    return tl.split(tl.permute(tl.reshape(b_stacked, [2, C, BLOCK_X]), (1, 2, 0)))


@triton.jit
def _walk_states(
    i_run,
    i_h,
    i_block,
    query_ptr,
    key_ptr,
    ways_ptr,
    start_ptr,
    end_ptr,
    whole_ptr,
    largest_ptr,
    value_ptr,
    run_ptr,
    states_ptr,
    work_ptr,
    ends_ptr,
    out_ptr,
    value_stride,
    value_head_stride,
    states_stride,
    work_stride,
    out_stride,
    scale,
    H: tl.constexpr,
    GROUPS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Outputs of all rows, and the states that are kept, of a block of columns."""
    operand: tl.constexpr = ways_ptr.dtype.element_ty
    state_slot, work_slot = tl.load(run_ptr + 8), tl.load(run_ptr + 9)
    resumes, unfinished = tl.load(run_ptr + 10), tl.load(run_ptr + 14)
    opens, closes = tl.load(run_ptr + 12), tl.load(run_ptr + 13)
    o_c, o_k, o_2c = tl.arange(0, C), tl.arange(0, BLOCK_K), tl.arange(0, 2 * C)
    o_v = i_block * BLOCK_V + tl.arange(0, BLOCK_V)
    m_k, m_v = o_k < K, o_v < V
    o_kv = o_k[:, None] * V + o_v[None, :]
    m_kv = m_k[:, None] & m_v[None, :]
    o_ck = o_c[:, None] * K + o_k[None, :]
    o_way = o_2c[:, None] * C + o_c[None, :]
    o_value = o_c[:, None] * value_stride + o_v[None, :]
    o_out = o_c[:, None] * out_stride + o_v[None, :]
    states_ptr += state_slot * states_stride + i_h * K * V
    work_ptr += work_slot * work_stride + i_h * K * V
    ends_ptr += (i_run * H + i_h) * K * V
    value_ptr += i_h * value_head_stride
    out_ptr += i_h * V
    # [BK, BV]
    b_state = tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32)
    if resumes > 0:
        b_state = tl.load(work_ptr + o_kv, m_kv, other=0)
    largest = tl.max(tl.max(tl.abs(b_state), 1), 0)
    unit = power_of_two(largest)
    b_state *= 1.0 / unit
    for i_part in range(3):  # head seam, interior, tail seam
        first = tl.load(run_ptr + i_part).to(tl.int32)
        last = tl.load(run_ptr + i_part + 1).to(tl.int32)
        first_row, end_row = tl.load(run_ptr + 4 + i_part), tl.load(run_ptr + 5 + i_part)
        for i_t in range(first, last):
            row = first_row + (i_t - first) * C
            i_out = i_t * H + i_h
            i_key = (i_t * (H // GROUPS) + i_h // GROUPS) * C * K
            m_cv = (o_c < end_row - row)[:, None] & m_v[None, :]
            # [C]
            b_start = tl.load(start_ptr + i_out * C + o_c)
            b_end = tl.load(end_ptr + i_out * C + o_c)
            whole = tl.load(whole_ptr + i_out)
            largest_value = tl.load(largest_ptr + i_out)
            before, unit = unit, power_of_two(tl.maximum(largest, largest_value))
            if before != unit:
                b_state *= before / unit
            largest = tl.maximum(largest * whole, largest_value)
            # [C, BK]
            b_key = tl.load(key_ptr + i_key + o_ck, m_k[None, :], other=0)
            b_query = tl.load(query_ptr + i_key + o_ck, m_k[None, :], other=0)
            # [C, BV]
            b_value = tl.load(value_ptr + row * value_stride + o_value, m_cv, other=0)
            # [2C, C]
            b_ways = tl.load(ways_ptr + i_out * 2 * C * C + o_way)
            b_operand = b_state.to(operand)
            b_kept = tl.dot(b_key, b_operand, input_precision="ieee")
            b_read = tl.dot(b_query, b_operand, input_precision="ieee")
            # which products are fused is said, where a compiler might choose by what is beside them
            b_wanted = b_value.to(tl.float32) * (1.0 / unit)
            b_missing = tl.fma(b_kept, -b_start[:, None], b_wanted)
            b_both = tl.dot(b_ways, b_missing.to(operand), input_precision="ieee")
            b_pseudo, b_local = _halves(b_both, C, BLOCK_V)
            b_late = (b_pseudo * b_end[:, None]).to(operand)
            b_state = tl.dot(tl.trans(b_key), b_late, acc=b_state * whole, input_precision="ieee")
            b_out = tl.fma(b_read, b_start[:, None], b_local) * (scale * unit)
            tl.store(out_ptr + row * out_stride + o_out, b_out.to(out_ptr.dtype.element_ty), m_cv)
        to_ptr, is_kept = work_ptr, unfinished
        if i_part == 0:
            to_ptr, is_kept = states_ptr, opens
        if i_part == 1:
            to_ptr, is_kept = ends_ptr, closes
        if is_kept > 0:
            # zero, which the compiler does not know: else it would hold offsets over all loops
            zero = tl.minimum(last, 0)
            o_to = (zero + o_k)[:, None] * V + o_v[None, :]
            tl.store(to_ptr + o_to, b_state * unit, m_kv)


@triton.jit
def _walk_transition(
    i_run,
    i_h,
    i_block,
    key_ptr,
    ways_ptr,
    start_ptr,
    end_ptr,
    whole_ptr,
    run_ptr,
    work_ptr,
    found_ptr,
    work_stride,
    H: tl.constexpr,
    GROUPS: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    """The transition of an interior that ends here, or in its work row so far: some columns."""
    operand: tl.constexpr = ways_ptr.dtype.element_ty
    first, last = tl.load(run_ptr + 1).to(tl.int32), tl.load(run_ptr + 2).to(tl.int32)
    work_slot, inside = tl.load(run_ptr + 9), tl.load(run_ptr + 11)
    opens, closes = tl.load(run_ptr + 12), tl.load(run_ptr + 13)
    unfinished = tl.load(run_ptr + 14)
    o_c, o_k = tl.arange(0, C), tl.arange(0, BLOCK_K)
    o_x = i_block * BLOCK_X + tl.arange(0, BLOCK_X)
    m_k = o_k < K
    o_kx = o_k[:, None] * K + o_x[None, :]
    m_kx = m_k[:, None] & (o_x < K)[None, :]
    o_ck = o_c[:, None] * K + o_k[None, :]
    o_way = o_c[:, None] * C + o_c[None, :]
    work_ptr += work_slot * work_stride + i_h * K * K
    # [BK, BX]
    b_state = tl.where((o_k[:, None] == o_x[None, :]) & m_kx, 1.0, 0.0)
    if inside > 0:
        b_state = tl.load(work_ptr + o_kx, m_kx, other=0)
    largest = tl.max(tl.max(tl.abs(b_state), 1), 0)
    unit = power_of_two(largest)
    b_state *= 1.0 / unit
    for i_t in range(first, last):
        i_out = i_t * H + i_h
        i_key = (i_t * (H // GROUPS) + i_h // GROUPS) * C * K
        # [C]
        b_start = tl.load(start_ptr + i_out * C + o_c)
        b_end = tl.load(end_ptr + i_out * C + o_c)
        whole = tl.load(whole_ptr + i_out)
        # what leaves the tile is in the next one's unit: a factor of what is multiplied anyway, and
        # late rows are rounded beside what is left then
        largest *= whole
        before, unit = unit, power_of_two(largest)
        ratio = before / unit
        # [C, BK]
        b_key = tl.load(key_ptr + i_key + o_ck, m_k[None, :], other=0)
        # [C, C]
        b_solve = tl.load(ways_ptr + i_out * 2 * C * C + o_way)
        # [C, BX]
        b_read = tl.dot(b_key, b_state.to(operand), input_precision="ieee")
        b_missing = (b_read * -b_start[:, None]).to(operand)
        b_pseudo = tl.dot(b_solve, b_missing, input_precision="ieee")
        b_late = (b_pseudo * (b_end * ratio)[:, None]).to(operand)
        b_kept = b_state * (whole * ratio)
        b_state = tl.dot(tl.trans(b_key), b_late, acc=b_kept, input_precision="ieee")
    b_state *= unit
    if closes > 0:
        tl.store(found_ptr + (i_run * H + i_h) * K * K + o_kx, b_state, m_kx)
    if (unfinished > 0) & ((opens > 0) | (inside > 0)):
        tl.store(work_ptr + o_kx, b_state, m_kx)


@triton.jit
def _walk_kernel(
    query_ptr,
    key_ptr,
    ways_ptr,
    start_ptr,
    end_ptr,
    whole_ptr,
    largest_ptr,
    value_ptr,
    runs_ptr,  # [runs, NUM_FIELDS]
    states_ptr,
    work_ptr,
    work_transitions_ptr,
    ends_ptr,  # out, [runs, H, K, V]: states where interiors end
    found_ptr,  # out, [runs, H, K, K]: their transitions
    finite_ptr,  # out, [runs]: true until a pair is found not to be; or None
    out_ptr,
    value_stride,
    value_head_stride,
    states_stride,
    work_stride,
    work_transitions_stride,
    out_stride,
    scale,
    H: tl.constexpr,
    GROUPS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    NUM_FIELDS: tl.constexpr,
    STATE_BLOCKS: tl.constexpr,  # those of transitions stand behind them
    BLOCK_K: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    i_block = tl.program_id(0)
    i_h, i_run = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    run_ptr = runs_ptr + i_run * NUM_FIELDS
    if finite_ptr is not None and (i_block == 0) & (i_h == 0):
        tl.store(finite_ptr + i_run, True)
    if i_block < STATE_BLOCKS:
        _walk_states(
            i_run,
            i_h,
            i_block,
            query_ptr,
            key_ptr,
            ways_ptr,
            start_ptr,
            end_ptr,
            whole_ptr,
            largest_ptr,
            value_ptr,
            run_ptr,
            states_ptr,
            work_ptr,
            ends_ptr,
            out_ptr,
            value_stride,
            value_head_stride,
            states_stride,
            work_stride,
            out_stride,
            scale,
            H,
            GROUPS,
            K,
            V,
            C,
            BLOCK_K,
            BLOCK_X,
        )
    else:
        _walk_transition(
            i_run,
            i_h,
            i_block - STATE_BLOCKS,
            key_ptr,
            ways_ptr,
            start_ptr,
            end_ptr,
            whole_ptr,
            run_ptr,
            work_transitions_ptr,
            found_ptr,
            work_transitions_stride,
            H,
            GROUPS,
            K,
            C,
            BLOCK_K,
            BLOCK_X,
        )


class Interiors(NamedTuple):
    """What a walk finds of its runs' interiors, and where it goes on with their transitions."""

    ends: torch.Tensor  # out, [runs, H, K, V] fp32: states where interiors end
    found: torch.Tensor  # out, [runs, H, K, K] fp32: transitions of interiors that end
    finite: torch.Tensor  # out, [runs] bool: true, whatever is found
    work: torch.Tensor  # [work rows, H, K, K] fp32: transitions of interiors that go on or are to


def walk(
    prepared: Prepared,
    inputs: ScanInputs,
    runs_table: torch.Tensor,
    states_SHKV: torch.Tensor,
    work_states: torch.Tensor,
    out_LHV: torch.Tensor,
    interiors: Interiors | None,
) -> None:
    """Outputs of all rows, states where interiors begin and where they end, and transitions.

    Args:
        runs_table: [runs, FIELDS] int64, as `kernel` makes it.
        states_SHKV: fp32; the state after a head seam goes to row `state_slot`.
        work_states: [work rows, H, K, V] fp32, of runs that go on or are to.
        interiors: none: no run begins one, or ends one, or is inside of one.
    """
    (num_runs, _), (_, H, K, V) = runs_table.shape, states_SHKV.shape
    work_transitions = work_states if interiors is None else interiors.work
    for rows in (states_SHKV, work_states, work_transitions):
        assert rows[0].is_contiguous(), "rows of slabs are contiguous"
    assert out_LHV.is_contiguous(), "outputs are contiguous"
    value = inputs.value if inputs.value.stride(-1) == 1 else inputs.value.contiguous()
    state_blocks, block_k = cdiv(V, _BLOCK), max(16, next_power_of_2(K))
    blocks = state_blocks if interiors is None else state_blocks + cdiv(K, _BLOCK)
    _walk_kernel.run(
        prepared.unit_query,
        prepared.unit_key,
        prepared.ways,
        prepared.start,
        prepared.end,
        prepared.whole,
        prepared.largest,
        value,
        runs_table,
        states_SHKV,
        work_states,
        work_transitions,
        work_states if interiors is None else interiors.ends,
        work_states if interiors is None else interiors.found,
        None if interiors is None else interiors.finite,
        out_LHV,
        *value.stride()[:2],
        states_SHKV.stride(0),
        work_states.stride(0),
        work_transitions.stride(0),
        out_LHV.stride(0),
        inputs.scale,
        grid=(blocks, H, num_runs),
        warmup=False,
        H=H,
        GROUPS=H // prepared.unit_key.shape[1],
        K=K,
        V=V,
        C=prepared.ways.shape[-1],
        NUM_FIELDS=FIELDS,
        STATE_BLOCKS=state_blocks,
        BLOCK_K=block_k,
        BLOCK_X=_BLOCK,
        num_warps=_WARPS,
        num_stages=_stages(blocks * H * num_runs, block_k, value.device),
    )


def _stages(num_programs: int, block_k: int, device: torch.device) -> int:
    is_alone = num_programs <= _most_alone(device) and block_k <= _LARGEST_KEY_ALONE
    return _STAGES_ALONE if is_alone else _STAGES


@functools.cache
def _most_alone(device: torch.device) -> int:
    """Programs of a launch that have a multiprocessor each, with the memory to load ahead."""
    if device.type != "cuda":
        return 0
    there = torch.cuda.get_device_properties(device)
    has_room = there.shared_memory_per_block_optin >= _ALONE_BYTES
    return there.multi_processor_count if has_room else 0
