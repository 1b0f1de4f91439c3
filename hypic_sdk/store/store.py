"""The one door to cache memory: probe, admit, commit, put, delete, count."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import final

import torch

from hypic_sdk.config import StoreConfig
from hypic_sdk.errors import PoolExhausted
from hypic_sdk.prompt.segment import SegmentKey
from hypic_sdk.store import integrity
from hypic_sdk.store.advice import Advice
from hypic_sdk.store.arena import Amount, Holding
from hypic_sdk.store.entries import (
    ChainEntry,
    ChainRef,
    ChainSpec,
    EntrySpec,
    Holdings,
    Need,
    Removal,
    SegmentEntry,
    Usage,
)
from hypic_sdk.store.eviction import EvictionPolicy
from hypic_sdk.store.filling import Filling
from hypic_sdk.store.layout import NO_SLOT, SlabSizes, StoreLayout
from hypic_sdk.store.lease import Lease
from hypic_sdk.store.lru import Lru
from hypic_sdk.store.memory import Memory
from hypic_sdk.store.residents import AnyResident, Resident
from hypic_sdk.store.slab import Slabs
from hypic_sdk.store.slot_pool import Claim
from hypic_sdk.store.slot_ranges import count, slots_at, tensor_of, union

logger = logging.getLogger(__name__)


@final
class Store:
    """Segment entries, chain entries and the memory of requests, in one byte budget.

    Single-threaded: one engine calls it, between its steps.  The life of things:

    - an entry: `admit(Need(new_entries=...))` -> `lease.filling[key]` (written by the engine)
      -> `commit` (found by `probe` from now on) -> idle, pinned by leases, idle ... -> evicted;
    - a request: `admit(need)` -> a `Lease`, or none (wait), or PoolExhausted (never)
      -> `take_kv`, `take_state_row` -> `release_entries` after assembly -> `close`;
    - a chain entry: a row of the lease written at a border -> `put_chain` -> `chain_positions`
      and `longest_chain` of later requests -> `Need(chain=...)`.
    """

    def __init__(
        self,
        layout: StoreLayout,
        config: StoreConfig,
        *,
        device: torch.device,
        policy: EvictionPolicy[AnyResident] | None = None,
        sizes: SlabSizes | None = None,
    ) -> None:
        """Take all memory at once.

        Args:
            policy: what goes first when room is needed; none: least recently used.
            sizes: rows and slots; none: `layout.split(config)`.
        Raises:
            ConfigError: the budget can not hold one segment and one request over it.
        """
        self.layout = layout
        # sizes that were given follow from no budget
        advice = Advice(layout, config, is_split=sizes is None)
        self.sizes = sizes if sizes is not None else layout.split(config)
        self.slabs = Slabs.allocate(layout, self.sizes, device)
        assert self.slabs.num_bytes == self.sizes.budget_bytes, "slabs and budget disagree"
        self._memory = Memory(
            layout,
            self.sizes,
            policy if policy is not None else Lru(),
            advice,
            max_chain_entries_per_session=config.max_chain_entries_per_session,
        )
        logger.info(
            "store budget_bytes=%d unused_bytes=%d state_rows=%d transition_rows=%d kv_slots=%d",
            self.sizes.budget_bytes,
            self.sizes.unused_bytes,
            self.sizes.num_state_rows,
            self.sizes.num_transition_rows,
            self.sizes.num_kv_slots,
        )

    def probe(self, key: SegmentKey, tokens: bytes = b"") -> bool:
        """Whether a committed entry is held under this key; pins nothing, ages nothing.

        An entry whose `tokens` were given and differ from these (neither empty) is no hit: it is
        removed, and the fact is logged.
        """
        if self._memory.segments.find(key) is None:
            return False
        if self._memory.segments.matches(key, tokens):
            return True
        logger.error("entry key=%s is of other tokens than its key says; removed", key.hex())
        self.delete(key)
        return False

    def is_filling(self, key: SegmentKey) -> bool:
        """Whether somebody is writing this entry: wait for the commit, do not make it again."""
        return self._memory.segments.is_filling(key)

    def was_evicted(self, key: SegmentKey) -> bool:
        """Whether the entry was held once and dropped for room (a bounded memory)."""
        return self._memory.segments.was_evicted(key)

    def admit(self, need: Need) -> Lease | None:
        """Grant all that a request needs, or nothing.

        May evict idle entries that the need does not name.  Not granted, it changes nothing.

        Returns:
            the lease; none when it does not fit now, because bytes are pinned, reserved or filling.
        Raises:
            PoolExhausted: it can not fit even an empty store; `retryable` is false, `details` hold
                `pool` (state_rows, transition_rows or kv_slots), `needed_bytes`, `limit_bytes`.
        """
        self._assert_sound(need)
        segments, chain, pinned = self._named(need)
        own, wanted = self._wanted(need)
        self._memory.refuse_if_never(wanted, pinned)
        if not self._memory.fits(wanted, pinned):
            return None
        return self._grant(need, own, wanted, segments, chain)

    def no_room(self, need: Need, what: str, *, instead: str) -> PoolExhausted:
        """What to say to who waited too long: both numbers, and what would give room beside all.

        Args:
            what: did not find room, and how long.
            instead: what else could be done, after "or".
        """
        _, _, pinned = self._named(need)
        _, wanted = self._wanted(need)
        return self._memory.no_room(what, wanted, pinned, instead=instead)

    def commit(
        self, filling: Filling, waiters: Sequence[Lease] = (), *, cost_ms: float = 0.0
    ) -> SegmentEntry:
        """Make a written entry visible, pinned once for each waiter.

        The lease it came from is a waiter only if it is named.  Every waiter has the entry in
        `lease.entries` from now on.  If the key was deleted meanwhile, no probe finds the entry
        and it vanishes with its last waiter.

        Args:
            cost_ms: what making it took, for policies that weigh it.
        """
        memory, spec = self._memory, filling.spec
        memory.segments.end(filling)
        memory.arena.settle(filling.holding, Claim.FILLING)
        resident = Resident(
            filling.entry, filling.holding, spec.namespace, filling.entry.num_bytes, cost_ms
        )
        memory.residents.enter(resident)
        if filling.findable:
            memory.segments.put(resident, spec.tokens)
        for lease in waiters:
            lease.hold_entry(resident)
        if not filling.findable:
            memory.residents.remove(resident)
        return filling.entry

    def abandon(self, filling: Filling) -> None:
        """Give up an entry that was not written; its slots are free at once."""
        self._memory.segments.end(filling)
        self._memory.arena.unclaim(filling.holding, Claim.FILLING)

    def put_chain(self, lease: Lease, spec: ChainSpec) -> bool:
        """Keep a snapshot: the lease's row `spec.state_slot` becomes a chain entry's.

        KV slots are shared by reference count; those after `position` stay the request's own.  The
        row, and the slots up to `position`, must not be written any more.

        Returns:
            whether the row was taken over.  False: the digest is held already (that entry is used
            from now on, also by this session), or one of `segment_keys`, or the namespace, was
            deleted since the lease was granted.  The row then stays the lease's.
        """
        memory, ref = self._memory, ChainRef(spec.namespace, spec.digest)
        assert lease in memory.leases, "lease is closed"
        if not lease.may_keep(spec):
            return False
        held = memory.chains.find(ref)
        if held is not None:
            memory.residents.touch(held)
            memory.chains.note_use(spec)
            return False
        resident = self._chain_resident(spec)
        unused = memory.arena.kv_slots.num_unpinned(resident.holding.kv_slots)
        assert not unused, f"the table names {unused} slots that nobody uses"
        memory.arena.hold(resident.holding)
        lease.return_state_row(spec.state_slot)
        memory.residents.enter(resident)
        memory.chains.put(resident)
        memory.chains.note_use(spec)
        return True

    def chain_positions(self, namespace: str, limit: int | None = None) -> list[int]:
        """Distinct positions, rising, at which the namespace holds chain entries (up to `limit`).

        A request computes its digests there, and nowhere else, for `longest_chain`.
        """
        return self._memory.chains.positions(namespace, limit)

    def longest_chain(self, namespace: str, digests: Iterable[bytes]) -> ChainEntry | None:
        """The entry of the highest position among those held under `digests`; pins nothing."""
        return self._memory.chains.longest(namespace, digests)

    def delete(self, key: SegmentKey) -> Removal:
        """Remove a segment: its entry, its filling, and every chain entry that contains it.

        What is pinned is found by nobody from now on, and vanishes when its last lease is closed.
        """
        for lease in self._memory.leases:
            lease.note_deletion(key)
        return self._memory.segments.delete(key) + self._memory.chains.delete_containing(key)

    def clear(self, namespace: str | None = None) -> Removal:
        """Remove every segment (as `delete` does) and chain entry of a namespace (none: of all)."""
        for lease in self._memory.leases:
            lease.note_clearing(namespace)
        removal = Removal()
        for key in self._memory.segments.keys(namespace):
            removal += self.delete(key)
        if namespace is None:
            self._memory.segments.forget_evictions()
        return removal + self._memory.chains.clear(namespace)

    def set_priority(self, key: SegmentKey, priority: int) -> None:
        """Let entries of lower priority be evicted before this one; nothing if it is not held."""
        resident = self._memory.segments.find(key)
        if resident is not None:
            resident.priority = priority

    def holdings(self, namespace: str) -> Holdings:
        """What a namespace holds; slots that several of its entries share count once."""
        return self._memory.holdings(namespace)

    def trim(self, namespace: str, limit_bytes: int) -> int:
        """Evict idle entries of a namespace until the rest takes no more than the limit.

        Returns:
            how many went.  What is pinned stays, so more may be held than the limit.
        """
        memory = self._memory
        excess = memory.holdings(namespace).num_bytes - limit_bytes
        num_gone = 0
        for victim in memory.victims() if excess > 0 else ():
            if excess <= 0:
                break
            if victim.namespace == namespace:
                before = self.usage().total.free
                memory.evict(victim)
                excess -= self.usage().total.free - before
                num_gone += 1
        return num_gone

    def usage(self) -> Usage:
        """Bytes by state: they add up to the budget after every call."""
        memory = self._memory
        return Usage(
            budget_bytes=self.sizes.budget_bytes,
            unused_bytes=self.sizes.unused_bytes,
            state_rows=memory.arena.state_rows.byte_states,
            transition_rows=memory.arena.transition_rows.byte_states,
            kv_slots=memory.arena.kv_slots.byte_states,
            num_segments=len(memory.segments.held),
            num_chains=len(memory.chains.held),
            num_filling=len(memory.segments.fillings),
            num_leases=len(memory.leases),
            num_evicted=memory.num_evicted,
        )

    def check(self) -> None:
        """Recount everything from the leases and entries; AssertionError where books disagree."""
        integrity.check(self._memory)

    def _named(
        self, need: Need
    ) -> tuple[list[Resident[SegmentEntry]], Resident[ChainEntry] | None, list[Holding]]:
        """Entries and chain that a need names, and what they hold."""
        segments = [self._held_segment(key) for key in need.entries]
        chain = self._held_chain(need.chain) if need.chain is not None else None
        pinned = [resident.holding for resident in segments]
        return segments, chain, pinned + ([] if chain is None else [chain.holding])

    def _wanted(self, need: Need) -> tuple[Amount, Amount]:
        """A request's own slots, and the same with those of entries to be made."""
        own = Amount(
            state_rows=need.state_rows, kv_slots=need.kv_tokens if self.layout.keeps_kv else 0
        )
        return own, sum((self._amount(spec) for spec in need.new_entries), start=own)

    def _grant(
        self,
        need: Need,
        own: Amount,
        wanted: Amount,
        segments: Sequence[Resident[SegmentEntry]],
        chain: Resident[ChainEntry] | None,
    ) -> Lease:
        """Pin first, so that what is evicted for the rest is nothing the need names."""
        memory = self._memory
        named: list[AnyResident] = [*segments, *([] if chain is None else [chain])]
        for resident in named:
            memory.residents.pin(resident)
        has_room = memory.make_room(wanted)
        assert has_room, "what fits could not be made to fit"
        reserved = memory.arena.claim(own, Claim.RESERVED, None if chain is None else chain.kv_stop)
        fillings = [self._open_filling(spec) for spec in need.new_entries]
        lease = Lease(memory, reserved=reserved, segments=segments, chain=chain, fillings=fillings)
        for resident in named:
            memory.residents.unpin(resident)
        return lease

    def _open_filling(self, spec: EntrySpec) -> Filling:
        holding = self._memory.arena.claim(self._amount(spec), Claim.FILLING)
        layout, transition_slot = self.layout, NO_SLOT
        if layout.keeps_transitions:
            transition_slot = holding.transition_rows[0].start
        # tails of entries without a state row lie behind those of state rows
        behind = self.sizes.num_state_rows + transition_slot
        entry = SegmentEntry(
            key=spec.key,
            num_tokens=spec.num_tokens,
            seam=spec.seam,
            state_slot=holding.state_rows[0].start if layout.keeps_states else behind,
            transition_slot=transition_slot,
            kv_slots=tensor_of(holding.kv_slots),
            num_bytes=layout.segment_bytes(spec.interior_tokens),
        )
        filling = Filling(spec, entry, holding, self.abandon)
        self._memory.segments.open(filling)
        return filling

    def _chain_resident(self, spec: ChainSpec) -> Resident[ChainEntry]:
        table = spec.slot_ranges
        entry = ChainEntry(
            digest=spec.digest,
            position=spec.position,
            state_slot=spec.state_slot,
            kv_slots=spec.kv_slots,
            slot_ranges=table,
            exact=spec.exact,
            segment_keys=spec.segment_keys,
        )
        # a segment that stands twice in a table of shared slots is held once
        holding = Holding(state_rows=slots_at(spec.state_slot), kv_slots=union((table,)))
        kv_bytes = count(holding.kv_slots) * self.layout.kv_slot_bytes
        return Resident(
            entry,
            holding,
            spec.namespace,
            num_bytes=self.layout.state_row_bytes + kv_bytes,
            cost_ms=spec.cost_ms,
            kv_stop=table[-1].stop if table else None,
        )

    def _assert_sound(self, need: Need) -> None:
        """Catch a wrong need before anything is changed for it."""
        keys = [*need.entries, *(spec.key for spec in need.new_entries)]
        assert len(keys) == len(set(keys)), "a need names a segment twice"
        for spec in need.new_entries:
            assert not self.probe(spec.key), "a need makes an entry that is held already"
            assert not self.is_filling(spec.key), "a need makes an entry that is in filling already"

    def _amount(self, spec: EntrySpec) -> Amount:
        """The slots of one segment entry."""
        assert spec.interior_tokens > 0, "a segment without an interior is not kept"
        return Amount(
            state_rows=int(self.layout.keeps_states),
            transition_rows=int(self.layout.keeps_transitions),
            kv_slots=spec.interior_tokens if self.layout.keeps_kv else 0,
        )

    def _held_segment(self, key: SegmentKey) -> Resident[SegmentEntry]:
        resident = self._memory.segments.find(key)
        assert resident is not None, "a need names an entry that is not held: probe again"
        return resident

    def _held_chain(self, ref: ChainRef) -> Resident[ChainEntry]:
        resident = self._memory.chains.find(ref)
        assert resident is not None, "a need names a chain entry that is not held: look up again"
        return resident
