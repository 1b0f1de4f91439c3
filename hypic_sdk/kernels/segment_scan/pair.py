"""The pair of an interior that ends: S = F - T S_head, and T as it is stored."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2

_BLOCK_V = 64
_BLOCK_J = 32
_WARPS = 8


@triton.jit
def _pair_kernel(
    found_ptr,  # [runs, H, K, K]
    ends_ptr,  # [runs, H, K, V]
    states_ptr,  # in, the state after the head seam; out, S
    transitions_ptr,  # out
    ended_ptr,  # [3, ended]: run, rows of both slabs
    finite_ptr,  # in: true, [runs]; out: false where a pair is not finite
    states_stride,
    transitions_stride,
    num_ended,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    i_ended, i_h, i_block = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    run = tl.load(ended_ptr + i_ended)
    state_slot = tl.load(ended_ptr + num_ended + i_ended)
    transition_slot = tl.load(ended_ptr + 2 * num_ended + i_ended)
    o_k, o_v = tl.arange(0, BLOCK_K), i_block * BLOCK_V + tl.arange(0, BLOCK_V)
    m_k, m_v = o_k < K, o_v < V
    o_kv = o_k[:, None] * V + o_v[None, :]
    m_kv = m_k[:, None] & m_v[None, :]
    states_ptr += state_slot * states_stride + i_h * K * V
    transitions_ptr += transition_slot * transitions_stride + i_h * K * K
    found_ptr += (run * H + i_h) * K * K
    # [BK, BV]
    b_state = tl.load(ends_ptr + (run * H + i_h) * K * V + o_kv, m_kv, other=0)
    num_bad = 0
    for i_j in range(0, K, BLOCK_J):
        o_j = i_j + tl.arange(0, BLOCK_J)
        o_kj = o_k[:, None] * K + o_j[None, :]
        m_kj = m_k[:, None] & (o_j < K)[None, :]
        # [BK, BJ]
        b_found = tl.load(found_ptr + o_kj, m_kj, other=0)
        # [BJ, BV]
        o_jv = o_j[:, None] * V + o_v[None, :]
        b_head = tl.load(states_ptr + o_jv, (o_j < K)[:, None] & m_v[None, :], other=0)
        # three products on the matrix units, nearly an fp32 product
        b_state = tl.dot(-b_found, b_head, acc=b_state, input_precision="tf32x3")
        if (i_j // BLOCK_J) % BLOCKS == i_block:
            b_kept = b_found.to(transitions_ptr.dtype.element_ty)
            tl.store(transitions_ptr + o_kj, b_kept, m_kj)
            is_bad = ~(tl.abs(b_kept.to(tl.float32)) < float("inf"))
            num_bad += tl.sum(tl.sum(is_bad.to(tl.int32), 1), 0)
    is_bad = ~(tl.abs(b_state) < float("inf"))
    num_bad += tl.sum(tl.sum(is_bad.to(tl.int32), 1), 0)
    # of all who write there, each writes the same
    tl.store(finite_ptr + run, False, num_bad > 0)
    # what is read of the slab is read by all before any of it is written
    tl.debug_barrier()
    tl.store(states_ptr + o_kv, b_state, m_kv)


def keep_pairs(
    found: torch.Tensor,
    ends: torch.Tensor,
    states_SHKV: torch.Tensor,
    transitions: torch.Tensor,
    ended: torch.Tensor,
    finite: torch.Tensor,
) -> None:
    """S and T to their rows, of the runs that end their interior.

    Args:
        found: [runs, H, K, K] fp32, transitions of whole interiors.
        ends: [runs, H, K, V] fp32, states where they end.
        states_SHKV: in, the states after head seams.
        transitions: [X, H, K, K], any float dtype.
        ended: [3, n] int64: runs, and their rows of `states_SHKV` and of `transitions`.
        finite: [runs] bool, true so far; false where T or S is not finite as stored.
    """
    (_, H, K, V), num_ended = ends.shape, ended.shape[1]
    if not num_ended:
        return
    assert states_SHKV[0].is_contiguous(), "rows of the state slab are contiguous"
    assert transitions[0].is_contiguous(), "rows of the transition slab are contiguous"
    block_k = max(16, next_power_of_2(K))
    block_v = min(_BLOCK_V, max(16, next_power_of_2(V)))
    blocks = cdiv(V, block_v)
    _pair_kernel.run(
        found,
        ends,
        states_SHKV,
        transitions,
        ended,
        finite,
        states_SHKV.stride(0),
        transitions.stride(0),
        num_ended,
        grid=(num_ended, H, blocks),
        warmup=False,
        H=H,
        K=K,
        V=V,
        BLOCKS=blocks,
        BLOCK_K=block_k,
        BLOCK_J=min(block_k, _BLOCK_J),
        BLOCK_V=block_v,
        num_warps=_WARPS,
    )
