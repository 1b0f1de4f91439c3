"""Decode rows on a GPU: sequences of a few rows and no gap, token by token.

A program has a block of columns of one head's state.  Moving the state is all that counts, so the
numbers of an item and the row that it starts with are on their way before they are needed: from
the table to the state's arrival a program waits twice, whatever the items are.

For the recurrences that `tiles` serves, whose other sequences go there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2
from hypic_sdk.kernels.delta_gates.kernel import gates_of
from hypic_sdk.kernels.live_scan.gates import Gates
from hypic_sdk.kernels.live_scan.plan import FIELDS
from hypic_sdk.kernels.scan_inputs import UNIT_EPS, ScanInputs

# columns of the state, and warps, of a program; fixed: a row's bits must not hang on its batch
BLOCK_V = 32
WARPS = 2
# registers of a thread; the best of nine such choices at 1, 32 and 120 sequences on an H200
MOST_REGISTERS: int | None = 168


@triton.jit
def _row(
    i_l,
    is_row,
    query_ptr,
    key_ptr,
    value_ptr,
    decay_ptr,
    erase_ptr,
    query_stride,
    key_stride,
    value_stride,
    decay_stride,
    erase_stride,
    o_k,
    o_v,
    K: tl.constexpr,
    V: tl.constexpr,
    HAS_DECAY: tl.constexpr,
):
    """Query, key [BK], value [BV], decay and strength, or logits, of a row of a head, or zeros."""
    m_k, m_v = o_k < tl.where(is_row, K, 0), o_v < tl.where(is_row, V, 0)
    b_key = tl.load(key_ptr + i_l * key_stride + o_k, m_k, other=0)
    b_query = tl.load(query_ptr + i_l * query_stride + o_k, m_k, other=0)
    b_value = tl.load(value_ptr + i_l * value_stride + o_v, m_v, other=0)
    strength = tl.load(erase_ptr + i_l * erase_stride, is_row, other=0)
    decay = strength
    if HAS_DECAY:
        decay = tl.load(decay_ptr + i_l * decay_stride, is_row, other=0)
    return b_query, b_key, b_value, decay, strength


@triton.jit
def _steps_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    decay_ptr,  # [L, H], read with HAS_DECAY only
    erase_ptr,  # [L, H]
    A_log_ptr,  # [H], read with LOGITS only
    bias_ptr,  # [H], the same
    states_ptr,
    work_ptr,  # [sequences, H, K, V]: states between launches
    out_ptr,
    launched_ptr,  # [launched, 3]: sequence, first and last row of the table
    table_ptr,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    decay_stride,
    erase_stride,
    states_stride,
    scale,
    H: tl.constexpr,
    GROUPS: tl.constexpr,  # state heads that share a key head
    K: tl.constexpr,
    V: tl.constexpr,
    EPS: tl.constexpr,
    HAS_DECAY: tl.constexpr,
    LOGITS: tl.constexpr,  # decays and strengths are still to be made
    NUM_FIELDS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    # blocks of one head's columns side by side: together they read whole pages of memory
    i_v, i_h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    launched_ptr += tl.program_id(2).to(tl.int64) * 3
    i_sequence = tl.load(launched_ptr)
    first, last = tl.load(launched_ptr + 1), tl.load(launched_ptr + 2)
    if first < last:
        o_k, o_v = tl.arange(0, BLOCK_K), i_v * BLOCK_V + tl.arange(0, BLOCK_V)
        m_v = o_v < V
        o_kv = o_k[:, None] * V + o_v[None, :]
        key_ptr += (i_h // GROUPS) * key_head_stride
        query_ptr += (i_h // GROUPS) * query_head_stride
        value_ptr += i_h * value_head_stride
        decay_ptr += i_h
        erase_ptr += i_h
        if LOGITS:
            A_log, bias = tl.load(A_log_ptr + i_h), tl.load(bias_ptr + i_h)
        states_ptr += i_h * K * V
        work_ptr += (i_sequence * H + i_h) * K * V
        # LOAD; no slot: zeros
        item_ptr = table_ptr + first * NUM_FIELDS
        slot = tl.load(item_ptr + 3)
        # behind the last item it is read once more
        item_ptr = table_ptr + tl.minimum(first + 1, last - 1) * NUM_FIELDS
        next_kind, next_slot = tl.load(item_ptr), tl.load(item_ptr + 3)
        next_start, next_stop = tl.load(item_ptr + 1), tl.load(item_ptr + 2)
        is_row = (next_kind == 1) & (next_start < next_stop)
        b_next_query, b_next_key, b_next_value, next_decay, next_strength = _row(
            next_start,
            is_row,
            query_ptr,
            key_ptr,
            value_ptr,
            decay_ptr,
            erase_ptr,
            query_stride,
            key_stride,
            value_stride,
            decay_stride,
            erase_stride,
            o_k,
            o_v,
            K,
            V,
            HAS_DECAY,
        )
        from_ptr = states_ptr + slot * states_stride
        if slot < -1:
            from_ptr = work_ptr
        # [BK, BV]: all of the state, or nothing of it
        m_from = (o_k < tl.where(slot != -1, K, 0))[:, None] & m_v[None, :]
        b_state = tl.load(from_ptr + o_kv, m_from, other=0)
        for i_item in range(first + 1, last):
            kind, slot, start, stop = next_kind, next_slot, next_start, next_stop
            item_ptr = table_ptr + tl.minimum(i_item + 1, last - 1) * NUM_FIELDS
            next_kind, next_slot = tl.load(item_ptr), tl.load(item_ptr + 3)
            next_start, next_stop = tl.load(item_ptr + 1), tl.load(item_ptr + 2)
            if kind == 1:  # RUN
                for i_l in range(start, stop):
                    b_key = b_next_key.to(tl.float32)
                    b_query = b_next_query.to(tl.float32)
                    b_write = b_next_value.to(tl.float32)
                    decay, strength = next_decay.to(tl.float32), next_strength.to(tl.float32)
                    if LOGITS:
                        decay, strength = gates_of(strength, decay, A_log, bias, tl.float32)
                    b_next_query, b_next_key, b_next_value, next_decay, next_strength = _row(
                        i_l + 1,
                        i_l + 1 < stop,
                        query_ptr,
                        key_ptr,
                        value_ptr,
                        decay_ptr,
                        erase_ptr,
                        query_stride,
                        key_stride,
                        value_stride,
                        decay_stride,
                        erase_stride,
                        o_k,
                        o_v,
                        K,
                        V,
                        HAS_DECAY,
                    )
                    b_key *= 1.0 / tl.sqrt(tl.sum(b_key * b_key, 0) + EPS)
                    b_query *= scale / tl.sqrt(tl.sum(b_query * b_query, 0) + EPS)
                    if HAS_DECAY:
                        b_state *= tl.exp(decay)
                    b_write = strength * (b_write - tl.sum(b_state * b_key[:, None], 0))
                    b_state += b_key[:, None] * b_write[None, :]
                    b_out = tl.sum(b_state * b_query[:, None], 0).to(out_ptr.dtype.element_ty)
                    tl.store(out_ptr + (i_l * H + i_h) * V + o_v, b_out, m_v)
            else:  # SAVE
                to_ptr = states_ptr + slot * states_stride
                if slot < -1:
                    to_ptr = work_ptr
                m_to = (o_k < tl.where(slot != -1, K, 0))[:, None] & m_v[None, :]
                tl.store(to_ptr + o_kv, b_state, m_to)
            is_row = (next_kind == 1) & (next_start < next_stop)
            b_next_query, b_next_key, b_next_value, next_decay, next_strength = _row(
                next_start,
                is_row,
                query_ptr,
                key_ptr,
                value_ptr,
                decay_ptr,
                erase_ptr,
                query_stride,
                key_stride,
                value_stride,
                decay_stride,
                erase_stride,
                o_k,
                o_v,
                K,
                V,
                HAS_DECAY,
            )


def walk_steps(
    inputs: ScanInputs,
    launched: torch.Tensor,
    table: torch.Tensor,
    states_SHKV: torch.Tensor,
    work: torch.Tensor,
    out_LHV: torch.Tensor,
) -> None:
    """Put sequences without gaps through.

    Args:
        launched, table: as in `Walk`.
        work: [sequences, H, K, V]: states between launches.
    """
    assert states_SHKV[0].is_contiguous(), "rows of the state slab are contiguous"
    assert out_LHV.is_contiguous(), "outputs are contiguous"
    _, H, K, V = states_SHKV.shape
    query, key, value = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (inputs.query, inputs.key, inputs.value)
    )
    gates = Gates.of(inputs)
    block_v = min(BLOCK_V, max(16, next_power_of_2(V)))
    _steps_kernel[(cdiv(V, block_v), H, len(launched))](
        query,
        key,
        value,
        *gates.tensors,
        states_SHKV,
        work,
        out_LHV,
        launched,
        table,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        *gates.strides,
        states_SHKV.stride(0),
        inputs.scale,
        H=H,
        GROUPS=H // key.shape[1],
        K=K,
        V=V,
        EPS=UNIT_EPS,
        HAS_DECAY=gates.has_decay,
        LOGITS=gates.are_logits,
        NUM_FIELDS=FIELDS,
        BLOCK_K=max(16, next_power_of_2(K)),
        BLOCK_V=block_v,
        num_warps=WARPS,
        num_stages=1,
        maxnreg=MOST_REGISTERS,
    )
