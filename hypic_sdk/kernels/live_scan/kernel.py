"""The compose step on a GPU: S <- T S + S0 for a batch of states, one program a block of V."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

_IDENTITY, _SCALAR, _DIAGONAL, _DENSE = range(4)


@triton.jit
def _compose_kernel(
    state_ptr,
    transition_ptr,
    end_state_ptr,
    transition_slot_ptr,
    state_slot_ptr,
    composed_ptr,
    transition_stride,
    end_state_stride,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_V: tl.constexpr,
    KIND: tl.constexpr,
):
    i_nh = tl.program_id(0).to(tl.int64)
    i_n, i_h = i_nh // H, i_nh % H
    o_k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    o_v = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    m_k = o_k < K
    m_kv = m_k[:, None] & (o_v < V)[None, :]
    i_transition = tl.load(transition_slot_ptr + i_n).to(tl.int64)
    i_end_state = tl.load(state_slot_ptr + i_n).to(tl.int64)
    state_row = state_ptr + i_nh * K * V
    transition_row = transition_ptr + i_transition * transition_stride
    end_state_row = end_state_ptr + i_end_state * end_state_stride + i_h * K * V
    o_kv = o_k[:, None] * V + o_v[None, :]
    # [BK, BV]
    b_composed = tl.load(end_state_row + o_kv, mask=m_kv, other=0.0)
    if KIND == 3:
        for i_j in range(0, K, BLOCK_J):
            o_j = i_j + tl.arange(0, BLOCK_J)
            m_j = o_j < K
            # [BK, BJ]
            b_transition = tl.load(
                transition_row + i_h * K * K + o_k[:, None] * K + o_j[None, :],
                mask=m_k[:, None] & m_j[None, :],
                other=0.0,
            )
            # [BJ, BV]
            b_state = tl.load(
                state_row + o_j[:, None] * V + o_v[None, :],
                mask=m_j[:, None] & (o_v < V)[None, :],
                other=0.0,
            )
            b_composed = tl.dot(
                b_transition.to(b_state.dtype),
                b_state,
                acc=b_composed,
                input_precision="ieee",
                out_dtype=b_composed.dtype,
            )
    else:
        # [BK, BV]
        b_state = tl.load(state_row + o_kv, mask=m_kv, other=0.0)
        if KIND == 1:
            b_state *= tl.exp(tl.load(transition_row + i_h).to(b_state.dtype))
        if KIND == 2:
            # [BK]
            b_log = tl.load(transition_row + i_h * K + o_k, mask=m_k, other=0.0)
            b_state *= tl.exp(b_log.to(b_state.dtype))[:, None]
        b_composed += b_state
    tl.store(composed_ptr + i_nh * K * V + o_kv, b_composed, mask=m_kv)


def compose(
    state_NHKV: torch.Tensor,
    transitions: torch.Tensor | None,
    transition_slots: Sequence[int],
    end_states_SHKV: torch.Tensor,
    state_slots: Sequence[int],
) -> torch.Tensor:
    """As `reference.compose`; accumulates in the state's dtype, products in full precision."""
    state_NHKV = state_NHKV.contiguous()
    num_states, num_heads, key_size, value_size = state_NHKV.shape
    assert end_states_SHKV[0].is_contiguous(), "rows of the state slab are contiguous"
    assert transitions is None or transitions[0].is_contiguous(), "rows of the slab are contiguous"
    kind = _IDENTITY if transitions is None else transitions.ndim - 1
    rows = state_NHKV if transitions is None else transitions
    slots = torch.tensor(
        [list(transition_slots), list(state_slots)], dtype=torch.int64, device=state_NHKV.device
    )
    composed_NHKV = torch.empty_like(state_NHKV)
    block_k, block_v = (max(16, min(64, triton.next_power_of_2(n))) for n in state_NHKV.shape[2:])
    grid = (
        num_states * num_heads,
        triton.cdiv(key_size, block_k),
        triton.cdiv(value_size, block_v),
    )
    _compose_kernel[grid](
        state_NHKV,
        rows,
        end_states_SHKV,
        slots[0],
        slots[1],
        composed_NHKV,
        rows.stride(0),
        end_states_SHKV.stride(0),
        num_heads,
        key_size,
        value_size,
        block_k,
        min(block_k, 32),
        block_v,
        kind,
    )
    return composed_NHKV
