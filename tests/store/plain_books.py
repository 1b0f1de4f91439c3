"""A store's books kept with sets and plain counting: what `test_store_books` compares with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hypic_sdk.store.entries import ByteStates, ChainSpec, Need
from hypic_sdk.store.filling import Filling
from hypic_sdk.store.lease import Lease

POOLS = ("state_rows", "transition_rows", "kv_slots")
Slots = dict[str, set[int]]  # by pool


def slots_of(*, state: Iterable[int] = (), transition: Iterable[int] = (), kv: Iterable[int] = ()):
    return {"state_rows": set(state), "transition_rows": {*transition} - {-1}, "kv_slots": set(kv)}


@dataclass(eq=False)
class Record:
    """A segment entry (name) or a chain entry (namespace and name)."""

    name: object
    slots: Slots
    namespace: str
    contains: frozenset[object] = frozenset()
    is_chain: bool = False
    findable: bool = True


@dataclass(eq=False)
class Writing:
    """An open filling; `lease` is none once it was detached."""

    filling: Filling
    namespace: str
    slots: Slots
    lease: Holder | None
    findable: bool = True

    @property
    def name(self) -> str:
        return self.filling.spec.key[:1].decode()


@dataclass(eq=False)
class Holder:
    """An open lease."""

    lease: Lease
    reserved_rows: int
    reserved_kv: int
    pinned: list[Record] = field(default_factory=list)
    chain: Record | None = None
    table: list[int] = field(default_factory=list)  # KV slots in order, the chain's first
    rows: set[int] = field(default_factory=set)
    deleted: set[object] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)

    def holds(self, name: object) -> bool:
        return any(record.name == name for record in self.pinned)

    def in_use(self) -> Slots:
        return slots_of(state=self.rows, kv=self.table)


class PlainBooks:
    """Who has what, by name; how much there is of everything."""

    def __init__(
        self, sizes: dict[str, int], slot_bytes: dict[str, int], *, segment_rows: int = 1
    ) -> None:
        self.sizes = sizes
        self.segment_rows = segment_rows  # state rows that a segment takes
        self.slot_bytes = slot_bytes
        self.records: list[Record] = []
        self.writings: list[Writing] = []
        self.holders: list[Holder] = []

    # entries

    def findable(self, *, is_chain: bool) -> list[Record]:
        return [r for r in self.records if r.findable and r.is_chain == is_chain]

    def segment(self, name: object) -> Record | None:
        found = [r for r in self.findable(is_chain=False) if r.name == name]
        return found[0] if found else None

    def chain(self, namespace: str, name: object) -> Record | None:
        chains = self.findable(is_chain=True)
        found = [r for r in chains if (r.namespace, r.name) == (namespace, name)]
        return found[0] if found else None

    def is_pinned(self, record: Record) -> bool:
        return any(record in (*holder.pinned, holder.chain) for holder in self.holders)

    def drop_unused(self) -> None:
        """Entries that nobody can find and nobody uses are gone."""
        self.records = [r for r in self.records if r.findable or self.is_pinned(r)]

    def remove(self, records: Iterable[Record]) -> tuple[int, int]:
        """Delete entries: how many are gone, how many live on in leases."""
        records = list(records)
        for record in records:
            record.findable = False
        deferred = sum(self.is_pinned(record) for record in records)
        self.drop_unused()
        return len(records) - deferred, deferred

    def may_put(self, holder: Holder, spec: ChainSpec, contains: frozenset[object]) -> bool:
        return not (holder.deleted & contains or holder.cleared & {spec.namespace, "*"})

    # amounts

    def held(self, pool: str) -> set[int]:
        groups = [record.slots[pool] for record in self.records]
        return set().union(*groups, self.pinned(pool))

    def pinned(self, pool: str) -> set[int]:
        groups = [record.slots[pool] for record in self.records if self.is_pinned(record)]
        return set().union(*groups, *(holder.in_use()[pool] for holder in self.holders))

    def idle(self, pool: str) -> set[int]:
        return self.held(pool) - self.pinned(pool)

    def filling(self, pool: str) -> set[int]:
        return set().union(*(writing.slots[pool] for writing in self.writings))

    def num_reserved(self, pool: str) -> int:
        if pool == "state_rows":
            return sum(holder.reserved_rows for holder in self.holders)
        return sum(holder.reserved_kv for holder in self.holders) if pool == "kv_slots" else 0

    def num_free(self, pool: str) -> int:
        claimed = self.num_reserved(pool) + len(self.filling(pool))
        return self.sizes[pool] - claimed - len(self.held(pool))

    def byte_states(self, pool: str) -> ByteStates:
        counts = (
            self.num_free(pool),
            self.num_reserved(pool),
            len(self.filling(pool)),
            len(self.idle(pool)),
            len(self.pinned(pool)),
        )
        return ByteStates(*(count * self.slot_bytes[pool] for count in counts))

    # admission

    def wanted(self, need: Need) -> dict[str, int]:
        new = need.new_entries
        kv = need.kv_tokens + sum(spec.interior_tokens for spec in new)
        wanted = {
            "state_rows": need.state_rows + self.segment_rows * len(new),
            "transition_rows": len(new),
            "kv_slots": kv,
        }
        return {pool: count if self.slot_bytes[pool] else 0 for pool, count in wanted.items()}

    def verdict(self, need: Need, named: list[Record]) -> str:
        """What an admission must answer: never, wait or granted."""
        wanted = self.wanted(need)
        spared = {pool: set().union(*(record.slots[pool] for record in named)) for pool in POOLS}
        if any(len(spared[pool]) + wanted[pool] > self.sizes[pool] for pool in POOLS):
            return "never"
        for pool in POOLS:
            if wanted[pool] > self.num_free(pool) + len(self.idle(pool) - spared[pool]):
                return "wait"
        return "granted"
