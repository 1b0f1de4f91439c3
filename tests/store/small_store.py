"""Stores of a few dozen slots, with awkward sizes: K unlike V, nothing a power of two."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hypic_sdk.config import SeamWidths, StoreConfig
from hypic_sdk.prompt.segment import BorderKind, SegmentKey
from hypic_sdk.store.entries import ChainSpec, EntrySpec, Need, SegmentEntry
from hypic_sdk.store.layout import SlabSizes, StoreLayout
from hypic_sdk.store.lease import Lease
from hypic_sdk.store.store import Store

CPU = torch.device("cpu")
SEAM = SeamWidths(2, 1)
SEAM_TOKENS = SEAM.head_tokens + SEAM.tail_tokens


def small_layout(
    *, transition_axes: tuple[int, ...] | None = (2, 3, 3), kv: bool = True, int8: bool = False
) -> StoreLayout:
    return StoreLayout(
        num_linear=2,
        num_heads=2,
        key_size=3,
        value_size=5,
        transition_axes=transition_axes,
        conv_rows=3,
        conv_channels=7,
        num_attention=1 if kv else 0,
        num_kv_heads=1 if kv else 0,
        head_size=3 if kv else 0,
        dtype=torch.float32,
        state_dtype=torch.float32,
        transition_dtype=torch.float16,
        has_int8_pairs=int8,
    )


LAYOUTS = {
    "dense": small_layout(),
    "constant": small_layout(transition_axes=None),
    "no attention": small_layout(kv=False),
    "int8 dense": small_layout(int8=True),
    "int8 diagonal": small_layout(transition_axes=(2, 3), int8=True),
    "int8 constant": small_layout(transition_axes=None, int8=True),
}


def small_store(
    *,
    state_rows: int,
    transition_rows: int,
    kv_slots: int,
    layout: StoreLayout = LAYOUTS["dense"],
    config: StoreConfig | None = None,
) -> Store:
    transition_rows = transition_rows if layout.keeps_transitions else 0
    kv_slots = kv_slots if layout.keeps_kv else 0
    budget_bytes = (
        state_rows * layout.state_row_bytes
        + transition_rows * layout.transition_row_bytes
        + kv_slots * layout.kv_slot_bytes
    )
    sizes = SlabSizes(state_rows, transition_rows, kv_slots, budget_bytes, unused_bytes=0)
    return Store(layout, config or StoreConfig(), device=CPU, sizes=sizes)


def key_of(name: object) -> SegmentKey:
    return SegmentKey(str(name).encode().ljust(32, b"."))


def spec_of(
    name: object, interior: int = 4, *, namespace: str = "", tokens: bytes = b""
) -> EntrySpec:
    return EntrySpec(key_of(name), interior + SEAM_TOKENS, SEAM, namespace, tokens)


def granted(store: Store, need: Need) -> Lease:
    """The lease of a need that must fit."""
    lease = store.admit(need)
    assert lease is not None
    return lease


def warm(
    store: Store, *names: object, interior: int = 4, namespace: str = ""
) -> list[SegmentEntry]:
    """Make idle entries, the first named the least recently used."""
    entries = []
    for name in names:
        spec = spec_of(name, interior, namespace=namespace)
        with granted(store, Need(new_entries=(spec,))) as lease:
            entries.append(store.commit(lease.detach(spec.key)))
    return entries


def chain_spec(
    lease: Lease,
    name: object,
    kv_slots: torch.Tensor,
    *,
    row: int | None = None,
    kind: BorderKind = BorderKind.MESSAGE,
    session_id: str | None = None,
    segment_keys: Iterable[SegmentKey] = (),
    namespace: str = "",
) -> ChainSpec:
    return ChainSpec(
        namespace=namespace,
        digest=key_of(name),
        position=len(kv_slots),
        state_slot=lease.take_state_row() if row is None else row,
        kv_slots=kv_slots,
        exact=True,
        segment_keys=frozenset(segment_keys),
        kind=kind,
        session_id=session_id,
    )


def chain(
    store: Store,
    name: object,
    *,
    tokens: int = 2,
    kind: BorderKind = BorderKind.MESSAGE,
    session_id: str | None = None,
    segment_keys: Iterable[SegmentKey] = (),
    namespace: str = "",
) -> None:
    """Put one idle chain entry over slots of its own."""
    with granted(store, Need(state_rows=1, kv_tokens=tokens)) as lease:
        spec = chain_spec(
            lease,
            name,
            lease.take_kv(tokens),
            kind=kind,
            session_id=session_id,
            segment_keys=segment_keys,
            namespace=namespace,
        )
        assert store.put_chain(lease, spec)


def held_segments(store: Store, *names: object) -> list[object]:
    """Those of the names that a probe finds."""
    return [name for name in names if store.probe(key_of(name))]


def held_chains(store: Store, *names: object, namespace: str = "") -> list[object]:
    """Those of the names that a lookup finds."""
    return [n for n in names if store.longest_chain(namespace, [key_of(n)]) is not None]


def books(store: Store) -> object:
    """Everything a refused admission must leave as it is."""
    memory = store._memory
    return (
        store.usage(),
        [id(resident) for resident in memory.policy.order()],
        [pool.free.ranges for pool in memory.arena],
        [pool.holders.tensor().tolist() for pool in memory.arena],
        [pool.pins.tensor().tolist() for pool in memory.arena],
        sorted(memory.segments.held),
        sorted(memory.chains.held, key=lambda ref: (ref.namespace, ref.digest)),
        list(map(id, memory.segments.fillings)),
        list(map(id, memory.leases)),
    )
