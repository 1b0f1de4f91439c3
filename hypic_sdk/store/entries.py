"""What the store keeps, and what a request asks of it: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from hypic_sdk.config import SeamWidths
from hypic_sdk.prompt.segment import BorderKind, SegmentKey
from hypic_sdk.store.slot_ranges import SlotRanges, ranges_of


@dataclass(frozen=True, eq=False)
class SegmentEntry:
    """One cached segment, immutable once committed; keys in its KV slots are not rotated."""

    key: SegmentKey
    num_tokens: int  # of the segment, seams included
    seam: SeamWidths
    # row of the state and conv-tail slabs: the interior's end state and tail; with pairs in 8 bits
    # of the conv-tail slab alone, behind all state rows
    state_slot: int
    transition_slot: int  # row of transitions, or of pairs; NO_SLOT where nothing is stored
    kv_slots: torch.Tensor  # [interior] int64 on the host, read only; [0] without full attention
    num_bytes: int

    @property
    def interior_tokens(self) -> int:
        """Tokens that are cached: the segment without its seams."""
        return self.num_tokens - self.seam.head_tokens - self.seam.tail_tokens

    @cached_property
    def slot_ranges(self) -> SlotRanges:
        """`kv_slots` in their order; found out once for all that read the entry."""
        return ranges_of(self.kv_slots)


@dataclass(frozen=True, slots=True, eq=False)
class ChainEntry:
    """A snapshot of a request at a border (design 3.3): running state, conv tail, KV references."""

    digest: bytes  # rolling digest over the items from position 0
    position: int  # tokens it covers
    state_slot: int  # row of the state and conv-tail slabs
    kv_slots: torch.Tensor  # [position] int64 on the host, read only; [0] without full attention
    slot_ranges: SlotRanges  # the same, in the same order
    exact: bool  # no interior after other tokens
    segment_keys: frozenset[SegmentKey]  # every segment it contains; deleted with any of them


@dataclass(frozen=True, slots=True)
class EntrySpec:
    """A segment entry to be made.  `namespace` is what `clear` goes by.

    `tokens` (see `prompt.segment.token_bytes`) are kept beside the entry and compared on a probe
    that names them; empty: not compared.
    """

    key: SegmentKey
    num_tokens: int
    seam: SeamWidths
    namespace: str = ""
    tokens: bytes = b""

    @property
    def interior_tokens(self) -> int:
        """Tokens that will be cached."""
        return self.num_tokens - self.seam.head_tokens - self.seam.tail_tokens


@dataclass(frozen=True, eq=False)
class ChainSpec:
    """A chain entry to be put.  `state_slot` is a row taken from the lease, written in full.

    `kv_slots` are the request's table up to `position`: shared, never copied.
    """

    namespace: str
    digest: bytes
    position: int
    state_slot: int
    kv_slots: torch.Tensor  # [position] int64 on the host; [0] without full attention
    exact: bool
    segment_keys: frozenset[SegmentKey]
    kind: BorderKind
    session_id: str | None = None
    cost_ms: float = 0.0  # what computing it again would take, for policies that weigh it

    @cached_property
    def slot_ranges(self) -> SlotRanges:
        """`kv_slots` in their order; found out once, when there is time for it."""
        return ranges_of(self.kv_slots)


@dataclass(frozen=True, slots=True)
class ChainRef:
    """Names a chain entry: digests are looked up within one namespace."""

    namespace: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Need:
    """All that one request asks of the store, granted in whole or not at all (design 9).

    `kv_tokens`: own KV slots beyond those of the chain: interiors to be placed, live tokens,
    `max_tokens`.  `state_rows`: running state, and rows for chain entries that must be kept.
    """

    entries: tuple[SegmentKey, ...] = ()  # held now; to be pinned
    new_entries: tuple[EntrySpec, ...] = ()  # not held and not in filling; to be made
    chain: ChainRef | None = None  # held now; to be pinned
    state_rows: int = 0
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ByteStates:
    """Bytes by state.  Every byte of a slab is in exactly one."""

    free: int = 0
    reserved: int = 0  # promised to a lease, not taken yet
    filling: int = 0  # an entry that is being written
    idle: int = 0  # held by entries that nobody pins: may be evicted
    pinned: int = 0  # in use by a lease

    @property
    def total(self) -> int:
        """The sum of all states."""
        return self.free + self.reserved + self.filling + self.idle + self.pinned

    def __add__(self, other: ByteStates) -> ByteStates:
        return ByteStates(
            self.free + other.free,
            self.reserved + other.reserved,
            self.filling + other.filling,
            self.idle + other.idle,
            self.pinned + other.pinned,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Where the budget is.  `total.total == budget_bytes` after every call."""

    budget_bytes: int
    unused_bytes: int  # of the configured budget, what no slab could use
    state_rows: ByteStates
    transition_rows: ByteStates
    kv_slots: ByteStates
    num_segments: int  # entries that a probe finds
    num_chains: int  # chain entries that a lookup finds
    num_filling: int
    num_leases: int
    num_evicted: int  # entries dropped for room since the start

    @property
    def total(self) -> ByteStates:
        """All three slabs together."""
        return self.state_rows + self.transition_rows + self.kv_slots


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one namespace holds; slots that several of its entries share count once."""

    num_segments: int = 0
    num_chains: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Removal:
    """What a deletion did: gone at once, or gone when the last lease that reads it is closed."""

    removed: int = 0
    deferred: int = 0

    def __add__(self, other: Removal) -> Removal:
        return Removal(self.removed + other.removed, self.deferred + other.deferred)
