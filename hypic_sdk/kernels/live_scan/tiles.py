"""Live sequences with gaps and short runs on a GPU: tiles of 16 rows beforehand, then one walk.

What of a tile does not depend on the state before it (the WY form, as in `segment_scan.tiled`) is
made for all tiles at once by `_prepare_kernel`; `_walk_tiles_kernel` then only multiplies, one
program a sequence, head and block of V, and what a step reads is on its way while the step before
it is computed.

Products run on the matrix units in fp16: an operand is rounded once, by 2^-12 of itself at most, or
by 2^-25 of the largest number of its step where it is far smaller; sums and the state are fp32.
That number is one of 32 columns of V, whichever of them a program has: no bits hang on its block.
For recurrences with `erase`, unit keys and a decay of a head, or none, in 16 bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2
from hypic_sdk.kernels.live_scan.plan import STEP_FIELDS, TILE_ROWS, WALK_FIELDS
from hypic_sdk.kernels.live_scan.walk import TiledWalk
from hypic_sdk.kernels.scan_inputs import MIN_LOG_DECAY, UNIT_EPS, ScanInputs
from hypic_sdk.kernels.segment_scan.chain import power_of_two

# columns of a program.  One of twice as many takes less than twice as long, but half as many are a
# device's worth only where there are many sequences: 33 us instead of 24 with one of them, 137
# instead of 191 with eight (32 heads of 128 x 128, on an H200)
_BLOCK_V = 32
_BLOCK_V_OF_MANY = 64
_MANY_WALKERS = 8
_GROUP_V = 32  # columns that are measured together; fixed: bits hang on it
_STAGES = 2  # steps on their way or being computed
_WARPS = 8
_PREPARE_WARPS = 2
_LARGEST_KEY = 128  # with more a transition and the next one do not fit a multiprocessor


@triton.jit
def _prepare_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    decay_ptr,  # read with HAS_DECAY only
    erase_ptr,
    tiles_ptr,  # [tiles, 2]: first row, rows
    read_ptr,  # out, [tiles, H, C, BLOCK_K] fp16: queries, decayed from the tile's start
    late_key_ptr,  # out, the same: keys, decayed until the tile's end
    erased_ptr,  # out, the same: what pseudo-values lose for each unit of the state
    score_ptr,  # out, [tiles, H, C, C] fp32: an element is the least that is copied ahead
    pseudo_ptr,  # out, [tiles, H, C, V] fp32: pseudo-values from a zero state
    whole_ptr,  # out, [tiles, H, 2] fp32: decay over the tile; the largest pseudo-value's size
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    scale,
    H: tl.constexpr,
    GROUPS: tl.constexpr,  # state heads that share a key head
    K: tl.constexpr,
    V: tl.constexpr,
    EPS: tl.constexpr,
    HAS_DECAY: tl.constexpr,
    MIN_LOG: tl.constexpr,
    C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    LEVELS: tl.constexpr,  # C = 2 * 2**LEVELS
):
    i_t, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, count = tl.load(tiles_ptr + i_t * 2), tl.load(tiles_ptr + i_t * 2 + 1)
    if count > 0:
        o_c, o_k, o_v = tl.arange(0, C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
        m_c, m_v = o_c < count, o_v < V
        m_ck = m_c[:, None] & (o_k < K)[None, :]
        o_l = row + o_c
        i_out = i_t * H + i_h
        o_ck = (i_out * C + o_c)[:, None] * BLOCK_K + o_k[None, :]
        # [C, BK]
        o_key = o_l[:, None] * key_stride + (i_h // GROUPS) * key_head_stride + o_k[None, :]
        o_query = o_l[:, None] * query_stride + (i_h // GROUPS) * query_head_stride + o_k[None, :]
        b_key = tl.load(key_ptr + o_key, m_ck, other=0).to(tl.float32)
        b_query = tl.load(query_ptr + o_query, m_ck, other=0).to(tl.float32)
        # [C, BV]
        o_value = o_l[:, None] * value_stride + i_h * value_head_stride + o_v[None, :]
        b_value = tl.load(value_ptr + o_value, m_c[:, None] & m_v[None, :], other=0).to(tl.float32)
        # [C]
        b_strength = tl.load(erase_ptr + o_l * H + i_h, m_c, other=0).to(tl.float32)
        b_key_unit = 1.0 / tl.sqrt(tl.sum(b_key * b_key, 1) + EPS)
        b_query_unit = scale / tl.sqrt(tl.sum(b_query * b_query, 1) + EPS)
        later = o_c[:, None] > o_c[None, :]
        same = o_c[:, None] == o_c[None, :]
        # products of what has 16 bits are exact in tf32
        b_score = tl.dot(b_query, tl.trans(b_key), input_precision="tf32")
        b_score *= b_query_unit[:, None] * b_key_unit[None, :]
        b_erase = tl.dot(b_key, tl.trans(b_key), input_precision="tf32")
        b_erase *= (b_strength * b_key_unit)[:, None] * b_key_unit[None, :]
        # [C]: decay from the tile's start until a token, and from there to its end
        b_start = tl.full([C], 1.0, dtype=tl.float32)
        b_end = tl.full([C], 1.0, dtype=tl.float32)
        whole = 1.0
        if HAS_DECAY:
            b_log = tl.load(decay_ptr + o_l * H + i_h, m_c, other=0).to(tl.float64)
            b_log = tl.maximum(b_log, MIN_LOG)
            # fp64: a weak decay after strong ones is a small difference of large sums
            b_sum = tl.cumsum(b_log, 0)
            all_log = tl.sum(b_log, 0)
            # [C, C]; above the diagonal it would overflow, and is not taken
            b_between = tl.where(later, b_sum[:, None] - b_sum[None, :], 0.0)
            b_between = tl.exp(b_between.to(tl.float32))
            b_score *= b_between
            b_erase *= b_between
            b_start = tl.exp(b_sum.to(tl.float32))
            b_end = tl.exp((all_log - b_sum).to(tl.float32))
            whole = tl.exp(all_log.to(tl.float32))
        b_score = tl.where(later | same, b_score, 0.0)
        b_erase = tl.where(later, b_erase, 0.0)
        # (I + A)^-1: of blocks of two on the diagonal, then of twice as large ones of two
        same_block = o_c[:, None] // 2 == o_c[None, :] // 2
        b_inverse = tl.where(same, 1.0, 0.0) - tl.where(same_block, b_erase, 0.0)
        for level in tl.static_range(LEVELS):
            o_block = o_c // (2 * 2**level)
            is_below = (o_block[:, None] == o_block[None, :] + 1) & (o_block[None, :] % 2 == 0)
            b_below = tl.where(is_below, b_erase, 0.0)
            b_less = tl.dot(b_inverse, b_below, input_precision="tf32x3")
            b_inverse -= tl.dot(b_less, b_inverse, input_precision="tf32x3")
        b_inverse *= b_strength[None, :]
        b_from_keys = b_inverse * (b_key_unit * b_start)[None, :]
        b_erased = tl.dot(b_from_keys, b_key, input_precision="tf32x3")
        b_pseudo = tl.dot(b_inverse, b_value, input_precision="tf32x3")
        tl.store(read_ptr + o_ck, (b_query * (b_query_unit * b_start)[:, None]).to(tl.float16))
        tl.store(late_key_ptr + o_ck, (b_key * (b_key_unit * b_end)[:, None]).to(tl.float16))
        tl.store(erased_ptr + o_ck, b_erased.to(tl.float16))
        o_cc = (i_out * C + o_c)[:, None] * C + o_c[None, :]
        tl.store(score_ptr + o_cc, b_score)
        o_cv = (i_out * C + o_c)[:, None] * V + o_v[None, :]
        tl.store(pseudo_ptr + o_cv, b_pseudo, mask=m_v[None, :])
        tl.store(whole_ptr + 2 * i_out, whole)
        tl.store(whole_ptr + 2 * i_out + 1, tl.max(tl.max(tl.abs(b_pseudo), 1), 0))


@triton.jit
def _sizes(b_largest, least, GROUP_V: tl.constexpr, BLOCK_V: tl.constexpr):
    """[BV] each: the power of two up to the largest number of a column's group, and one over it.

    Two numbers and a choice that the compiler makes; a number for each column took registers.
    """
    if BLOCK_V > GROUP_V:
        tl.static_assert(BLOCK_V == 2 * GROUP_V)
        is_low = tl.arange(0, BLOCK_V) < GROUP_V
        low = tl.max(tl.max(tl.where(is_low[None, :], b_largest, 0.0), 1), 0)
        high = tl.max(tl.max(tl.where(is_low[None, :], 0.0, b_largest), 1), 0)
        low, high = power_of_two(tl.maximum(low, least)), power_of_two(tl.maximum(high, least))
        b_size, b_less = tl.where(is_low, low, high), tl.where(is_low, 1.0 / low, 1.0 / high)
    else:
        size = power_of_two(tl.maximum(tl.max(tl.max(b_largest, 1), 0), least))
        b_size = tl.full([BLOCK_V], 0.0, tl.float32) + size
        b_less = tl.full([BLOCK_V], 0.0, tl.float32) + 1.0 / size
    return b_size, b_less


@triton.jit
def _walk_tiles_kernel(
    read_ptr,
    late_key_ptr,
    erased_ptr,
    score_ptr,
    pseudo_ptr,
    whole_ptr,
    states_ptr,
    transition_ptr,
    transition_scale_ptr,  # read with EIGHT_BITS only, as all up to `end_scale_ptr`
    diagonal_ptr,
    end_ptr,
    end_scale_ptr,
    work_ptr,  # [sequences, H, K, V]: states between launches
    out_ptr,
    count_ptr,  # [1]: rows of `walks` that are somebody's
    walks_ptr,  # [walks, WALK_FIELDS]
    steps_ptr,  # [steps, STEP_FIELDS]
    states_stride,
    transition_stride,
    transition_scale_stride,
    diagonal_stride,
    end_stride,
    end_scale_stride,
    num_walkers,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    EIGHT_BITS: tl.constexpr,  # of a gap's pair
    USE_TRANSITION: tl.constexpr,
    WIDE: tl.constexpr,  # the transition is fp32
    WALK_FIELDS: tl.constexpr,
    STEP_FIELDS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    GROUP_V: tl.constexpr,
):
    i_v, i_h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_c, o_k = tl.arange(0, C), tl.arange(0, BLOCK_K)
    o_v = i_v * BLOCK_V + tl.arange(0, BLOCK_V)
    m_v = o_v < V
    o_kv = o_k[:, None] * V + o_v[None, :]
    o_kk = o_k[:, None] * K + o_k[None, :]
    o_ck = o_c[:, None] * BLOCK_K + o_k[None, :]
    states_ptr += i_h * K * V
    end_ptr += i_h * K * V
    end_scale_ptr += i_h * K
    transition_ptr += i_h * K * K
    transition_scale_ptr += i_h * K
    diagonal_ptr += i_h * K
    count = tl.load(count_ptr)
    for i_walk in range(tl.program_id(2), count, num_walkers):
        walk_ptr = walks_ptr + i_walk * WALK_FIELDS
        first, last = tl.load(walk_ptr), tl.load(walk_ptr + 1)
        slot, sequence = tl.load(walk_ptr + 2), tl.load(walk_ptr + 3)
        own_work_ptr = work_ptr + (sequence * H + i_h) * K * V
        # [BK, BV]: all of the state, or nothing of it
        m_slab = (o_k < tl.where(slot >= 0, K, 0))[:, None] & m_v[None, :]
        m_work = (o_k < tl.where(slot < -1, K, 0))[:, None] & m_v[None, :]
        b_state = tl.load(states_ptr + slot * states_stride + o_kv, m_slab, other=0)
        b_state += tl.load(own_work_ptr + o_kv, m_work, other=0)
        # a step's numbers are read while the step before it is computed
        step_ptr = steps_ptr + first * STEP_FIELDS
        next_gap, next_end = tl.load(step_ptr), tl.load(step_ptr + 1)
        next_transition, next_tile = tl.load(step_ptr + 2), tl.load(step_ptr + 3)
        next_row, next_num = tl.load(step_ptr + 4), tl.load(step_ptr + 5)
        next_save = tl.load(step_ptr + 6)
        for i_step in range(first, last):
            has_gap, end_row, transition_row = next_gap > 0, next_end, next_transition
            tile, row, num_rows, save = next_tile, next_row, next_num, next_save
            # behind the last one it is read once more
            step_ptr = steps_ptr + tl.minimum(i_step + 1, last - 1) * STEP_FIELDS
            next_gap, next_end = tl.load(step_ptr), tl.load(step_ptr + 1)
            next_transition, next_tile = tl.load(step_ptr + 2), tl.load(step_ptr + 3)
            next_row, next_num = tl.load(step_ptr + 4), tl.load(step_ptr + 5)
            next_save = tl.load(step_ptr + 6)
            if EIGHT_BITS:  # a pair in 8 bits lies in one row
                end_row = transition_row
            i_out = tile * H + i_h
            # all of a gap's, and of a tile's, or nothing
            m_gap = o_k < tl.where(has_gap, K, 0)
            m_gapv = m_gap[:, None] & m_v[None, :]
            m_tile = o_c < tl.where(num_rows > 0, C, 0)
            # [BK, BV]
            b_end = tl.load(end_ptr + end_row * end_stride + o_kv, m_gapv, other=0)
            # [C, BK]
            b_erased = tl.load(erased_ptr + i_out * C * BLOCK_K + o_ck, m_tile[:, None], other=0)
            b_read = tl.load(read_ptr + i_out * C * BLOCK_K + o_ck, m_tile[:, None], other=0)
            b_late = tl.load(late_key_ptr + i_out * C * BLOCK_K + o_ck, m_tile[:, None], other=0)
            # [C, BV]
            o_cv = (i_out * C + o_c)[:, None] * V + o_v[None, :]
            b_pseudo = tl.load(pseudo_ptr + o_cv, m_tile[:, None] & m_v[None, :], other=0)
            # [C, C]
            o_cc = (i_out * C + o_c)[:, None] * C + o_c[None, :]
            b_score = tl.load(score_ptr + o_cc, m_tile[:, None], other=0)
            whole = tl.load(whole_ptr + 2 * i_out, mask=num_rows > 0, other=1.0)
            largest = tl.load(whole_ptr + 2 * i_out + 1, mask=num_rows > 0, other=0.0)
            if EIGHT_BITS:
                # [BK]
                end_scales_ptr = end_scale_ptr + end_row * end_scale_stride
                b_end_scale = tl.load(end_scales_ptr + o_k, m_gap, other=0)
                b_end = b_end.to(tl.float32) * b_end_scale.to(tl.float32)[:, None]
            # nothing in a step is larger than some hundred times this: a transition and the rows of
            # a tile make no state longer.  NaN is passed over here, and stays where it is
            b_largest = tl.maximum(tl.abs(b_state), tl.abs(b_end))
            b_size, b_less = _sizes(b_largest, tl.maximum(largest, 1e-30), GROUP_V, BLOCK_V)
            if USE_TRANSITION:
                # [BK, BK]
                transitions_ptr = transition_ptr + transition_row * transition_stride
                m_kk = m_gap[:, None] & (o_k < K)[None, :]
                b_transition = tl.load(transitions_ptr + o_kk, m_kk, other=0)
                if WIDE:
                    b_moved = tl.dot(b_transition, b_state, input_precision="tf32x3")
                else:
                    b_moved = tl.dot(
                        b_transition.to(tl.float16), (b_state * b_less[None, :]).to(tl.float16)
                    )
                    b_moved *= b_size[None, :]
                if EIGHT_BITS:
                    # [BK]: whole numbers are exact in fp16; their scales come after the product
                    scales_ptr = transition_scale_ptr + transition_row * transition_scale_stride
                    b_scale = tl.load(scales_ptr + o_k, m_gap, other=0).to(tl.float32)
                    diagonals_ptr = diagonal_ptr + transition_row * diagonal_stride
                    b_diagonal = tl.load(diagonals_ptr + o_k, m_gap, other=0).to(tl.float32)
                    b_moved = b_moved * b_scale[:, None] + b_state * b_diagonal[:, None]
                b_state = tl.where(has_gap, b_moved + b_end, b_state)
            else:
                b_state += b_end
            b_before = (b_state * b_less[None, :]).to(tl.float16)
            b_pseudo -= tl.dot(b_erased, b_before) * b_size[None, :]
            b_written = (b_pseudo * b_less[None, :]).to(tl.float16)
            b_out = tl.dot(b_read, b_before)
            b_out = tl.dot(b_score.to(tl.float16), b_written, acc=b_out) * b_size[None, :]
            b_state = b_state * whole + tl.dot(tl.trans(b_late), b_written) * b_size[None, :]
            m_out = (o_c < num_rows)[:, None] & m_v[None, :]
            o_out = ((row + o_c) * H + i_h)[:, None] * V + o_v[None, :]
            tl.store(out_ptr + o_out, b_out.to(out_ptr.dtype.element_ty), m_out)
            if save != -1:
                m_slab = (o_k < tl.where(save >= 0, K, 0))[:, None] & m_v[None, :]
                m_work = (o_k < tl.where(save < -1, K, 0))[:, None] & m_v[None, :]
                tl.store(states_ptr + save * states_stride + o_kv, b_state, m_slab)
                tl.store(own_work_ptr + o_kv, b_state, m_work)


def suits(inputs: ScanInputs) -> bool:
    """Whether tiles serve this recurrence."""
    return inputs.suits_fp16 and inputs.key_size <= _LARGEST_KEY


def walk_tiles(
    prepared: tuple[torch.Tensor, ...],
    walk: TiledWalk,
    states_SHKV: torch.Tensor,
    pair: tuple[torch.Tensor, ...],
    work: torch.Tensor,
    out_LHV: torch.Tensor,
    *,
    eight_bits: bool,
    use_transition: bool,
) -> None:
    """Put the sequences of one launch through.

    Args:
        prepared: what `prepare` made.
        pair: transitions, their scales and diagonals, end states and their scales.
        work: [sequences, H, K, V]: states between launches.
    """
    _, H, K, V = states_SHKV.shape
    wide = pair[0].dtype == torch.float32
    # a transition in fp32 leaves no registers for more columns
    is_many = walk.num_walkers >= _MANY_WALKERS and not wide
    block_v = _BLOCK_V_OF_MANY if is_many else _BLOCK_V
    block_v = min(block_v, max(16, next_power_of_2(V)))
    _walk_tiles_kernel.run(
        *prepared,
        states_SHKV,
        *pair,
        work,
        out_LHV,
        walk.count,
        walk.walks,
        walk.steps,
        states_SHKV.stride(0),
        *(slab.stride(0) for slab in pair),
        walk.num_walkers,
        grid=(cdiv(V, block_v), H, walk.num_walkers),
        warmup=False,
        H=H,
        K=K,
        V=V,
        C=TILE_ROWS,
        EIGHT_BITS=eight_bits,
        USE_TRANSITION=use_transition,
        WIDE=wide,
        WALK_FIELDS=WALK_FIELDS,
        STEP_FIELDS=STEP_FIELDS,
        BLOCK_K=_block_k(K),
        BLOCK_V=block_v,
        GROUP_V=_GROUP_V,
        num_warps=_WARPS,
        num_stages=1 if wide else _STAGES,
    )


def _block_k(K: int) -> int:
    return max(16, next_power_of_2(K))


def prepare(inputs: ScanInputs, tiles: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Reads, late keys, erased, scores, pseudo-values and whole decays of all tiles [tiles, 2]."""
    assert inputs.erase is not None, "tiles are for recurrences that erase"
    query, key, value = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (inputs.query, inputs.key, inputs.value)
    )
    _, H, V = value.shape
    lead, block_k = (tiles.shape[0], H), _block_k(inputs.key_size)
    prepared = (
        *value.new_empty((3, *lead, TILE_ROWS, block_k), dtype=torch.float16).unbind(),
        value.new_empty((*lead, TILE_ROWS, TILE_ROWS), dtype=torch.float32),
        value.new_empty((*lead, TILE_ROWS, V), dtype=torch.float32),
        value.new_empty((*lead, 2), dtype=torch.float32),
    )
    _prepare_kernel.run(
        query,
        key,
        value,
        key if inputs.log_decay is None else inputs.log_decay.contiguous(),
        inputs.erase.contiguous(),
        tiles,
        *prepared,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        inputs.scale,
        grid=lead,
        warmup=False,
        H=H,
        GROUPS=H // key.shape[1],
        K=inputs.key_size,
        V=V,
        EPS=UNIT_EPS,
        HAS_DECAY=inputs.log_decay is not None,
        MIN_LOG=MIN_LOG_DECAY,
        C=TILE_ROWS,
        BLOCK_K=block_k,
        BLOCK_V=max(16, next_power_of_2(V)),
        LEVELS=TILE_ROWS.bit_length() - 2,
        num_warps=_PREPARE_WARPS,
        num_stages=1,
    )
    return prepared
