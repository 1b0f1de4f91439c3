"""Routed experts on a GPU: the order of rows, two grouped products, and the sum.

Nothing waits for the device: which rows an expert has is known there alone.  Rows are brought into
the order of their experts by counting (one program an expert looks at all choices), go through two
grouped products (the library's, or row-independent ones of our own), and are added up where they
came from.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.experts.grouped import grouped_products
from hypic_sdk.kernels.mlp.kernel import swiglu

_LARGEST_BLOCK = 4096  # choices that a program looks at together
_BLOCK_D = 1024


@triton.jit
def _route_kernel(
    logits_ptr,
    count_ptr,  # read with HAS_COUNT only
    indices_ptr,  # out, [L, TOP_K]
    weights_ptr,  # out, [L, TOP_K]
    logits_stride,
    N: tl.constexpr,
    TOP_K: tl.constexpr,
    RENORMALISE: tl.constexpr,
    HAS_COUNT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_TOP: tl.constexpr,
):
    i_l = tl.program_id(0).to(tl.int64)
    row, is_row = i_l, 1.0
    if HAS_COUNT:
        is_row = tl.where(i_l < tl.load(count_ptr), 1.0, 0.0)
        row = tl.where(is_row > 0.0, i_l, 0)
    o_n, o_top = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_TOP)
    m_n = o_n < N
    # [BN]
    b_logit = tl.load(logits_ptr + row * logits_stride + o_n, m_n, other=0.0).to(tl.float32)
    # what is no number comes last, but before what is taken and what is none of the experts
    b_logit = tl.where(b_logit == b_logit, tl.maximum(b_logit, -3e38), -3e38)
    b_left = tl.where(m_n, b_logit, float("-inf"))
    most = tl.max(b_left, 0)
    total = tl.sum(tl.exp(b_left - most), 0)
    # [BT]
    b_index = tl.zeros([BLOCK_TOP], dtype=tl.int64)
    b_weight = tl.zeros([BLOCK_TOP], dtype=tl.float32)
    for k in tl.static_range(TOP_K):
        best = tl.max(b_left, 0)
        # the lowest of those that tie
        index = tl.min(tl.where(b_left == best, o_n, BLOCK_N), 0)
        b_index = tl.where(o_top == k, index.to(tl.int64), b_index)
        b_weight = tl.where(o_top == k, tl.exp(best - most) / total, b_weight)
        b_left = tl.where(o_n == index, float("-inf"), b_left)
    if RENORMALISE:
        b_weight = b_weight / tl.sum(b_weight, 0)
    m_top = o_top < TOP_K
    tl.store(indices_ptr + i_l * TOP_K + o_top, b_index, m_top)
    tl.store(weights_ptr + i_l * TOP_K + o_top, tl.where(is_row > 0.0, b_weight, 0.0), m_top)


@triton.jit
def _order_kernel(
    chosen_ptr,  # [T] experts: TOP_K a row
    rows_ptr,  # out, [T]: the row at each place, by experts and, within one, rising
    places_ptr,  # out, [T]: the place of each choice
    ends_ptr,  # out, [experts] int32: one behind the last place of each
    T,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_e = tl.program_id(0)
    o_t = tl.arange(0, BLOCK)
    before = tl.zeros([], dtype=tl.int64)
    for start in range(0, T, BLOCK):
        b_expert = tl.load(chosen_ptr + start + o_t, start + o_t < T, other=2147483647)
        before += tl.sum((b_expert < i_e).to(tl.int64), 0)
    for start in range(0, T, BLOCK):
        b_expert = tl.load(chosen_ptr + start + o_t, start + o_t < T, other=2147483647)
        m_own = b_expert == i_e
        b_own = m_own.to(tl.int64)
        b_place = before + tl.cumsum(b_own, 0) - b_own
        tl.store(rows_ptr + b_place, ((start + o_t) // TOP_K).to(tl.int64), m_own)
        tl.store(places_ptr + start + o_t, b_place, m_own)
        before += tl.sum(b_own, 0)
    tl.store(ends_ptr + i_e, before.to(tl.int32))


@triton.jit
def _combine_kernel(
    products_ptr,  # [T, D] in the order of experts
    chosen_ptr,  # [L, TOP_K]
    places_ptr,  # [L, TOP_K]
    weights_ptr,  # [L, TOP_K]
    out_ptr,  # [L, D]
    D,
    TOP_K: tl.constexpr,
    BLOCK_TOP: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    i_l = tl.program_id(0).to(tl.int64)
    o_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < D
    o_top = tl.arange(0, BLOCK_TOP)
    m_top = o_top < TOP_K
    # [BT]
    b_chosen = tl.load(chosen_ptr + i_l * TOP_K + o_top, m_top, other=9223372036854775807)
    b_place = tl.load(places_ptr + i_l * TOP_K + o_top, m_top, other=0)
    b_weight = tl.load(weights_ptr + i_l * TOP_K + o_top, m_top, other=0.0)
    # [BD]
    b_out = tl.zeros([BLOCK_D], dtype=tl.float32)
    for _ in tl.static_range(TOP_K):
        # rising, as in the definition
        is_next = b_chosen == tl.min(b_chosen, 0)
        place = tl.max(tl.where(is_next, b_place, 0), 0)
        weight = tl.sum(tl.where(is_next, b_weight, 0.0), 0)
        b_product = tl.load(products_ptr + place * D + o_d, m_d, other=0.0)
        b_out += b_product.to(tl.float32) * weight
        b_chosen = tl.where(is_next, 9223372036854775807, b_chosen)
    tl.store(out_ptr + i_l * D + o_d, b_out.to(out_ptr.dtype.element_ty), m_d)


def route(
    router_logits: torch.Tensor,
    top_k: int,
    renormalise: bool,
    row_count: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference, for logits of up to 32 bits."""
    num_rows, num_experts = router_logits.shape
    logits = router_logits if router_logits.stride(1) == 1 else router_logits.contiguous()
    indices = logits.new_empty((num_rows, top_k), dtype=torch.int64)
    weights = logits.new_empty((num_rows, top_k), dtype=torch.float32)
    if num_rows:
        _route_kernel[(num_rows,)](
            logits,
            logits if row_count is None else row_count,
            indices,
            weights,
            logits.stride(0),
            N=num_experts,
            TOP_K=top_k,
            RENORMALISE=renormalise,
            HAS_COUNT=row_count is not None,
            BLOCK_N=triton.next_power_of_2(num_experts),
            BLOCK_TOP=triton.next_power_of_2(top_k),
            num_warps=1,
        )
    return indices, weights


def experts(
    x_LD: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    row_independent: bool,
) -> torch.Tensor:
    """[L, D], as `reference.experts`."""
    (num_rows, top_k), num_experts = indices.shape, gate_up.shape[0]
    if num_rows == 0:
        return x_LD.new_empty(x_LD.shape)
    indices = indices.contiguous()
    rows, places, ends = _order(indices, num_experts)
    # the library picks its tile by the mean number of rows of an expert
    multiply = grouped_products if row_independent else library_products
    products = multiply(x_LD, rows, ends, gate_up, down)
    out_LD = x_LD.new_empty(x_LD.shape)
    width = x_LD.shape[1]
    block = min(_BLOCK_D, triton.next_power_of_2(width))
    _combine_kernel[(num_rows, triton.cdiv(width, block))](
        products,
        indices,
        places,
        weights.contiguous(),
        out_LD,
        width,
        TOP_K=top_k,
        BLOCK_TOP=triton.next_power_of_2(top_k),
        BLOCK_D=block,
    )
    return out_LD


def _order(
    indices: torch.Tensor, num_experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows by expert, the place of each choice, and where each expert's places end."""
    count = indices.numel()
    rows, places = (indices.new_empty(count) for _ in range(2))
    ends = indices.new_empty(num_experts, dtype=torch.int32)
    block = min(_LARGEST_BLOCK, triton.next_power_of_2(count))
    _order_kernel[(num_experts,)](
        indices, rows, places, ends, count, TOP_K=indices.shape[1], BLOCK=block, num_warps=8
    )
    return rows, places, ends


def library_products(
    x_LD: torch.Tensor,
    rows: torch.Tensor,
    ends: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
) -> torch.Tensor:
    """down(silu(gate) * up) of every place by the library: [T, D]; expert e ends at `ends[e]`."""
    grouped = torch.nn.functional.grouped_mm
    inner = swiglu(grouped(x_LD.index_select(0, rows), gate_up.transpose(1, 2), offs=ends))
    return grouped(inner, down.transpose(1, 2), offs=ends)
