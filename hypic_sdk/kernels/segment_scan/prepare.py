"""What a tile of a delta rule needs and no state: its keys, its scores, its solution.

Of a tile's C tokens, with decay G_i from the tile's start until token i and S before the tile, the
pseudo-values U solve (I + A) U = b (v - G K S), where A_ij = b_i G_i / G_j k_i k_j below the
diagonal.  So with M = (I + A)^-1 diag(b), which is made here, `chain` has only products left: of M
and what is missing, v - G K S, come the pseudo-values, and of the scores times M and the same what
outputs get from within the tile, both in one product.

Products are of 16-bit operands with fp32 sums, and safe in fp16: with unit keys and b in [0, 1] no
entry of M, nor of the scores times M, nor of a product on the way to them, is larger than 1 (each
is a product of contractions between two unit vectors), whatever the keys.  fp16 rounds to 2^-11
where bf16 does to 2^-8.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import next_power_of_2
from hypic_sdk.kernels.scan_inputs import MIN_LOG_DECAY, UNIT_EPS, ScanInputs

_WARPS = 4  # one group of warps: a product of 64 rows is one instruction a step


@triton.jit
def _prepare_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    decay_ptr,  # read with HAS_DECAY only
    erase_ptr,
    tiles_ptr,  # [tiles, 2]: first row, rows
    unit_query_ptr,  # out, [tiles, Hk, C, K]
    unit_key_ptr,  # out, [tiles, Hk, C, K]
    ways_ptr,  # out, [tiles, H, 2, C, C]
    start_ptr,  # out, [tiles, H, C]: decay from the tile's start until a token
    end_ptr,  # out, [tiles, H, C]: decay from a token until the tile's end
    whole_ptr,  # out, [tiles, H]: decay over the tile
    largest_ptr,  # out, [tiles, H]: of the values' sizes
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    H: tl.constexpr,
    GROUPS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    UNIT: tl.constexpr,
    EPS: tl.constexpr,
    HAS_DECAY: tl.constexpr,
    MIN_LOG: tl.constexpr,
    C: tl.constexpr,
    LEVELS: tl.constexpr,  # C = 2**LEVELS
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    operand: tl.constexpr = ways_ptr.dtype.element_ty
    i_t, i_key = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, count = tl.load(tiles_ptr + i_t * 2), tl.load(tiles_ptr + i_t * 2 + 1)
    o_c, o_k, o_v = tl.arange(0, C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    m_c = o_c < count
    m_ck = m_c[:, None] & (o_k < K)[None, :]
    m_cv = m_c[:, None] & (o_v < V)[None, :]
    key_ptr += row * key_stride + i_key * key_head_stride
    query_ptr += row * query_stride + i_key * query_head_stride
    # [C, BK]
    o_key = o_c[:, None] * key_stride + o_k[None, :]
    o_query = o_c[:, None] * query_stride + o_k[None, :]
    b_key = tl.load(key_ptr + o_key, m_ck, other=0).to(tl.float32)
    b_query = tl.load(query_ptr + o_query, m_ck, other=0).to(tl.float32)
    if UNIT:
        b_key *= tl.rsqrt(tl.sum(b_key * b_key, 1) + EPS)[:, None]
        b_query *= tl.rsqrt(tl.sum(b_query * b_query, 1) + EPS)[:, None]
    b_unit_key, b_unit_query = b_key.to(operand), b_query.to(operand)
    i_unit = (i_t * (H // GROUPS) + i_key) * C * K
    o_ck = o_c[:, None] * K + o_k[None, :]
    tl.store(unit_key_ptr + i_unit + o_ck, b_unit_key, (o_k < K)[None, :])
    tl.store(unit_query_ptr + i_unit + o_ck, b_unit_query, (o_k < K)[None, :])
    # [C, C]
    o_cc = o_c[:, None] * C + o_c[None, :]
    is_same, is_later = o_c[:, None] == o_c[None, :], o_c[:, None] > o_c[None, :]
    b_columns = tl.trans(b_unit_key)
    b_reads = tl.dot(b_unit_query, b_columns, input_precision="ieee")
    b_keys = tl.dot(b_unit_key, b_columns, input_precision="ieee")
    b_reads = tl.where(is_later | is_same, b_reads, 0.0)
    b_keys = tl.where(is_later, b_keys, 0.0)
    for i_group in range(GROUPS):
        i_h = i_key * GROUPS + i_group
        i_out = i_t * H + i_h
        # [C, BV]
        o_value = o_c[:, None] * value_stride + o_v[None, :]
        i_value = row * value_stride + i_h * value_head_stride
        b_value = tl.load(value_ptr + i_value + o_value, m_cv, other=0).to(tl.float32)
        tl.store(largest_ptr + i_out, tl.max(tl.max(tl.abs(b_value), 1), 0))
        # [C]
        i_token = row * H + i_h
        b_strength = tl.load(erase_ptr + i_token + o_c * H, m_c, other=0).to(tl.float32)
        b_start = tl.full([C], 1.0, dtype=tl.float32)
        b_end = tl.full([C], 1.0, dtype=tl.float32)
        whole = 1.0
        # [C, C]
        b_score = b_reads
        b_loss = b_keys * (-b_strength)[:, None]
        if HAS_DECAY:
            b_log = tl.load(decay_ptr + i_token + o_c * H, m_c, other=0).to(tl.float64)
            b_log = tl.maximum(b_log, MIN_LOG)
            # fp64: a weak decay after strong ones is a small difference of large sums
            b_sum = tl.cumsum(b_log, 0)
            all_of_it = tl.sum(b_log, 0)
            whole = tl.exp(all_of_it.to(tl.float32))
            b_start = tl.exp(b_sum.to(tl.float32))
            b_end = tl.exp((all_of_it - b_sum).to(tl.float32))
            # in two parts, whose differences are exact enough in fp32
            b_high = b_sum.to(tl.float32)
            b_low = (b_sum - b_high.to(tl.float64)).to(tl.float32)
            # [C, C]; above the diagonal it would overflow, and is not taken
            b_between = (b_high[:, None] - b_high[None, :]) + (b_low[:, None] - b_low[None, :])
            b_between = tl.exp(tl.where(is_later, b_between, 0.0))
            b_score *= b_between
            b_loss *= b_between
        tl.store(whole_ptr + i_out, whole)
        tl.store(start_ptr + i_out * C + o_c, b_start)
        tl.store(end_ptr + i_out * C + o_c, b_end)
        # (I + A)^-1 of pairs of rows, then of twice as large blocks from two
        b_inverse = tl.where(o_c[:, None] // 2 == o_c[None, :] // 2, b_loss, 0.0)
        b_inverse = tl.where(is_same, 1.0, b_inverse)
        b_losses = b_loss.to(operand)
        for level in tl.static_range(1, LEVELS):
            o_block = o_c // 2**level
            is_below = (o_block[:, None] == o_block[None, :] + 1) & (o_block[None, :] % 2 == 0)
            # what is below a block comes of that block of losses alone; the rest is not taken
            b_blocks = b_inverse.to(operand)
            b_less = tl.dot(b_blocks, b_losses, input_precision="ieee").to(operand)
            b_below = tl.dot(b_less, b_blocks, input_precision="ieee")
            b_inverse = tl.where(is_below, b_below, b_inverse)
        b_solve = (b_inverse * b_strength[None, :]).to(operand)
        b_within = tl.dot(b_score.to(operand), b_solve, input_precision="ieee").to(operand)
        tl.store(ways_ptr + i_out * 2 * C * C + o_cc, b_solve)
        tl.store(ways_ptr + (i_out * 2 + 1) * C * C + o_cc, b_within)


@dataclass(frozen=True, eq=False, slots=True)
class Prepared:
    """N tiles of C tokens, without their states; operands of products in fp16, or fp32."""

    unit_query: torch.Tensor  # [N, Hk, C, K]
    unit_key: torch.Tensor  # [N, Hk, C, K]
    ways: torch.Tensor  # [N, H, 2, C, C]: pseudo-values of what is missing; shares of outputs of it
    start: torch.Tensor  # [N, H, C] fp32: decay from the tile's start until a token
    end: torch.Tensor  # [N, H, C] fp32: decay from a token until the tile's end
    whole: torch.Tensor  # [N, H] fp32: decay over the tile
    largest: torch.Tensor  # [N, H] fp32: of the values' sizes


def prepare(inputs: ScanInputs, tiles_table: torch.Tensor, tile_tokens: int) -> Prepared:
    """All tiles at once.

    Args:
        tiles_table: [N, 2] int64, first row and rows of each.
        tile_tokens: C, a power of two from 16 on.
    """
    assert inputs.erase is not None, "the kernel is for recurrences that erase"
    query, key, value = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (inputs.query, inputs.key, inputs.value)
    )
    (_, H, V), (_, num_key_heads, K), C = value.shape, key.shape, tile_tokens
    num_tiles = tiles_table.shape[0]
    operand = torch.float32 if value.dtype == torch.float32 else torch.float16
    found = Prepared(
        *value.new_empty((2, num_tiles, num_key_heads, C, K), dtype=operand).unbind(),
        value.new_empty((num_tiles, H, 2, C, C), dtype=operand),
        *value.new_empty((2, num_tiles, H, C), dtype=torch.float32).unbind(),
        value.new_empty((num_tiles, H), dtype=torch.float32),
        value.new_empty((num_tiles, H), dtype=torch.float32),
    )
    _prepare_kernel.run(
        query,
        key,
        value,
        key if inputs.log_decay is None else inputs.log_decay.contiguous(),
        inputs.erase.contiguous(),
        tiles_table,
        found.unit_query,
        found.unit_key,
        found.ways,
        found.start,
        found.end,
        found.whole,
        found.largest,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        grid=(num_tiles, num_key_heads),
        warmup=False,
        H=H,
        GROUPS=H // num_key_heads,
        K=K,
        V=V,
        UNIT=inputs.unit_keys,
        EPS=UNIT_EPS,
        HAS_DECAY=inputs.log_decay is not None,
        MIN_LOG=MIN_LOG_DECAY,
        C=C,
        LEVELS=C.bit_length() - 1,
        BLOCK_K=max(16, next_power_of_2(K)),
        BLOCK_V=max(16, next_power_of_2(V)),
        num_warps=_WARPS,
        num_stages=1,
    )
    return found
