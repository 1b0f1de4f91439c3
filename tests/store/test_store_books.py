"""Whatever is called in whatever order, the store's books are those of a plain count.

After every rule: the byte states are those of `PlainBooks` and add up to the budget, the store's
own recount agrees, and memory proves ownership: whoever gets slots writes a number of its own
there, and finds it again for as long as it holds them.
"""

from __future__ import annotations

import itertools

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hypic_sdk.errors import PoolExhausted
from hypic_sdk.prompt.segment import BorderKind
from hypic_sdk.store.entries import ChainRef, Need, Removal
from tests.store.plain_books import POOLS, Holder, PlainBooks, Record, Writing, slots_of
from tests.store.small_store import (
    LAYOUTS,
    books,
    chain_spec,
    key_of,
    small_store,
    spec_of,
)

NAMES = st.sampled_from("abcdef")
NAMESPACES = st.sampled_from(["", "tenant"])


class StoreMachine(RuleBasedStateMachine):
    @initialize(kind=st.sampled_from(sorted(LAYOUTS)))
    def begin(self, kind):
        layout = LAYOUTS[kind]
        self.store = small_store(state_rows=8, transition_rows=5, kv_slots=29, layout=layout)
        sizes = self.store.sizes
        self.books = PlainBooks(
            dict(
                zip(
                    POOLS,
                    (sizes.num_state_rows, sizes.num_transition_rows, sizes.num_kv_slots),
                    strict=True,
                )
            ),
            {
                "state_rows": layout.state_row_bytes,
                "transition_rows": layout.transition_row_bytes,
                "kv_slots": layout.kv_slot_bytes,
            },
            segment_rows=int(layout.keeps_states),
        )
        self.stamps = itertools.cycle(range(1, 127))  # numbers of 8 bits hold no more
        self.written: dict[tuple[str, int], int] = {}

    # memory

    def write(self, slots):
        """Write one new number into slots that were just handed out."""
        stamp = next(self.stamps)
        for pool in POOLS:
            for view in self.views(pool):
                view[list(slots[pool])] = stamp
        self.written |= {(pool, slot): stamp for pool in POOLS for slot in slots[pool]}

    def views(self, pool):
        """The slabs of a pool, one row a slot."""
        slabs, num_rows = self.store.slabs, self.store.sizes.num_state_rows
        if pool == "state_rows":
            return [slabs.states, slabs.conv_tails[:num_rows]]
        if pool == "transition_rows" and slabs.pairs is not None:
            return [*slabs.pairs.tensors(), slabs.conv_tails[num_rows:]]
        if pool == "transition_rows":
            return [] if slabs.transitions is None else [slabs.transitions]
        return [slabs.keys.transpose(0, 1), slabs.values.transpose(0, 1)]

    # choices

    def one_of(self, data, items):
        return items[data.draw(st.integers(0, len(items) - 1))]

    def some_of(self, data, items):
        wanted = data.draw(st.lists(st.booleans(), min_size=len(items), max_size=len(items)))
        return list(itertools.compress(items, wanted))

    def missing(self):
        """Names that are neither held nor being made."""
        held = {record.name for record in self.books.findable(is_chain=False)}
        held |= {writing.name for writing in self.books.writings if writing.findable}
        return sorted(set("abcdef") - held)

    # admission

    @rule(data=st.data(), rows=st.integers(0, 4), kv=st.integers(0, 20), namespace=NAMESPACES)
    def admit(self, data, rows, kv, namespace):
        hits = self.some_of(data, self.books.findable(is_chain=False))
        specs = [
            spec_of(name, data.draw(st.integers(1, 6)), namespace=namespace)
            for name in self.some_of(data, self.missing())[:3]
        ]
        chains = self.books.findable(is_chain=True)
        chain = self.one_of(data, chains) if chains and data.draw(st.booleans()) else None
        self.ask(hits, specs, chain, rows=rows, kv=kv)

    def ask(self, hits=(), specs=(), chain=None, *, rows=0, kv=0):
        """Admit a need and compare with the plain books; the new holder, or none."""
        need = Need(
            entries=tuple(key_of(hit.name) for hit in hits),
            new_entries=tuple(specs),
            chain=None if chain is None else ChainRef(chain.namespace, key_of(chain.name)),
            state_rows=rows,
            kv_tokens=kv,
        )
        named = [*hits, *([] if chain is None else [chain])]
        before, verdict = books(self.store), self.books.verdict(need, named)
        if verdict == "never":
            with pytest.raises(PoolExhausted):
                self.store.admit(need)
        else:
            lease = self.store.admit(need)
            assert (lease is None) == (verdict == "wait")
            if lease is not None:
                return self.enter(need, lease, hits, chain)
        assert books(self.store) == before
        return None

    def enter(self, need, lease, hits, chain):
        """Book a granted need, and what was evicted for it."""
        wanted = self.books.wanted(need)
        short = any(wanted[pool] > self.books.num_free(pool) for pool in POOLS)
        holder = Holder(lease, need.state_rows, wanted["kv_slots"], pinned=list(hits), chain=chain)
        holder.reserved_kv -= sum(len(f.entry.kv_slots) for f in lease.filling.values())
        if chain is not None:
            assert lease.chain is not None
            holder.table = lease.chain.kv_slots.tolist()
        self.books.holders.append(holder)
        assert bool(self.note_evictions()) <= short, "evicted although there was room"
        assert set(lease.entries) == {key_of(hit.name) for hit in hits}
        assert set(lease.filling) == {spec.key for spec in need.new_entries}
        for filling in lease.filling.values():
            entry = filling.entry
            if not self.books.segment_rows:
                # the row of its tail, behind those of states
                behind = self.store.sizes.num_state_rows + entry.transition_slot
                assert entry.state_slot == behind
            slots = slots_of(
                state=[entry.state_slot] if self.books.segment_rows else [],
                transition=[entry.transition_slot],
                kv=entry.kv_slots.tolist(),
            )
            self.book_new(slots)
            writing = Writing(filling, filling.spec.namespace, slots, holder)
            self.books.writings.append(writing)
        return holder

    def book_new(self, slots):
        """Slots that were just handed out are nobody else's; write there."""
        for pool in POOLS:
            others = self.books.held(pool) | self.books.filling(pool)
            assert others.isdisjoint(slots[pool]), "handed out what somebody has"
        self.write(slots)

    def note_evictions(self):
        """Book entries that are not found any more; none of them was in use."""
        gone = [
            record for record in self.books.records if record.findable and not self.is_found(record)
        ]
        for record in gone:
            assert not self.books.is_pinned(record), "a pinned entry was evicted"
        self.books.remove(gone)
        return gone

    def is_found(self, record):
        if record.is_chain:
            entry = self.store.longest_chain(record.namespace, [key_of(record.name)])
            return entry is not None and {entry.state_slot} == record.slots["state_rows"]
        return self.store.probe(key_of(record.name))

    @precondition(lambda self: self.missing())
    @rule(data=st.data(), interior=st.integers(1, 6), namespace=NAMESPACES)
    def warm(self, data, interior, namespace):
        """An entry made in one go, so that there is something to hit and to evict."""
        name = self.one_of(data, self.missing())
        holder = self.ask(specs=[spec_of(name, interior, namespace=namespace)])
        if holder is not None:
            self.end(self.books.writings[-1], [])
            self.close_holder(holder)

    @rule(data=st.data(), kv=st.integers(0, 9), snapshots=st.integers(1, 3))
    def converse(self, data, kv, snapshots):
        """A request that goes on from a chain entry, leaves some, and ends."""
        chains = self.books.findable(is_chain=True)
        chain = self.one_of(data, chains) if chains else None
        holder = self.ask(chain=chain, rows=snapshots, kv=kv)
        if holder is None:
            return
        self.take_kv(holder, holder.reserved_kv)
        for _ in range(snapshots):
            self.take_row(holder)
            self.put(data, holder)
        self.close_holder(holder)

    # a lease in use

    @precondition(lambda self: self.books.holders)
    @rule(data=st.data())
    def take(self, data):
        holder = self.one_of(data, self.books.holders)
        if holder.reserved_rows and data.draw(st.booleans()):
            self.take_row(holder)
        else:
            self.take_kv(holder, data.draw(st.integers(0, holder.reserved_kv)))

    def take_row(self, holder):
        row = holder.lease.take_state_row()
        self.book_new(slots_of(state=[row]))
        holder.reserved_rows -= 1
        holder.rows.add(row)

    def take_kv(self, holder, count):
        slots = holder.lease.take_kv(count).tolist()
        assert len(slots) == count
        self.book_new(slots_of(kv=slots))
        holder.reserved_kv -= count
        holder.table += slots

    @precondition(lambda self: self.books.holders)
    @rule(data=st.data(), kind=st.sampled_from(BorderKind))
    def try_row(self, data, kind):
        holder = self.one_of(data, self.books.holders)
        has_free = self.books.num_free("state_rows") > 0
        has_idle = bool(self.books.idle("state_rows"))
        row = holder.lease.try_state_row(kind)
        evicted = self.note_evictions()
        assert len(evicted) <= (0 if has_free else 1)
        if kind is BorderKind.LEADING:
            assert (row is not None) == (has_free or has_idle)
        else:
            assert row is not None or not has_free
            assert all(record.is_chain for record in evicted)
        if row is not None:
            self.book_new(slots_of(state=[row]))
            holder.rows.add(row)

    @precondition(lambda self: any(holder.rows for holder in self.books.holders))
    @rule(data=st.data())
    def return_row(self, data):
        holder = self.one_of(data, [holder for holder in self.books.holders if holder.rows])
        row = self.one_of(data, sorted(holder.rows))
        holder.lease.return_state_row(row)
        holder.rows.remove(row)

    @precondition(lambda self: self.books.holders)
    @rule(data=st.data())
    def adopt(self, data):
        holder = self.one_of(data, self.books.holders)
        for record in self.some_of(data, self.books.findable(is_chain=False)):
            if not holder.holds(record.name):
                assert holder.lease.adopt(key_of(record.name)).key == key_of(record.name)
                holder.pinned.append(record)

    @precondition(lambda self: self.books.holders)
    @rule(data=st.data())
    def release_entries(self, data):
        holder = self.one_of(data, self.books.holders)
        holder.lease.release_entries()
        holder.pinned, holder.chain = [], None
        self.books.drop_unused()

    @precondition(lambda self: self.books.holders)
    @rule(data=st.data(), twice=st.booleans())
    def close(self, data, twice):
        holder = self.one_of(data, self.books.holders)
        if twice:
            holder.lease.close()
        self.close_holder(holder)

    def close_holder(self, holder):
        holder.lease.close()
        self.books.holders.remove(holder)
        self.books.writings = [w for w in self.books.writings if w.lease is not holder]
        self.books.drop_unused()

    # fillings

    @precondition(lambda self: self.books.writings)
    @rule(data=st.data())
    def end_filling(self, data):
        writing = self.one_of(data, self.books.writings)
        choice = data.draw(st.sampled_from(["detach", "abandon", "close", "commit", "commit"]))
        if choice == "detach" and writing.lease is not None:
            assert writing.lease.lease.detach(key_of(writing.name)) is writing.filling
            writing.lease = None
        elif choice == "commit":
            able = [holder for holder in self.books.holders if not holder.holds(writing.name)]
            self.end(writing, self.some_of(data, able))
        else:
            if choice == "close":
                writing.filling.close()
            else:
                self.store.abandon(writing.filling)
            self.books.writings.remove(writing)

    def end(self, writing, waiters):
        """Commit an entry for those who wait."""
        key = key_of(writing.name)
        assert self.store.probe(key) == (self.books.segment(writing.name) is not None)
        entry = self.store.commit(writing.filling, [holder.lease for holder in waiters])
        assert entry is writing.filling.entry
        record = Record(writing.name, writing.slots, writing.namespace, findable=writing.findable)
        self.books.writings.remove(writing)
        self.books.records.append(record)
        for holder in waiters:
            holder.pinned.append(record)
            assert holder.lease.entries[key] is entry
        self.books.drop_unused()

    # chains

    @precondition(lambda self: any(holder.rows for holder in self.books.holders))
    @rule(data=st.data())
    def put_chain(self, data):
        self.put(data, self.one_of(data, [h for h in self.books.holders if h.rows]))

    def put(self, data, holder):
        name, namespace = data.draw(NAMES), data.draw(NAMESPACES)
        row = self.one_of(data, sorted(holder.rows))
        table = holder.table[: data.draw(st.integers(0, len(holder.table)))]
        # a model without rotary keys reads an entry's own slots, maybe twice
        for record in self.some_of(data, holder.pinned):
            table += sorted(record.slots["kv_slots"]) * data.draw(st.integers(1, 2))
        contains = frozenset(self.some_of(data, list("abcdef")))
        spec = chain_spec(
            holder.lease,
            name,
            torch.tensor(table, dtype=torch.int64),
            row=row,
            kind=data.draw(st.sampled_from(BorderKind)),
            session_id=data.draw(st.sampled_from([None, "s", "t"])),
            segment_keys=map(key_of, contains),
            namespace=namespace,
        )
        is_held = self.books.chain(namespace, name) is not None
        allowed = self.books.may_put(holder, spec, contains)
        assert self.store.put_chain(holder.lease, spec) == (allowed and not is_held)
        if allowed and not is_held:
            holder.rows.remove(row)
            slots = slots_of(state=[row], kv=table)
            self.books.records.append(Record(name, slots, namespace, contains, is_chain=True))

    # deletion

    @precondition(lambda self: len(self.books.records) + len(self.books.writings) > 2)
    @rule(name=NAMES)
    def delete(self, name):
        segment = self.books.segment(name)
        chains = [r for r in self.books.findable(is_chain=True) if name in r.contains]
        removal = self.store.delete(key_of(name))
        assert removal == self.expect_removal(
            [name], [*chains, *([] if segment is None else [segment])]
        )

    @precondition(lambda self: len(self.books.records) + len(self.books.writings) > 5)
    @rule(namespace=st.none() | NAMESPACES)
    def clear(self, namespace):
        def is_meant(owner):
            return namespace is None or owner == namespace

        names = [r.name for r in self.books.findable(is_chain=False) if is_meant(r.namespace)]
        names += [w.name for w in self.books.writings if w.findable and is_meant(w.namespace)]
        gone = [
            record
            for record in self.books.records
            if record.findable and (is_meant(record.namespace) or record.contains & set(names))
        ]
        gone = [r for r in gone if r.is_chain or r.name in names]
        for holder in self.books.holders:
            holder.cleared.add("*" if namespace is None else namespace)
        assert self.store.clear(namespace) == self.expect_removal(names, gone)

    def expect_removal(self, names, records):
        """Book a deletion; returns what the store must say of it."""
        for holder in self.books.holders:
            holder.deleted |= set(names)
        writings = [w for w in self.books.writings if w.findable and w.name in names]
        for writing in writings:
            writing.findable = False
        removed, deferred = self.books.remove(records)
        return Removal(removed, deferred + len(writings))

    # laws

    @invariant()
    def bytes_are_where_the_plain_books_have_them(self):
        usage = self.store.usage()
        assert usage.total.total == usage.budget_bytes
        for pool in POOLS:
            assert getattr(usage, pool) == self.books.byte_states(pool), pool
        assert usage.num_segments == len(self.books.findable(is_chain=False))
        assert usage.num_chains == len(self.books.findable(is_chain=True))
        assert usage.num_filling == len(self.books.writings)
        assert usage.num_leases == len(self.books.holders)

    @invariant()
    def only_what_is_committed_and_not_deleted_is_found(self):
        for name in "abcdef":
            assert self.store.probe(key_of(name)) == (self.books.segment(name) is not None)
        for namespace in ("", "tenant"):
            chains = [r for r in self.books.findable(is_chain=True) if r.namespace == namespace]
            assert all(self.is_found(record) for record in chains)
            entries = [self.store.longest_chain(namespace, [key_of(r.name)]) for r in chains]
            positions = sorted({entry.position for entry in entries if entry is not None})
            assert self.store.chain_positions(namespace) == positions

    @invariant()
    def what_was_written_is_still_there(self):
        for pool in POOLS:
            slots = sorted(self.books.held(pool) | self.books.filling(pool))
            stamps = torch.tensor([self.written[pool, slot] for slot in slots])
            for slab in self.views(pool):
                rows = slab[slots].flatten(1)
                assert torch.equal(rows, stamps.to(slab.dtype)[:, None].expand_as(rows)), pool

    @invariant()
    def the_store_agrees_with_itself(self):
        self.store.check()

    def teardown(self):
        """With all leases closed nothing is in use, and everything can be had again."""
        if not hasattr(self, "store"):
            return
        for holder in self.books.holders:
            holder.lease.close()
        for writing in self.books.writings:
            writing.filling.close()
        usage = self.store.usage()
        assert usage.total.free + usage.total.idle == usage.budget_bytes
        sizes = self.store.sizes
        lease = self.store.admit(
            Need(state_rows=sizes.num_state_rows, kv_tokens=sizes.num_kv_slots)
        )
        assert lease is not None
        assert self.store.usage().num_segments == self.store.usage().num_chains == 0
        lease.close()
        assert self.store.usage().total.free == usage.budget_bytes


StoreMachine.TestCase.settings = hypothesis.settings(max_examples=60, stateful_step_count=40)
TestStoreBooks = StoreMachine.TestCase
