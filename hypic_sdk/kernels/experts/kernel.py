"""Routed experts on a GPU: the order of rows, two grouped products, and the sum.

Nothing waits for the device: which rows an expert has is known there alone.  Rows are brought into
the order of their experts by counting, go through two grouped products (our own or, on devices that
our tiles are not for, the library's), and are added up where they came from.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2
from hypic_sdk.kernels.experts.grouped import fitting_tiles, grouped_products
from hypic_sdk.kernels.experts.order import order
from hypic_sdk.kernels.mlp.kernel import swiglu, swiglu_block

# of the sum: the best of five from 120 rows to 10,000 on an H200, and 0.3 us behind it below
_BLOCK_D = 256
_COMBINE_WARPS = 1
_BLOCK_I = 256  # of the shared expert's inner activations, which one warp makes beside the routing


@triton.jit
def _route_row(
    i_l,
    logits_ptr,
    count_ptr,
    indices_ptr,
    weights_ptr,
    logits_stride,
    N: tl.constexpr,
    TOP_K: tl.constexpr,
    RENORMALISE: tl.constexpr,
    HAS_COUNT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_TOP: tl.constexpr,
):
    """The experts of row `i_l`."""
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
def _route_kernel(
    logits_ptr,
    count_ptr,  # read with HAS_COUNT only
    gate_up_ptr,  # [L, 2 I], read with HAS_INNER only
    indices_ptr,  # out, [L, TOP_K]
    weights_ptr,  # out, [L, TOP_K]
    inner_ptr,  # out, [L, I], with HAS_INNER only
    logits_stride,
    gate_up_stride,
    num_inner,
    N: tl.constexpr,
    TOP_K: tl.constexpr,
    RENORMALISE: tl.constexpr,
    HAS_COUNT: tl.constexpr,
    HAS_INNER: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_TOP: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    i_l, i_b = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if i_b == 0:
        _route_row(
            i_l,
            logits_ptr,
            count_ptr,
            indices_ptr,
            weights_ptr,
            logits_stride,
            N,
            TOP_K,
            RENORMALISE,
            HAS_COUNT,
            BLOCK_N,
            BLOCK_TOP,
        )
    elif HAS_INNER:
        row_ptr, out_ptr = gate_up_ptr + i_l * gate_up_stride, inner_ptr + i_l * num_inner
        swiglu_block(row_ptr, out_ptr, i_b - 1, num_inner, BLOCK_I, tl.float32)


@triton.jit
def _combine_kernel(
    products_ptr,  # [T, D] in the order of experts
    chosen_ptr,  # [L, TOP_K]
    places_ptr,  # [L, TOP_K]
    weights_ptr,  # [L, TOP_K]
    shared_ptr,  # [L, D], read with HAS_SHARED only, as the next one
    gate_ptr,  # [L, 1]
    out_ptr,  # [L, D]
    shared_stride,
    gate_stride,
    D,
    TOP_K: tl.constexpr,
    HAS_SHARED: tl.constexpr,
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
    if HAS_SHARED:  # on its way while the products are looked for
        gate = tl.load(gate_ptr + i_l * gate_stride)
        b_shared = tl.load(shared_ptr + i_l * shared_stride + o_d, m_d, other=0.0)
    b_out = tl.zeros([BLOCK_D], dtype=tl.float32)
    for _ in tl.static_range(TOP_K):
        # rising, as in the definition
        is_next = b_chosen == tl.min(b_chosen, 0)
        place = tl.max(tl.where(is_next, b_place, 0), 0)
        weight = tl.sum(tl.where(is_next, b_weight, 0.0), 0)
        b_product = tl.load(products_ptr + place * D + o_d, m_d, other=0.0)
        b_out += b_product.to(tl.float32) * weight
        b_chosen = tl.where(is_next, 9223372036854775807, b_chosen)
    b_out = b_out.to(out_ptr.dtype.element_ty)
    if HAS_SHARED:
        # rounded as the definition rounds, one after the other
        share = (1.0 / (1.0 + tl.exp(-gate.to(tl.float32)))).to(gate.dtype).to(tl.float32)
        b_shared = (b_shared.to(tl.float32) * share).to(b_out.dtype).to(tl.float32)
        b_out = (b_out.to(tl.float32) + b_shared).to(b_out.dtype)
    tl.store(out_ptr + i_l * D + o_d, b_out, m_d)


def route(
    router_logits: torch.Tensor,
    top_k: int,
    renormalise: bool,
    row_count: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference, for logits of up to 32 bits."""
    return _route(router_logits, None, top_k, renormalise, row_count)[:2]


def route_with_swiglu(
    router_logits: torch.Tensor,
    gate_up_LI: torch.Tensor,
    top_k: int,
    renormalise: bool,
    row_count: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As the reference, for up to 32 bits."""
    return _route(router_logits, gate_up_LI, top_k, renormalise, row_count)


def _route(
    router_logits: torch.Tensor,
    gate_up_LI: torch.Tensor | None,
    top_k: int,
    renormalise: bool,
    row_count: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Indices, weights, and silu(gate) * up of what there is of it."""
    num_rows, num_experts = router_logits.shape
    logits = router_logits if router_logits.stride(1) == 1 else router_logits.contiguous()
    indices = logits.new_empty((num_rows, top_k), dtype=torch.int64)
    weights = logits.new_empty((num_rows, top_k), dtype=torch.float32)
    gate_up = logits[:, :0] if gate_up_LI is None else gate_up_LI
    gate_up = gate_up if gate_up.stride(1) == 1 else gate_up.contiguous()
    num_inner = gate_up.shape[1] // 2
    inner = logits.new_empty((num_rows, num_inner))
    if num_rows:
        _route_kernel[(num_rows, 1 + cdiv(num_inner, _BLOCK_I))](
            logits,
            logits if row_count is None else row_count,
            gate_up,
            indices,
            weights,
            inner,
            logits.stride(0),
            gate_up.stride(0),
            num_inner,
            N=num_experts,
            TOP_K=top_k,
            RENORMALISE=renormalise,
            HAS_COUNT=row_count is not None,
            HAS_INNER=num_inner > 0,
            BLOCK_N=next_power_of_2(num_experts),
            BLOCK_TOP=next_power_of_2(top_k),
            BLOCK_I=_BLOCK_I,
            num_warps=1,
        )
    return indices, weights, inner


def experts(
    x_LD: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    row_independent: bool,
    shared: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """[L, D], as `reference.experts`."""
    num_rows, num_experts = len(indices), gate_up.shape[0]
    if num_rows == 0:
        return x_LD.new_empty(x_LD.shape)
    indices = indices.contiguous()
    rows, places, ends = order(indices, num_experts)
    tiles = fitting_tiles(len(rows), num_experts, x_LD.device, row_independent=row_independent)
    if tiles is None:
        products = library_products(x_LD, rows, ends, gate_up, down)
    else:
        products = grouped_products(x_LD, rows, ends, gate_up, down, tiles)
    return combine(products, indices, places, weights, shared)


def combine(
    products: torch.Tensor,
    indices: torch.Tensor,
    places: torch.Tensor,
    weights: torch.Tensor,
    shared: tuple[torch.Tensor, torch.Tensor] | None,
) -> torch.Tensor:
    """The sum of each row's weighted products, in the rising order of its experts, and the share.

    Returns [L, D].
    """
    (num_rows, top_k), width = indices.shape, products.shape[1]
    out_LD = products.new_empty((num_rows, width))
    outputs, gate = (products, products) if shared is None else shared
    outputs = outputs if outputs.stride(1) == 1 else outputs.contiguous()
    block = min(_BLOCK_D, next_power_of_2(width))
    _combine_kernel[(num_rows, cdiv(width, block))](
        products,
        indices.contiguous(),
        places,
        weights.contiguous(),
        outputs,
        gate,
        out_LD,
        outputs.stride(0),
        gate.stride(0),
        width,
        TOP_K=top_k,
        HAS_SHARED=shared is not None,
        BLOCK_TOP=next_power_of_2(top_k),
        BLOCK_D=block,
        num_warps=_COMBINE_WARPS,
    )
    return out_LD


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
