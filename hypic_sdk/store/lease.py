"""A request's hold on the store: everything it was granted, given back at once by `close`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Self, final

import torch

from hypic_sdk.prompt.segment import BorderKind, SegmentKey
from hypic_sdk.store.arena import Amount, Holding
from hypic_sdk.store.entries import ChainEntry, ChainSpec, SegmentEntry
from hypic_sdk.store.filling import Filling
from hypic_sdk.store.memory import Memory
from hypic_sdk.store.residents import AnyResident, Resident
from hypic_sdk.store.slot_pool import Claim
from hypic_sdk.store.slot_ranges import SlotRanges, count, slots_at, split, tensor_of, union


@final
class Lease:
    """What one admitted request (or warm job) may use until `close`.

    Made by `Store.admit` only.  A context manager; closing twice is allowed, any other call on a
    closed lease is a bug.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        reserved: Holding,
        segments: Iterable[Resident[SegmentEntry]],
        chain: Resident[ChainEntry] | None,
        fillings: Iterable[Filling],
    ) -> None:
        """Pins have not been counted yet, claims have."""
        self._memory = memory
        self._reserved_rows = [row for span in reserved.state_rows for row in span]
        self._own_rows: list[int] = []
        self._reserved_kv = reserved.kv_slots
        self._own_kv: SlotRanges = ()
        self._fillings = {filling.spec.key: filling for filling in fillings}
        self._segments: dict[SegmentKey, Resident[SegmentEntry]] = {}
        self._deleted_keys: set[SegmentKey] = set()
        self._cleared_namespaces: set[str | None] = set()
        self._is_open = True
        memory.leases[self] = None
        for resident in segments:
            self.hold_entry(resident)
        self._chain_entry = chain.entry if chain is not None else None
        self._chain = chain
        # the lease holds the chain's KV itself, so that the entry's row can go earlier
        self._chain_kv = Holding()
        if chain is not None:
            memory.residents.pin(chain)
            self._chain_kv = Holding(kv_slots=chain.holding.kv_slots)
            memory.arena.hold(self._chain_kv)
            memory.arena.pin(self._chain_kv)

    @property
    def entries(self) -> Mapping[SegmentKey, SegmentEntry]:
        """The pinned segment entries: hits of the admission, adopted and committed ones."""
        return MappingProxyType({key: item.entry for key, item in self._segments.items()})

    @property
    def filling(self) -> Mapping[SegmentKey, Filling]:
        """Entries to be made that still belong to this lease; `close` abandons them."""
        return MappingProxyType({k: item for k, item in self._fillings.items() if item.is_open})

    @property
    def chain(self) -> ChainEntry | None:
        """The chain entry that the need named.

        Its KV slots stay pinned until `close`; its state row until `release_entries`.
        """
        return self._chain_entry

    @property
    def reserved_state_rows(self) -> int:
        """State rows that can still be taken."""
        return len(self._reserved_rows)

    @property
    def reserved_kv_tokens(self) -> int:
        """KV slots that can still be taken (0 without full attention, where any number can)."""
        return count(self._reserved_kv)

    def take_state_row(self) -> int:
        """Use one of the reserved state rows.  Taking more than was reserved is a bug."""
        assert self._is_open, "lease is closed"
        assert self._reserved_rows, "no state row is reserved"
        return self._use_row(self._reserved_rows.pop(0))

    def try_state_row(self, kind: BorderKind, session_id: str | None = None) -> int | None:
        """Use one more state row, for a chain entry that is kept only if there is room now.

        A row that is free is given.  Else idle entries go: for an entry that will be retained
        (end of a leading part, or of a session) any, by the store's policy; for another one only
        chain entries that are not retained themselves, so that snapshots never drive segments out.
        None: no room.
        """
        assert self._is_open, "lease is closed"
        retained = self._memory.chains.retains(kind, session_id)
        one_row = Amount(state_rows=1)
        if not self._memory.make_room(one_row, only_spare=not retained):
            return None
        claimed = self._memory.arena.claim(one_row, Claim.RESERVED)
        return self._use_row(claimed.state_rows[0].start)

    def return_state_row(self, state_slot: int) -> None:
        """Stop using a taken row before `close` (its chain entry was not put); it becomes free."""
        assert self._is_open, "lease is closed"
        assert state_slot in self._own_rows, "the row is not in use by this lease"
        self._own_rows.remove(state_slot)
        row = Holding(state_rows=slots_at(state_slot))
        self._memory.arena.unpin(row)
        self._memory.arena.drop(row)

    def take_kv(self, num_tokens: int) -> torch.Tensor:
        """What `take_kv_ranges` does, as [num_tokens] int64 on the host."""
        return tensor_of(self.take_kv_ranges(num_tokens))

    def take_kv_ranges(self, num_tokens: int) -> SlotRanges:
        """Use the next reserved KV slots, in the order given.

        Slots of successive calls rise by one wherever the store found a contiguous stretch, and
        go on from the chain's last slot where that stretch was free.  None without full attention.
        """
        assert self._is_open, "lease is closed"
        if not self._memory.layout.keeps_kv:
            return ()
        assert num_tokens >= 0, "a number of tokens is not negative"
        assert num_tokens <= self.reserved_kv_tokens, (
            f"{num_tokens} KV slots wanted, {self.reserved_kv_tokens} are reserved"
        )
        slots, self._reserved_kv = split(self._reserved_kv, num_tokens)
        self._own_kv = union((self._own_kv, slots))
        self._use(Holding(kv_slots=slots))
        return slots

    def adopt(self, key: SegmentKey) -> SegmentEntry:
        """Pin an entry that is held now (made by somebody else since the admission)."""
        resident = self._memory.segments.find(key)
        assert resident is not None, "no entry is held under this key"
        self.hold_entry(resident)
        return resident.entry

    def detach(self, key: SegmentKey) -> Filling:
        """Take a filling out of this lease: it outlives `close`, and its new owner must end it.

        For a computation that several requests wait for: it goes on when this one is cancelled.
        """
        filling = self._fillings.pop(key)
        assert filling.is_open, "filling has ended already"
        return filling

    def release_entries(self) -> None:
        """Unpin all segment entries and the chain's state row: assembly no longer reads them.

        The chain's KV slots stay pinned.  Not for a request whose own table points at KV slots of
        segment entries.
        """
        for resident in self._segments.values():
            self._memory.residents.unpin(resident)
        self._segments.clear()
        if self._chain is not None:
            self._memory.residents.unpin(self._chain)
            self._chain = None

    def close(self) -> None:
        """Give everything back: pins, taken and reserved rows and slots, fillings (abandoned)."""
        if not self._is_open:
            return
        for filling in self._fillings.values():
            filling.close()
        self.release_entries()
        arena = self._memory.arena
        for held in (self._chain_kv, self.own):
            arena.unpin(held)
            arena.drop(held)
        arena.unclaim(self.reserved, Claim.RESERVED)
        del self._memory.leases[self]
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # what follows is for the store itself, not for the engine

    @property
    def own(self) -> Holding:
        """Rows and KV slots taken and not given away: held and pinned by this lease."""
        return Holding(state_rows=slots_at(*self._own_rows), kv_slots=self._own_kv)

    @property
    def reserved(self) -> Holding:
        """Rows and KV slots that were not taken yet: claimed for this lease."""
        return Holding(state_rows=slots_at(*self._reserved_rows), kv_slots=self._reserved_kv)

    @property
    def chain_kv(self) -> Holding:
        """The chain's KV slots: held and pinned by this lease beside the chain entry itself."""
        return self._chain_kv

    def residents(self) -> Iterator[AnyResident]:
        """The entries this lease pins."""
        yield from self._segments.values()
        if self._chain is not None:
            yield self._chain

    def hold_entry(self, resident: Resident[SegmentEntry]) -> None:
        """Pin an entry for this lease."""
        key = resident.entry.key
        assert self._is_open, "lease is closed"
        assert key not in self._segments, "the lease holds this entry already"
        self._memory.residents.pin(resident)
        self._segments[key] = resident

    def may_keep(self, spec: ChainSpec) -> bool:
        """Whether nothing of the chain entry was deleted since the lease was granted."""
        return self._cleared_namespaces.isdisjoint(
            {spec.namespace, None}
        ) and self._deleted_keys.isdisjoint(spec.segment_keys)

    def note_deletion(self, key: SegmentKey) -> None:
        """No chain entry that contains this segment may be put from now on."""
        self._deleted_keys.add(key)

    def note_clearing(self, namespace: str | None) -> None:
        """No chain entry of this namespace (none: of any) may be put from now on."""
        self._cleared_namespaces.add(namespace)

    def _use_row(self, row: int) -> int:
        self._own_rows.append(row)
        self._use(Holding(state_rows=slots_at(row)))
        return row

    def _use(self, claimed: Holding) -> None:
        """Reserved -> held and pinned by this lease."""
        self._memory.arena.settle(claimed, Claim.RESERVED)
        self._memory.arena.pin(claimed)
