"""Cold segments of a delta rule on a GPU: all tiles of all segments at once, then one walk each.

`_prepare_kernel` makes of each tile of 64 tokens what does not depend on the state before it (the
WY form, as `tiled`); `_chain_kernel` walks a segment's tiles with a block of columns of the state,
or of the transition, which is K more columns that nothing is written to.  Every program works on
one tile or one segment, so an entry's bits are its segment's own.

For recurrences with `erase` and a decay of a head, or none, in 16 bits; all others go through the
reference.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.items import ColdRun
from hypic_sdk.kernels.live_scan.kernel import compose
from hypic_sdk.kernels.scan_inputs import MIN_LOG_DECAY, UNIT_EPS, ScanInputs
from hypic_sdk.kernels.segment_scan import reference
from hypic_sdk.kernels.upload import upload

_TILE = 64
_FIELDS = 11
_BLOCK_V = 32
_FIRST_BLOCK = 16  # of a tile's inverse


@triton.jit
def _prepare_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    decay_ptr,  # read with HAS_DECAY only
    erase_ptr,
    tiles_ptr,  # [tiles, 2]: first row, rows
    read_ptr,  # out, [tiles, H, C, K]: queries, decayed from the tile's start
    late_key_ptr,  # out, [tiles, H, C, K]: keys, decayed until the tile's end
    erased_ptr,  # out, [tiles, H, C, K]: what pseudo-values lose for each unit of the state
    pseudo_ptr,  # out, [tiles, H, C, V]: pseudo-values from a zero state
    score_ptr,  # out, [tiles, H, C, C]
    whole_ptr,  # out, [tiles, H]: decay over the tile
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    scale,
    H: tl.constexpr,
    GROUPS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    UNIT: tl.constexpr,
    EPS: tl.constexpr,
    HAS_DECAY: tl.constexpr,
    MIN_LOG: tl.constexpr,
    C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    FIRST: tl.constexpr,  # size of the first blocks of the inverse; C = FIRST * 2**LEVELS
    LEVELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_t, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, count = tl.load(tiles_ptr + i_t * 2), tl.load(tiles_ptr + i_t * 2 + 1)
    o_c, o_k, o_v = tl.arange(0, C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    m_c = o_c < count
    m_ck = m_c[:, None] & (o_k < K)[None, :]
    o_l = row + o_c
    i_out = i_t * H + i_h
    o_ck = i_out * C * K + o_c[:, None] * K + o_k[None, :]
    # [C, BK]
    o_key = o_l[:, None] * key_stride + (i_h // GROUPS) * key_head_stride + o_k[None, :]
    o_query = o_l[:, None] * query_stride + (i_h // GROUPS) * query_head_stride + o_k[None, :]
    b_key = tl.load(key_ptr + o_key, m_ck, other=0).to(tl.float32)
    b_query = tl.load(query_ptr + o_query, m_ck, other=0).to(tl.float32)
    if UNIT:
        b_key *= (1.0 / tl.sqrt(tl.sum(b_key * b_key, 1) + EPS))[:, None]
        b_query *= (1.0 / tl.sqrt(tl.sum(b_query * b_query, 1) + EPS))[:, None]
    b_query *= scale
    # [C]
    b_strength = tl.load(erase_ptr + o_l * H + i_h, m_c, other=0).to(tl.float32)
    later = o_c[:, None] > o_c[None, :]
    b_score = tl.dot(b_query, tl.trans(b_key), input_precision=PRECISION)
    b_erase = tl.dot(b_key, tl.trans(b_key), input_precision=PRECISION) * b_strength[:, None]
    # [C]: decay from the tile's start until a token, and from there to its end
    b_start = tl.full([C], 1.0, dtype=tl.float32)
    b_end = tl.full([C], 1.0, dtype=tl.float32)
    if HAS_DECAY:
        b_log = tl.load(decay_ptr + o_l * H + i_h, m_c, other=0).to(tl.float64)
        b_log = tl.maximum(b_log, MIN_LOG)
        # fp64: a weak decay after strong ones is a small difference of large sums
        b_sum = tl.cumsum(b_log, 0)
        whole = tl.sum(b_log, 0)
        # [C, C]; above the diagonal it would overflow, and is not taken
        b_between = tl.where(later, b_sum[:, None] - b_sum[None, :], 0.0)
        b_between = tl.exp(b_between.to(tl.float32))
        b_score *= b_between
        b_erase *= b_between
        b_start = tl.exp(b_sum.to(tl.float32))
        b_end = tl.exp((whole - b_sum).to(tl.float32))
        tl.store(whole_ptr + i_out, tl.exp(whole.to(tl.float32)))
    else:
        tl.store(whole_ptr + i_out, 1.0)
    b_score = tl.where(later | (o_c[:, None] == o_c[None, :]), b_score, 0.0)
    b_erase = tl.where(later, b_erase, 0.0)
    m_out = (o_k < K)[None, :]
    # what is done with is written at once: registers are what this kernel lacks
    tl.store(read_ptr + o_ck, b_query * b_start[:, None], m_out)
    tl.store(late_key_ptr + o_ck, b_key * b_end[:, None], m_out)
    tl.store(score_ptr + i_out * C * C + o_c[:, None] * C + o_c[None, :], b_score)
    tl.debug_barrier()
    # (I + A)^-1: blocks on the diagonal row by row, all at once, then twice as large ones of two
    same_block = o_c[:, None] // FIRST == o_c[None, :] // FIRST
    b_inside = tl.where(same_block, b_erase, 0.0)
    b_inverse = tl.where(o_c[:, None] == o_c[None, :], 1.0, 0.0)
    for i_c in range(1, FIRST):
        is_row = o_c[:, None] % FIRST == i_c
        # [C]: of each column the row of its own block
        b_own = tl.sum(tl.where(is_row, b_inside, 0.0), 0)
        b_less = tl.sum(b_own[:, None] * b_inverse, 0)
        b_inverse = tl.where(is_row & same_block, b_inverse - b_less[None, :], b_inverse)
    for level in tl.static_range(LEVELS):
        o_block = o_c // (FIRST * 2**level)
        is_below = (o_block[:, None] == o_block[None, :] + 1) & (o_block[None, :] % 2 == 0)
        b_below = tl.where(is_below, b_erase, 0.0)
        b_less = tl.dot(b_inverse, b_below, input_precision=PRECISION)
        b_inverse -= tl.dot(b_less, b_inverse, input_precision=PRECISION)
    b_inverse *= b_strength[None, :]
    # [C, BK]: the keys once more
    b_early = tl.load(key_ptr + o_key, m_ck, other=0).to(tl.float32)
    if UNIT:
        b_early *= (1.0 / tl.sqrt(tl.sum(b_early * b_early, 1) + EPS))[:, None]
    b_erased = tl.dot(b_inverse, b_early * b_start[:, None], input_precision=PRECISION)
    tl.store(erased_ptr + o_ck, b_erased, m_out)
    m_v = (o_v < V)[None, :]
    o_value = o_l[:, None] * value_stride + i_h * value_head_stride + o_v[None, :]
    # [C, BV]
    b_value = tl.load(value_ptr + o_value, m_c[:, None] & m_v, other=0).to(tl.float32)
    b_pseudo = tl.dot(b_inverse, b_value, input_precision=PRECISION)
    tl.store(pseudo_ptr + i_out * C * V + o_c[:, None] * V + o_v[None, :], b_pseudo, m_v)


@triton.jit
def _chain_kernel(
    read_ptr,
    late_key_ptr,
    erased_ptr,
    pseudo_ptr,
    score_ptr,
    whole_ptr,
    tiles_ptr,
    runs_ptr,  # [runs, NUM_FIELDS]
    states_ptr,
    work_ptr,
    work_transition_ptr,
    minus_end_ptr,  # out, [runs, H, K, V]: minus the state where the interior ends
    transition_ptr,  # out, [runs, H, K, K]
    out_ptr,
    states_stride,
    work_stride,
    work_transition_stride,
    out_stride,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    NUM_FIELDS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    VALUE_BLOCKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_run, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    i_block = tl.program_id(2)
    run_ptr = runs_ptr + i_run * NUM_FIELDS
    first, last = tl.load(run_ptr), tl.load(run_ptr + 1)
    interior_first, interior_last = tl.load(run_ptr + 2), tl.load(run_ptr + 3)
    state_slot, work_slot = tl.load(run_ptr + 4), tl.load(run_ptr + 5)
    resumes, inside = tl.load(run_ptr + 6), tl.load(run_ptr + 7)
    opens, closes = tl.load(run_ptr + 8), tl.load(run_ptr + 9)
    unfinished = tl.load(run_ptr + 10)
    is_value = i_block < VALUE_BLOCKS
    # columns of the state, or of the transition
    num_columns = tl.where(is_value, V, K)
    o_c, o_k = tl.arange(0, C), tl.arange(0, BLOCK_K)
    o_x = tl.where(is_value, i_block, i_block - VALUE_BLOCKS) * BLOCK_V + tl.arange(0, BLOCK_V)
    m_x, m_k = o_x < num_columns, o_k < K
    o_kv = o_k[:, None] * V + o_x[None, :]
    o_kk = o_k[:, None] * K + o_x[None, :]
    # nothing, or all, of a block's columns
    m_value = o_x < tl.where(is_value, V, 0)
    m_kv = m_k[:, None] & m_value[None, :]
    m_kk = m_k[:, None] & (o_x < tl.where(is_value, 0, K))[None, :]
    i_rh = i_run * H + i_h
    states_ptr += state_slot * states_stride + i_h * K * V
    work_ptr += work_slot * work_stride + i_h * K * V
    work_transition_ptr += work_slot * work_transition_stride + i_h * K * K
    # [BK, BX]: zeros, or the identity's columns
    b_state = tl.where((o_k[:, None] == o_x[None, :]) & m_kk, 1.0, 0.0)
    if is_value:
        if resumes > 0:
            b_state = tl.load(work_ptr + o_kv, m_kv, other=0)
    else:
        if inside > 0:
            b_state = tl.load(work_transition_ptr + o_kk, m_kk, other=0)
    for i_t in range(first, last + 1):
        in_interior = (i_t >= interior_first) & (i_t < interior_last)
        if (i_t == interior_first) & (opens > 0):
            tl.store(states_ptr + o_kv, b_state, m_kv)
        if (i_t == interior_last) & (closes > 0):
            tl.store(minus_end_ptr + i_rh * K * V + o_kv, -b_state, m_kv)
            tl.store(transition_ptr + i_rh * K * K + o_kk, b_state, m_kk)
        if (i_t < last) & (is_value | in_interior):
            i_out = i_h + i_t * H
            o_ck = i_out * C * K + o_c[:, None] * K + o_k[None, :]
            m_ck = m_k[None, :]
            # [C, BK]
            b_erased = tl.load(erased_ptr + o_ck, m_ck, other=0)
            # [C, BX]
            b_pseudo = tl.load(
                pseudo_ptr + i_out * C * V + o_c[:, None] * V + o_x[None, :],
                m_value[None, :],
                other=0,
            )
            b_pseudo -= tl.dot(b_erased, b_state, input_precision=PRECISION)
            if is_value:
                row = tl.load(tiles_ptr + i_t * 2)
                m_c = o_c < tl.load(tiles_ptr + i_t * 2 + 1)
                b_read = tl.load(read_ptr + o_ck, m_ck, other=0)
                b_score = tl.load(score_ptr + i_out * C * C + o_c[:, None] * C + o_c[None, :])
                b_out = tl.dot(b_read, b_state, input_precision=PRECISION)
                b_out = tl.dot(b_score, b_pseudo, acc=b_out, input_precision=PRECISION)
                o_out = (row + o_c)[:, None] * out_stride + i_h * V + o_x[None, :]
                tl.store(
                    out_ptr + o_out,
                    b_out.to(out_ptr.dtype.element_ty),
                    m_c[:, None] & m_x[None, :],
                )
            b_late = tl.load(late_key_ptr + o_ck, m_ck, other=0)
            b_state = b_state * tl.load(whole_ptr + i_out)
            b_state = tl.dot(tl.trans(b_late), b_pseudo, acc=b_state, input_precision=PRECISION)
    if unfinished > 0:
        tl.store(work_ptr + o_kv, b_state, m_kv)
        if (opens > 0) | (inside > 0):
            tl.store(work_transition_ptr + o_kk, b_state, m_kk)


def suits(inputs: ScanInputs) -> bool:
    """Whether the kernel serves this recurrence; fp32 products would not fit the registers."""
    decay = inputs.log_decay
    scalar = inputs.constant_log_decay is None and (decay is None or decay.ndim == 2)
    return inputs.is_dense and scalar and inputs.value.dtype in (torch.bfloat16, torch.float16)


def segment_scan(
    inputs: ScanInputs,
    cold_runs: Sequence[ColdRun],
    states_SHKV: torch.Tensor,
    transitions: torch.Tensor | None,
    work_states_XHKV: torch.Tensor | None,
    work_transitions: torch.Tensor | None,
    out_LHV: torch.Tensor,
) -> torch.Tensor:
    """As the reference."""
    run = scan_in_tiles if suits(inputs) and cold_runs else reference.segment_scan
    return run(
        inputs,
        cold_runs,
        states_SHKV,
        transitions,
        work_states_XHKV,
        work_transitions,
        out_LHV,
    )


def scan_in_tiles(
    inputs: ScanInputs,
    cold_runs: Sequence[ColdRun],
    states_SHKV: torch.Tensor,
    transitions: torch.Tensor | None,
    work_states_XHKV: torch.Tensor | None,
    work_transitions: torch.Tensor | None,
    out_LHV: torch.Tensor,
) -> torch.Tensor:
    """As the reference, for a recurrence that erases with a decay of a head or none."""
    assert transitions is not None, "a dense transition is stored"
    device, (_, H, K, V) = inputs.value.device, states_SHKV.shape
    # a list may be changed and handed over again
    is_kept = type(cold_runs) is tuple
    call = _kept_call(_Same(cold_runs), device) if is_kept else _Call.of(cold_runs, device)
    # tf32x3: three products on the matrix units, nearly an fp32 product
    precision = "ieee" if inputs.value.dtype == torch.float32 else "tf32x3"
    prepared = _prepare(inputs, call.tiles, V, precision)
    minus_ends, found = (
        states_SHKV.new_empty((len(call.runs), H, K, columns)) for columns in (V, K)
    )
    _chain(
        *(prepared, call.tiles, call.runs, states_SHKV),
        states_SHKV if work_states_XHKV is None else work_states_XHKV,
        found if work_transitions is None else work_transitions,
        *(minus_ends, found, out_LHV, precision),
    )
    return _keep_pairs(call, states_SHKV, transitions, minus_ends, found)


def run_in_tiles(
    inputs: ScanInputs,
    runs: Sequence[tuple[int, int, int]],
    work_states: torch.Tensor,
    out_LHV: torch.Tensor,
) -> None:
    """Put long live runs through, each from a state that lies in a work buffer and back to it.

    Args:
        runs: (work row, first row, one behind the last) of each; no two share a work row.
        work_states: [work rows, H, K, V] fp32.
    """
    device = inputs.value.device
    # a list may be changed and handed over again
    is_kept = type(runs) is tuple
    tiles, rows = _kept_tables(_Same(runs), device) if is_kept else _live_tables(runs, device)
    precision = "ieee" if inputs.value.dtype == torch.float32 else "tf32x3"
    prepared = _prepare(inputs, tiles, inputs.value.shape[2], precision)
    # no interior begins or ends here, so of transitions and slabs nothing is read or written
    _chain(
        *(prepared, tiles, rows, work_states, work_states, work_states),
        *(work_states, work_states, out_LHV, precision),
        has_transitions=False,
    )


def _live_tables(
    runs: Sequence[tuple[int, int, int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    tiles: list[tuple[int, int]] = []
    rows: list[tuple[int, ...]] = []
    for work_row, start, stop in runs:
        first = len(tiles)
        tiles += [(row, min(_TILE, stop - row)) for row in range(start, stop, _TILE)]
        last, never = len(tiles), len(tiles) + 1
        # resumes from its work row and ends there; opens and closes no interior
        rows.append((first, last, never, never, 0, work_row, 1, 0, 0, 0, 1))
    return upload(tiles, device), upload(rows, device)


@dataclass(frozen=True, eq=False, slots=True)
class _Call:
    """What is run, on the device; made once for all layers of a forward."""

    tiles: torch.Tensor  # [tiles, 2] int64
    runs: torch.Tensor  # [runs, _FIELDS] int64
    ended: tuple[int, ...]  # runs that end their interior
    ended_table: tuple[torch.Tensor, ...]  # these, and their rows of both slabs

    @classmethod
    def of(cls, cold_runs: Sequence[ColdRun], device: torch.device) -> _Call:
        tiles, rows = _tables(cold_runs)
        ended = tuple(i for i, run in enumerate(cold_runs) if run.closes_interior)
        slots = [cold_runs[i].state_slot for i in ended]
        table = upload([ended, slots, [cold_runs[i].transition_slot for i in ended]], device)
        return cls(upload(tiles, device), upload(rows, device), ended, table.unbind(0))


@dataclass(frozen=True, eq=False, slots=True)
class _Same:
    """A tuple of runs, equal to itself alone."""

    runs: Sequence[Any]

    def __hash__(self) -> int:
        return id(self.runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.runs is self.runs


@functools.lru_cache(maxsize=16)  # of each launch of a forward
def _kept_tables(same: _Same, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return _live_tables(same.runs, device)


@functools.lru_cache(maxsize=4)
def _kept_call(same: _Same, device: torch.device) -> _Call:
    """All layers of a forward hand over the same tuple of runs: one call serves them."""
    return _Call.of(same.runs, device)


def _tables(cold_runs: Sequence[ColdRun]) -> tuple[list[tuple[int, int]], list[tuple[int, ...]]]:
    """Tiles [first row, rows] of all stretches, and what `_chain_kernel` reads of each run."""
    tiles: list[tuple[int, int]] = []
    rows: list[tuple[int, ...]] = []
    for run in cold_runs:
        edges = [len(tiles)]
        for start, stop in run.stretches():
            tiles += [(row, min(_TILE, stop - row)) for row in range(start, stop, _TILE)]
            edges.append(len(tiles))
        inside = run.head_tokens < run.offset < run.num_tokens - run.tail_tokens
        rows.append(
            (
                *(edges[0], edges[3], edges[1], edges[2], run.state_slot, max(run.work_slot, 0)),
                int(run.offset > 0),
                int(inside),
                int(run.opens_interior),
                int(run.closes_interior),
                int(run.offset + run.row_stop - run.row_start < run.num_tokens),
            )
        )
    return tiles, rows


def _prepare(
    inputs: ScanInputs, tiles_table: torch.Tensor, V: int, precision: str
) -> tuple[torch.Tensor, ...]:
    """Reads, late keys, erased, pseudo-values, scores and whole decays of all tiles."""
    assert inputs.erase is not None, "the kernel is for recurrences that erase"
    query, key, value = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (inputs.query, inputs.key, inputs.value)
    )
    H, K, count = inputs.num_heads, inputs.key_size, len(tiles_table)
    read, late_key, erased = (
        torch.empty((count, H, _TILE, K), dtype=torch.float32, device=value.device)
        for _ in range(3)
    )
    pseudo = torch.empty((count, H, _TILE, V), dtype=torch.float32, device=value.device)
    score = torch.empty((count, H, _TILE, _TILE), dtype=torch.float32, device=value.device)
    whole = torch.empty((count, H), dtype=torch.float32, device=value.device)
    _prepare_kernel[(count, H)](
        query,
        key,
        value,
        key if inputs.log_decay is None else inputs.log_decay.contiguous(),
        inputs.erase.contiguous(),
        tiles_table,
        read,
        late_key,
        erased,
        pseudo,
        score,
        whole,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        inputs.scale,
        H=H,
        GROUPS=H // key.shape[1],
        K=K,
        V=V,
        UNIT=inputs.unit_keys,
        EPS=UNIT_EPS,
        HAS_DECAY=inputs.log_decay is not None,
        MIN_LOG=MIN_LOG_DECAY,
        C=_TILE,
        BLOCK_K=max(16, triton.next_power_of_2(K)),
        BLOCK_V=max(16, triton.next_power_of_2(V)),
        FIRST=min(_FIRST_BLOCK, _TILE),
        LEVELS=(_TILE // min(_FIRST_BLOCK, _TILE)).bit_length() - 1,
        PRECISION=precision,
        num_warps=8,
        num_stages=1,
    )
    return read, late_key, erased, pseudo, score, whole


def _chain(
    prepared: tuple[torch.Tensor, ...],
    tiles_table: torch.Tensor,
    runs_table: torch.Tensor,
    states_SHKV: torch.Tensor,
    work_states: torch.Tensor,
    work_transitions: torch.Tensor,
    minus_ends: torch.Tensor,
    found: torch.Tensor,
    out_LHV: torch.Tensor,
    precision: str,
    *,
    has_transitions: bool = True,
) -> None:
    _, H, K, V = states_SHKV.shape
    assert states_SHKV[0].is_contiguous(), "rows of the state slab are contiguous"
    assert work_states[0].is_contiguous(), "rows of the work slab are contiguous"
    assert work_transitions[0].is_contiguous(), "rows of the work slab are contiguous"
    assert out_LHV.is_contiguous(), "outputs are contiguous"
    block_v = min(_BLOCK_V, max(16, triton.next_power_of_2(max(K, V))))
    value_blocks = triton.cdiv(V, block_v)
    transition_blocks = triton.cdiv(K, block_v) if has_transitions else 0
    _chain_kernel[(len(runs_table), H, value_blocks + transition_blocks)](
        *prepared,
        tiles_table,
        runs_table,
        states_SHKV,
        work_states,
        work_transitions,
        minus_ends,
        found,
        out_LHV,
        states_SHKV.stride(0),
        work_states.stride(0),
        work_transitions.stride(0),
        out_LHV.stride(0),
        H=H,
        K=K,
        V=V,
        C=_TILE,
        NUM_FIELDS=_FIELDS,
        BLOCK_K=max(16, triton.next_power_of_2(K)),
        BLOCK_V=block_v,
        VALUE_BLOCKS=value_blocks,
        PRECISION=precision,
        num_warps=4,
        num_stages=1,
    )


def _keep_pairs(
    call: _Call,
    states_SHKV: torch.Tensor,
    transitions: torch.Tensor,
    minus_ends: torch.Tensor,
    found: torch.Tensor,
) -> torch.Tensor:
    """S = F - T S_head and T to their rows, of the runs that end their interior."""
    finite = torch.ones(len(call.runs), dtype=torch.bool, device=states_SHKV.device)
    if not call.ended:
        return finite
    places, slots, rows = call.ended_table
    ends = compose(states_SHKV[slots], found, call.ended, minus_ends, call.ended).neg_()
    kept = found[places].to(transitions.dtype)
    states_SHKV[slots], transitions[rows] = ends, kept
    finite[places] = ends.isfinite().flatten(1).all(1) & kept.isfinite().flatten(1).all(1)
    return finite
