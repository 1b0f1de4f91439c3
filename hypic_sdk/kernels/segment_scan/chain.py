"""The walk over a segment's tiles: a block of columns of the state, or of the transition.

States are in fp32; as operands of products they are fp16, which has the range for it only because
a walk takes them, and the values, in units of a power of two near the largest value so far (or
what is left of it).  With unit keys and b in [0, 1] no column of a state is then longer than twice
the root of the tokens so far; numbers below 2^-14 lose bits, down to the 2^-25 that fp32 would not
have either beside the largest.  A transition's columns are not longer than the decay so far.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2
from hypic_sdk.kernels.scan_inputs import ScanInputs
from hypic_sdk.kernels.segment_scan.prepare import Prepared

FIELDS = 11  # of a run, in its table
# fixed: a segment's bits must not hang on what is beside it
_BLOCK = 64  # columns of a walk; of 32, one with Triton 3.6 ended in an illegal access on a device
_WARPS = 4
# two programs that wait share a multiprocessor where one that loads ahead has no room beside it
_STATE_STAGES = 2
_TRANSITION_STAGES = 2


@triton.jit
def power_of_two(x):
    """The largest that is not larger than `x`, from 2^-100 on: to divide by it is exact."""
    return (tl.maximum(x, 2.0**-100).to(tl.int32, bitcast=True) & 0x7F800000).to(
        tl.float32, bitcast=True
    )


@triton.jit
def _states_kernel(
    query_ptr,
    key_ptr,
    solve_ptr,
    score_ptr,
    start_ptr,
    end_ptr,
    whole_ptr,
    largest_ptr,
    value_ptr,
    tiles_ptr,
    runs_ptr,  # [runs, NUM_FIELDS]
    states_ptr,
    work_ptr,
    ends_ptr,  # out, [runs, H, K, V]: states where interiors end
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
    NUM_FIELDS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    operand: tl.constexpr = solve_ptr.dtype.element_ty
    i_run, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    run_ptr = runs_ptr + i_run * NUM_FIELDS
    state_slot, work_slot = tl.load(run_ptr + 4), tl.load(run_ptr + 5)
    resumes, unfinished = tl.load(run_ptr + 6), tl.load(run_ptr + 10)
    opens, closes = tl.load(run_ptr + 8), tl.load(run_ptr + 9)
    o_c, o_k = tl.arange(0, C), tl.arange(0, BLOCK_K)
    o_v = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    m_k, m_v = o_k < K, o_v < V
    o_kv = o_k[:, None] * V + o_v[None, :]
    m_kv = m_k[:, None] & m_v[None, :]
    o_ck = o_c[:, None] * K + o_k[None, :]
    o_cc = o_c[:, None] * C + o_c[None, :]
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
        start, stop = tl.load(run_ptr + i_part), tl.load(run_ptr + i_part + 1)
        for i_t in range(start, stop):
            i_out = i_t * H + i_h
            i_key = (i_t * (H // GROUPS) + i_h // GROUPS) * C * K
            row, count = tl.load(tiles_ptr + i_t * 2), tl.load(tiles_ptr + i_t * 2 + 1)
            m_cv = (o_c < count)[:, None] & m_v[None, :]
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
            # [C, C]
            b_solve = tl.load(solve_ptr + i_out * C * C + o_cc)
            # [C, BV]
            b_value = tl.load(value_ptr + row * value_stride + o_value, m_cv, other=0)
            b_operand = b_state.to(operand)
            # [C, BK] and [C, C]
            b_query = tl.load(query_ptr + i_key + o_ck, m_k[None, :], other=0)
            b_score = tl.load(score_ptr + i_out * C * C + o_cc)
            b_kept = tl.dot(b_key, b_operand, input_precision="ieee")
            b_missing = b_value.to(tl.float32) * (1.0 / unit) - b_kept * b_start[:, None]
            b_pseudo = tl.dot(b_solve, b_missing.to(operand), input_precision="ieee")
            b_out = tl.dot(b_query, b_operand, input_precision="ieee") * b_start[:, None]
            b_out = tl.dot(b_score, b_pseudo.to(operand), acc=b_out, input_precision="ieee")
            b_out = (b_out * (scale * unit)).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + row * out_stride + o_out, b_out, m_cv)
            b_late = (b_pseudo * b_end[:, None]).to(operand)
            b_state = tl.dot(tl.trans(b_key), b_late, acc=b_state * whole, input_precision="ieee")
        to_ptr, is_kept = work_ptr, unfinished
        if i_part == 0:
            to_ptr, is_kept = states_ptr, opens
        if i_part == 1:
            to_ptr, is_kept = ends_ptr, closes
        if is_kept > 0:
            # zero, which the compiler does not know: else it would hold offsets over all loops
            zero = tl.minimum(stop, 0).to(tl.int32)
            o_to = (zero + o_k)[:, None] * V + o_v[None, :]
            tl.store(to_ptr + o_to, b_state * unit, m_kv)


@triton.jit
def _transitions_kernel(
    key_ptr,
    solve_ptr,
    start_ptr,
    end_ptr,
    whole_ptr,
    runs_ptr,  # [runs, NUM_FIELDS]
    work_ptr,
    found_ptr,  # out, [runs, H, K, K]
    work_stride,
    H: tl.constexpr,
    GROUPS: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    NUM_FIELDS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    operand: tl.constexpr = solve_ptr.dtype.element_ty
    i_run, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    run_ptr = runs_ptr + i_run * NUM_FIELDS
    interior_first, interior_last = tl.load(run_ptr + 1), tl.load(run_ptr + 2)
    work_slot, inside = tl.load(run_ptr + 5), tl.load(run_ptr + 7)
    opens, closes = tl.load(run_ptr + 8), tl.load(run_ptr + 9)
    unfinished = tl.load(run_ptr + 10)
    o_c, o_k = tl.arange(0, C), tl.arange(0, BLOCK_K)
    o_x = tl.program_id(2) * BLOCK_X + tl.arange(0, BLOCK_X)
    m_k = o_k < K
    o_kx = o_k[:, None] * K + o_x[None, :]
    m_kx = m_k[:, None] & (o_x < K)[None, :]
    o_ck = o_c[:, None] * K + o_k[None, :]
    o_cc = o_c[:, None] * C + o_c[None, :]
    work_ptr += work_slot * work_stride + i_h * K * K
    # [BK, BX]
    b_state = tl.where((o_k[:, None] == o_x[None, :]) & m_kx, 1.0, 0.0)
    if inside > 0:
        b_state = tl.load(work_ptr + o_kx, m_kx, other=0)
    largest = tl.max(tl.max(tl.abs(b_state), 1), 0)
    unit = power_of_two(largest)
    b_state *= 1.0 / unit
    for i_t in range(interior_first, interior_last):
        i_out = i_t * H + i_h
        i_key = (i_t * (H // GROUPS) + i_h // GROUPS) * C * K
        # [C]
        b_start = tl.load(start_ptr + i_out * C + o_c)
        b_end = tl.load(end_ptr + i_out * C + o_c)
        whole = tl.load(whole_ptr + i_out)
        before, unit = unit, power_of_two(largest)
        largest *= whole
        # [C, BK]
        b_key = tl.load(key_ptr + i_key + o_ck, m_k[None, :], other=0)
        # [C, C]
        b_solve = tl.load(solve_ptr + i_out * C * C + o_cc)
        if before != unit:
            b_state *= before / unit
        # [C, BX]
        b_kept = tl.dot(b_key, b_state.to(operand), input_precision="ieee")
        b_missing = (b_kept * -b_start[:, None]).to(operand)
        b_pseudo = tl.dot(b_solve, b_missing, input_precision="ieee")
        b_late = (b_pseudo * b_end[:, None]).to(operand)
        b_state = tl.dot(tl.trans(b_key), b_late, acc=b_state * whole, input_precision="ieee")
    b_state *= unit
    if closes > 0:
        tl.store(found_ptr + (i_run * H + i_h) * K * K + o_kx, b_state, m_kx)
    if (unfinished > 0) & ((opens > 0) | (inside > 0)):
        tl.store(work_ptr + o_kx, b_state, m_kx)


def walk_states(
    prepared: Prepared,
    inputs: ScanInputs,
    tables: tuple[torch.Tensor, torch.Tensor],
    states_SHKV: torch.Tensor,
    work_states: torch.Tensor,
    ends: torch.Tensor,
    out_LHV: torch.Tensor,
) -> None:
    """Outputs of all rows, states where interiors begin and where they end.

    Args:
        tables: of tiles [N, 2] and of runs [runs, FIELDS], as `kernel` makes them.
        states_SHKV: fp32; the state after a head seam goes to row `state_slot`.
        work_states: [work rows, H, K, V] fp32, of runs that go on or are to.
        ends: [runs, H, K, V] fp32.
    """
    _, H, K, V = states_SHKV.shape
    assert states_SHKV[0].is_contiguous(), "rows of the state slab are contiguous"
    assert work_states[0].is_contiguous(), "rows of the work slab are contiguous"
    assert out_LHV.is_contiguous(), "outputs are contiguous"
    value = inputs.value if inputs.value.stride(-1) == 1 else inputs.value.contiguous()
    tiles_table, runs_table = tables
    _states_kernel.run(
        prepared.unit_query,
        prepared.unit_key,
        prepared.solve,
        prepared.score,
        prepared.start,
        prepared.end,
        prepared.whole,
        prepared.largest,
        value,
        tiles_table,
        runs_table,
        states_SHKV,
        work_states,
        ends,
        out_LHV,
        *value.stride()[:2],
        states_SHKV.stride(0),
        work_states.stride(0),
        out_LHV.stride(0),
        inputs.scale,
        grid=(runs_table.shape[0], H, cdiv(V, _BLOCK)),
        warmup=False,
        H=H,
        GROUPS=H // prepared.unit_key.shape[1],
        K=K,
        V=V,
        C=prepared.solve.shape[-1],
        NUM_FIELDS=FIELDS,
        BLOCK_K=max(16, next_power_of_2(K)),
        BLOCK_V=_BLOCK,
        num_warps=_WARPS,
        num_stages=_STATE_STAGES,
    )


def walk_transitions(
    prepared: Prepared,
    runs_table: torch.Tensor,
    work_transitions: torch.Tensor,
    found: torch.Tensor,
) -> None:
    """The transitions of interiors that end here, and in their work rows those that do not.

    Args:
        work_transitions: [work rows, H, K, K] fp32.
        found: [runs, H, K, K] fp32.
    """
    _, H, K, _ = found.shape
    assert work_transitions[0].is_contiguous(), "rows of the work slab are contiguous"
    _transitions_kernel.run(
        prepared.unit_key,
        prepared.solve,
        prepared.start,
        prepared.end,
        prepared.whole,
        runs_table,
        work_transitions,
        found,
        work_transitions.stride(0),
        grid=(runs_table.shape[0], H, cdiv(K, _BLOCK)),
        warmup=False,
        H=H,
        GROUPS=H // prepared.unit_key.shape[1],
        K=K,
        C=prepared.solve.shape[-1],
        NUM_FIELDS=FIELDS,
        BLOCK_K=max(16, next_power_of_2(K)),
        BLOCK_X=_BLOCK,
        num_warps=_WARPS,
        num_stages=_TRANSITION_STAGES,
    )
