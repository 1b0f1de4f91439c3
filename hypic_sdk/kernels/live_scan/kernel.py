"""Live sequences on a GPU: one program a sequence, head and block of V walks runs and gaps.

A decode row and a short run go through token by token, the block of the state in registers; a gap
is a product with T, whose other operand passes through a work buffer.  Longer runs go through the
tiled scan between two launches.  What `tiles` serves goes there, or where it is a few rows and
nothing else through `steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.kernels.items import Item
from hypic_sdk.kernels.kept import kept_for_same
from hypic_sdk.kernels.live_scan import steps, tiles
from hypic_sdk.kernels.live_scan.plan import FIELDS, LONGEST_WALK
from hypic_sdk.kernels.live_scan.walk import Walk
from hypic_sdk.kernels.rotation import RotarySpec
from hypic_sdk.kernels.scan_inputs import UNIT_EPS, ScanInputs
from hypic_sdk.kernels.segment_scan.kernel import LongRuns
from hypic_sdk.kernels.segment_scan.stretch import scan_stretch, steps_only

_BLOCK_V = 32
_BLOCK_J = 16
# registers of a thread: with more, two programs share a multiprocessor instead of three
_MOST_REGISTERS = 168


@triton.jit
def _walk_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    decay_ptr,  # of tokens: log-decays, or with RATES step sizes; read by DECAY only
    erase_ptr,
    rates_ptr,  # [H, K], or with DECAY == 3 the constant log-decays [H]
    states_ptr,
    transition_ptr,
    transition_scale_ptr,  # read with EIGHT_BITS only, as all up to `end_scale_ptr`
    diagonal_ptr,
    end_ptr,
    end_scale_ptr,
    work_ptr,  # [sequences, H, K, V]: states between launches, and an operand of a gap's product
    gap_ptr,  # [launched, H, K, V], read with GAP_KIND == 4 only
    out_ptr,
    cos_ptr,  # [gaps, F]
    sin_ptr,
    launched_ptr,  # [launched, 3]: sequence, first and last row of the table
    table_ptr,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    states_stride,
    transition_stride,
    transition_scale_stride,
    diagonal_stride,
    end_stride,
    end_scale_stride,
    scale,
    H: tl.constexpr,
    GROUPS: tl.constexpr,  # state heads that share a key head
    K: tl.constexpr,
    V: tl.constexpr,
    F: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    UNIT: tl.constexpr,
    EPS: tl.constexpr,
    ERASE: tl.constexpr,
    DECAY: tl.constexpr,  # 0 none, 1 [L, H], 2 [L, H, K], 3 constant [H], 4 steps [L, H] and rates
    EIGHT_BITS: tl.constexpr,  # of a gap's pair
    GAP_KIND: tl.constexpr,  # 0 add only, 1 [H], 2 [H, K], 3 constant, 4 dense, 5 steps and rates
    NUM_FIELDS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_J: tl.constexpr,
):
    i_launched = tl.program_id(0).to(tl.int64)
    i_h, i_v = tl.program_id(1).to(tl.int64), tl.program_id(2)
    i_sequence = tl.load(launched_ptr + i_launched * 3)
    first = tl.load(launched_ptr + i_launched * 3 + 1)
    last = tl.load(launched_ptr + i_launched * 3 + 2)
    o_k = tl.arange(0, BLOCK_K)
    o_v = i_v * BLOCK_V + tl.arange(0, BLOCK_V)
    m_k, m_v = o_k < K, o_v < V
    m_kv = m_k[:, None] & m_v[None, :]
    o_kv = o_k[:, None] * V + o_v[None, :]
    key_ptr += (i_h // GROUPS) * key_head_stride
    query_ptr += (i_h // GROUPS) * query_head_stride
    value_ptr += i_h * value_head_stride
    states_ptr += i_h * K * V
    work_ptr += (i_sequence * H + i_h) * K * V
    gap_ptr += (i_launched * H + i_h) * K * V
    if DECAY == 3:
        constant = tl.load(rates_ptr + i_h).to(tl.float32)
    if DECAY == 4:
        # [BK]
        b_rates = tl.load(rates_ptr + i_h * K + o_k, mask=m_k, other=0.0).to(tl.float32)
    if F > 0:
        # row k turns with `o_other`; the second of a pair takes the first with a plus
        if INTERLEAVED:
            is_first = o_k % 2 == 0
            o_pair = o_k // 2
            o_other = tl.where(is_first, o_k + 1, o_k - 1)
        else:
            is_first = o_k < F
            o_pair = tl.where(is_first, o_k, o_k - F)
            o_other = tl.where(is_first, o_k + F, o_k - F)
        m_turned = o_k < 2 * F
        o_other = tl.where(m_turned, o_other, o_k)
        o_otherv = o_other[:, None] * V + o_v[None, :]
    # [BK, BV]
    b_state = tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32)

    for i_item in range(first, last):
        item_ptr = table_ptr + i_item * NUM_FIELDS
        kind = tl.load(item_ptr)
        slot = tl.load(item_ptr + 3)
        slab_ptr = states_ptr + slot * states_stride
        # [BK, BV]: all of the state, or nothing of it
        m_slab = (o_k < tl.where(slot >= 0, K, 0))[:, None] & m_v[None, :]
        m_work = (o_k < tl.where(slot < -1, K, 0))[:, None] & m_v[None, :]
        if kind == 0:  # LOAD; no slot: zeros
            b_state = tl.load(slab_ptr + o_kv, m_slab, other=0)
            b_state += tl.load(work_ptr + o_kv, m_work, other=0)
        elif kind == 3:  # SAVE
            tl.store(slab_ptr + o_kv, b_state, m_slab)
            tl.store(work_ptr + o_kv, b_state, m_work)
        elif kind == 1:  # RUN
            start, stop = tl.load(item_ptr + 1), tl.load(item_ptr + 2)
            m_row = o_k < tl.where(start < stop, K, 0)
            m_rowv = m_v & (o_v < tl.where(start < stop, V, 0))
            # [BK], [BV]: a row is loaded while the one before it is computed
            b_next_key = tl.load(key_ptr + start * key_stride + o_k, m_row, other=0)
            b_next_query = tl.load(query_ptr + start * query_stride + o_k, m_row, other=0)
            b_next_value = tl.load(value_ptr + start * value_stride + o_v, m_rowv, other=0)
            for i_l in range(start, stop):
                b_key = b_next_key.to(tl.float32)
                b_query = b_next_query.to(tl.float32)
                b_write = b_next_value.to(tl.float32)
                i_next = i_l + 1
                m_row = o_k < tl.where(i_next < stop, K, 0)
                m_rowv = m_v & (o_v < tl.where(i_next < stop, V, 0))
                b_next_key = tl.load(key_ptr + i_next * key_stride + o_k, m_row, other=0)
                b_next_query = tl.load(query_ptr + i_next * query_stride + o_k, m_row, other=0)
                b_next_value = tl.load(value_ptr + i_next * value_stride + o_v, m_rowv, other=0)
                if UNIT:
                    b_key *= 1.0 / tl.sqrt(tl.sum(b_key * b_key, 0) + EPS)
                    b_query *= 1.0 / tl.sqrt(tl.sum(b_query * b_query, 0) + EPS)
                b_query *= scale
                if DECAY == 1:
                    b_state *= tl.exp(tl.load(decay_ptr + i_l * H + i_h).to(tl.float32))
                if DECAY == 2:
                    o_decay = (i_l * H + i_h) * K + o_k
                    b_log = tl.load(decay_ptr + o_decay, m_k, other=0).to(tl.float32)
                    b_state *= tl.exp(b_log)[:, None]
                if DECAY == 3:
                    b_state *= tl.exp(constant)
                if DECAY == 4:
                    step = tl.load(decay_ptr + i_l * H + i_h).to(tl.float32)
                    b_state *= tl.exp(step * b_rates)[:, None]
                if ERASE:
                    strength = tl.load(erase_ptr + i_l * H + i_h).to(tl.float32)
                    b_write = strength * (b_write - tl.sum(b_state * b_key[:, None], 0))
                b_state += b_key[:, None] * b_write[None, :]
                b_out = tl.sum(b_state * b_query[:, None], 0).to(out_ptr.dtype.element_ty)
                tl.store(out_ptr + (i_l * H + i_h) * V + o_v, b_out, m_v)
        else:  # GAP
            i_row = tl.load(item_ptr + 4)
            row_ptr = transition_ptr + i_row * transition_stride
            if GAP_KIND == 1:
                b_state *= tl.exp(tl.load(row_ptr + i_h).to(tl.float32))
            if GAP_KIND == 2:
                b_log = tl.load(row_ptr + i_h * K + o_k, m_k, other=0).to(tl.float32)
                b_state *= tl.exp(b_log)[:, None]
            if GAP_KIND == 3:
                b_state *= tl.exp(constant * tl.load(item_ptr + 5).to(tl.float32))
            if GAP_KIND == 5:
                b_state *= tl.exp(tl.load(row_ptr + i_h).to(tl.float32) * b_rates)[:, None]
            if GAP_KIND == 4:
                tl.debug_barrier()
                tl.store(gap_ptr + o_kv, b_state, m_kv)
                tl.debug_barrier()
                b_state = tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32)
                if EIGHT_BITS:
                    # [BK]
                    scales_ptr = transition_scale_ptr + i_row * transition_scale_stride + i_h * K
                    b_scale = tl.load(scales_ptr + o_k, m_k, other=0).to(tl.float32)
                    diagonals_ptr = diagonal_ptr + i_row * diagonal_stride + i_h * K
                    b_diagonal = tl.load(diagonals_ptr + o_k, m_k, other=0).to(tl.float32)
                for i_j in range(0, K, BLOCK_J):
                    o_j = i_j + tl.arange(0, BLOCK_J)
                    m_j = o_j < K
                    # [BK, BJ]
                    b_transition = tl.load(
                        row_ptr + i_h * K * K + o_k[:, None] * K + o_j[None, :],
                        m_k[:, None] & m_j[None, :],
                        other=0,
                    ).to(tl.float32)
                    if EIGHT_BITS:
                        is_diagonal = o_k[:, None] == o_j[None, :]
                        b_transition *= b_scale[:, None]
                        b_transition += tl.where(is_diagonal, b_diagonal[:, None], 0.0)
                    # [BJ, BV]
                    b_before = tl.load(
                        gap_ptr + o_j[:, None] * V + o_v[None, :],
                        m_j[:, None] & m_v[None, :],
                        other=0,
                    )
                    # three products on the matrix units, nearly an fp32 product: what was stored
                    # in 16 bits is exact in the first of them
                    b_state = tl.dot(b_transition, b_before, acc=b_state, input_precision="tf32x3")
            # [BK, BV]
            if EIGHT_BITS:
                ends_ptr = end_ptr + i_row * end_stride + i_h * K * V
                end_scales_ptr = end_scale_ptr + i_row * end_scale_stride + i_h * K
                b_end = tl.load(ends_ptr + o_kv, m_kv, other=0).to(tl.float32)
                b_end *= tl.load(end_scales_ptr + o_k, m_k, other=0).to(tl.float32)[:, None]
            else:
                b_end = tl.load(slab_ptr + o_kv, m_kv, other=0)
            if F > 0:
                number = tl.load(item_ptr + 6)
                b_cos = tl.load(cos_ptr + number * F + o_pair, m_turned, other=1.0)
                b_sin = tl.load(sin_ptr + number * F + o_pair, m_turned, other=0.0)
                b_sin = tl.where(is_first, -b_sin, b_sin)
                if EIGHT_BITS:
                    b_other = tl.load(ends_ptr + o_otherv, m_kv, other=0).to(tl.float32)
                    b_scale = tl.load(end_scales_ptr + o_other, m_k, other=0).to(tl.float32)
                    b_other *= b_scale[:, None]
                else:
                    b_other = tl.load(slab_ptr + o_otherv, m_kv, other=0)
                b_end = b_end * b_cos[:, None] + b_other * b_sin[:, None]
            b_state += b_end


@kept_for_same(maxsize=4)
def _walk(
    items: Sequence[Item], longest_run: int, spec: RotarySpec | None, device: torch.device
) -> Walk:
    return Walk.of(items, longest_run, spec, device)


def live_scan(
    inputs: ScanInputs,
    items: Sequence[Item] | Walk,
    states_SHKV: torch.Tensor,
    transitions: torch.Tensor | Int8Pairs | None,
    out_LHV: torch.Tensor,
    *,
    gap_rotation: RotarySpec | None,
    use_transition: bool,
) -> None:
    """As the reference, for states in fp32."""
    assert states_SHKV.dtype == torch.float32, "the op's door keeps fp64 from here"
    if not isinstance(items, Walk) and not items:
        return
    walk = _walk_of(items, inputs, gap_rotation, states_SHKV.device)
    work = states_SHKV[:1]
    if any(walk.long_runs) or len(walk.launched) > 1:
        work = states_SHKV.new_empty((walk.num_sequences, *states_SHKV.shape[1:]))
    in_tiles = tiles.suits(inputs) and not gap_rotation
    if not in_tiles or walk.tiles.shape[0] or any(walk.long_runs):
        inputs = inputs.written_out()  # decode rows alone make their gates by themselves
    prepared = tiles.prepare(inputs, walk.tiles) if in_tiles and walk.tiles.shape[0] else ()
    run_long = _long_runs(inputs, walk, work, out_LHV)
    launches = walk.stepped if in_tiles else walk.launched
    for number, (launched, tiled) in enumerate(zip(launches, walk.tiled, strict=True)):
        if in_tiles and launched.shape[0]:
            steps.walk_steps(inputs, launched, walk.table, states_SHKV, work, out_LHV)
        elif launched.shape[0]:
            _launch(
                inputs,
                walk,
                launched,
                states_SHKV,
                transitions,
                work,
                out_LHV,
                gap_rotation,
                use_transition,
            )
        if in_tiles and tiled is not None:
            tiles.walk_tiles(
                prepared,
                tiled,
                states_SHKV,
                _pair_slabs(states_SHKV, transitions),
                work,
                out_LHV,
                eight_bits=isinstance(transitions, Int8Pairs),
                use_transition=use_transition,
            )
        run_long(number)


def _long_runs(
    inputs: ScanInputs, walk: Walk, work: torch.Tensor, out_LHV: torch.Tensor
) -> Callable[[int], None]:
    """To put a launch's long runs through, from and to their sequences' rows of the work buffer."""
    if not any(walk.long_runs):
        return lambda number: None
    if inputs.suits_fp16:
        in_tiles = LongRuns.of(inputs, walk.long_runs)
        return lambda number: (
            in_tiles.walk(number, work, out_LHV) if walk.long_runs[number] else None
        )

    def run(number: int) -> None:
        for run in walk.long_runs[number]:
            outputs, state = scan_stretch(inputs.rows(run.start, run.stop), work[run.sequence])
            out_LHV[run.start : run.stop] = outputs
            work[run.sequence] = state

    return run


def _walk_of(
    items: Sequence[Item] | Walk,
    inputs: ScanInputs,
    gap_rotation: RotarySpec | None,
    device: torch.device,
) -> Walk:
    if isinstance(items, Walk):
        return items
    wanted = inputs.num_tokens if steps_only(inputs) else LONGEST_WALK, gap_rotation, device
    return _walk(items, *wanted)


def _launch(
    inputs: ScanInputs,
    walk: Walk,
    launched: torch.Tensor,
    states_SHKV: torch.Tensor,
    transitions: torch.Tensor | Int8Pairs | None,
    work: torch.Tensor,
    out_LHV: torch.Tensor,
    gap_rotation: RotarySpec | None,
    use_transition: bool,
) -> None:
    _, num_heads, key_size, value_size = states_SHKV.shape
    assert states_SHKV[0].is_contiguous(), "rows of the state slab are contiguous"
    pair = _pair_slabs(states_SHKV, transitions)
    # memory of one running state alone has no row of pairs
    assert all(s[0].is_contiguous() for s in pair if s.shape[0]), "rows of the slabs are contiguous"
    assert out_LHV.is_contiguous(), "outputs are contiguous"
    query, key, value = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (inputs.query, inputs.key, inputs.value)
    )
    decay_kind, decay, rates = _decay(inputs, query)
    gap_kind = _gap_kind(inputs, transitions) if use_transition else 0
    gap = work
    if gap_kind == 4:
        gap = states_SHKV.new_empty((len(launched), *states_SHKV.shape[1:]))
    erase = query if inputs.erase is None else inputs.erase.contiguous()
    block_k = max(16, next_power_of_2(key_size))
    block_v = min(_BLOCK_V, max(16, next_power_of_2(value_size)))
    num_pairs = 0 if gap_rotation is None else gap_rotation.rotary_dims // 2
    _walk_kernel.run(
        query,
        key,
        value,
        decay,
        erase,
        rates,
        states_SHKV,
        *pair,
        work,
        gap,
        out_LHV,
        walk.cos if walk.cos.numel() else states_SHKV,
        walk.sin if walk.sin.numel() else states_SHKV,
        launched,
        walk.table,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        states_SHKV.stride(0),
        *(slab.stride(0) for slab in pair),
        inputs.scale,
        grid=(launched.shape[0], num_heads, cdiv(value_size, block_v)),
        warmup=False,
        H=num_heads,
        GROUPS=num_heads // key.shape[1],
        K=key_size,
        V=value_size,
        F=num_pairs,
        INTERLEAVED=gap_rotation is not None and gap_rotation.interleaved,
        UNIT=inputs.unit_keys,
        EPS=UNIT_EPS,
        ERASE=inputs.erase is not None,
        DECAY=decay_kind,
        EIGHT_BITS=isinstance(transitions, Int8Pairs),
        GAP_KIND=gap_kind,
        NUM_FIELDS=FIELDS,
        BLOCK_K=block_k,
        BLOCK_V=block_v,
        BLOCK_J=min(_BLOCK_J, block_k),
        num_warps=4,
        num_stages=1,
        maxnreg=_MOST_REGISTERS,
    )


def _decay(inputs: ScanInputs, unused: torch.Tensor) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Kind of a token's decay, and the tensors that it takes."""
    if inputs.rates is not None and inputs.steps is not None:
        return 4, inputs.steps.contiguous(), inputs.rates.contiguous()
    if inputs.constant_log_decay is not None:
        return 3, unused, inputs.constant_log_decay.contiguous()
    if inputs.log_decay is None:
        return 0, unused, unused
    return inputs.log_decay.ndim - 1, inputs.log_decay.contiguous(), unused


def _pair_slabs(
    unused: torch.Tensor, transitions: torch.Tensor | Int8Pairs | None
) -> tuple[torch.Tensor, ...]:
    """Transitions, their scales and diagonals, end states and their scales, as far as there are."""
    if not isinstance(transitions, Int8Pairs):
        return (unused if transitions is None else transitions, *[unused] * 4)
    found = (transitions.transitions, transitions.transition_scales, transitions.diagonals)
    slabs = [unused if slab is None else slab for slab in found]
    return (*slabs, transitions.states, transitions.state_scales)


def _gap_kind(inputs: ScanInputs, transitions: torch.Tensor | Int8Pairs | None) -> int:
    if inputs.constant_log_decay is not None:
        return 3
    if isinstance(transitions, Int8Pairs):
        transitions = transitions.transitions
    assert transitions is not None, "a transition that varies is stored"
    if inputs.is_dense:
        return 4
    if inputs.rates is not None and transitions.ndim == 2:
        return 5
    return transitions.ndim - 1
