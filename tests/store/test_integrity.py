"""The recount finds every kind of broken book: each test breaks one."""

from __future__ import annotations

import pytest

from hypic_sdk.prompt.segment import BorderKind
from hypic_sdk.store.entries import ChainRef, ChainSpec, Need
from hypic_sdk.store.slot_pool import Claim
from hypic_sdk.store.slot_ranges import slots_at, tensor_of
from tests.store.small_store import chain, granted, key_of, small_store, spec_of, warm


@pytest.fixture
def store():
    """Idle and pinned entries, a chain in use, a filling, reserved and taken slots."""
    store = small_store(state_rows=12, transition_rows=6, kv_slots=40)
    warm(store, "idle", "pinned")
    chain(store, "chain", kind=BorderKind.LEADING, segment_keys=[key_of("idle")])
    chain(store, "spare", tokens=3, session_id="s")
    need = Need(
        entries=(key_of("pinned"),),
        new_entries=(spec_of("filling"),),
        chain=ChainRef("", key_of("chain")),
        state_rows=2,
        kv_tokens=5,
    )
    lease = granted(store, need)
    lease.take_kv(2)
    lease.take_state_row()
    store.check()
    return store


def the_lease(store):
    (lease,) = store._memory.leases
    return lease


def resident(store, name):
    return store._memory.segments.held[key_of(name)]


def unheld(store):
    store._memory.arena.kv_slots.drop(slots_at(0))


def wrong_pin(store):
    (row,) = resident(store, "idle").holding.state_rows
    store._memory.arena.state_rows.pins.add(row)


def wrong_holder(store):
    store._memory.arena.kv_slots.hold(resident(store, "idle").holding.kv_slots)


def wrong_counter(store):
    store._memory.arena.kv_slots._num_idle -= 1


def wrong_claim(store):
    store._memory.arena.kv_slots._num_claimed[Claim.RESERVED] += 1


def leaked_claim(store):
    store._memory.arena.kv_slots.claim(1, Claim.FILLING)


def two_owners(store):
    free = store._memory.arena.transition_rows.free
    free.give(resident(store, "idle").holding.transition_rows)


def lost_slot(store):
    store._memory.arena.state_rows.free.take(1)


def forgotten_lease(store):
    store._memory.leases.clear()


def forgotten_filling(store):
    store._memory.segments.fillings.clear()


def forgotten_entry(store):
    del store._memory.segments.held[key_of("idle")]


def entry_under_another_key(store):
    held = store._memory.segments.held
    held[key_of("other")] = held.pop(key_of("idle"))


def deleted_but_found(store):
    resident(store, "idle").findable = False


def deleted_chain_but_found(store):
    store._memory.chains.held[ChainRef("", key_of("chain"))].findable = False


def held_and_filling(store):
    segments = store._memory.segments
    segments._filling_by_key[key_of("idle")] = next(iter(segments.fillings))


def wrong_entry_pins(store):
    resident(store, "pinned").pins += 1


def pinned_but_evictable(store):
    store._memory.policy.add(resident(store, "pinned"))


def idle_but_unknown_to_the_policy(store):
    store._memory.policy.remove(resident(store, "idle"))


def chain_under_another_digest(store):
    held = store._memory.chains.held
    held[ChainRef("", key_of("other"))] = held.pop(ChainRef("", key_of("spare")))


def wrong_retention(store):
    store._memory.chains.held[ChainRef("", key_of("spare"))].retained = False


def wrong_positions(store):
    store._memory.chains._positions[""][3] = 2


def wrong_contents(store):
    store._memory.chains._by_segment.clear()


def wrong_sessions(store):
    store._memory.chains._retained_by[ChainRef("", key_of("chain"))] = {("", "s")}


def too_many_in_a_session(store):
    refs = store._memory.chains._sessions["", "s"]
    refs.extend([*refs, *refs])


def retained_but_gone(store):
    store._memory.chains._leading.add(ChainRef("", key_of("gone")))


def freed_while_taken(store):
    the_lease(store)._own_rows.clear()


@pytest.mark.parametrize(
    "break_books",
    [
        unheld,
        wrong_pin,
        wrong_holder,
        wrong_counter,
        wrong_claim,
        leaked_claim,
        two_owners,
        lost_slot,
        forgotten_lease,
        forgotten_filling,
        forgotten_entry,
        entry_under_another_key,
        deleted_but_found,
        deleted_chain_but_found,
        held_and_filling,
        wrong_entry_pins,
        pinned_but_evictable,
        idle_but_unknown_to_the_policy,
        chain_under_another_digest,
        wrong_retention,
        wrong_positions,
        wrong_contents,
        wrong_sessions,
        too_many_in_a_session,
        retained_but_gone,
        freed_while_taken,
    ],
    ids=lambda function: function.__name__.replace("_", " "),
)
def test_a_broken_book_is_found(store, break_books):
    break_books(store)
    with pytest.raises(AssertionError):
        store.check()


def test_sound_books_pass_whatever_is_going_on(store):
    store.delete(key_of("pinned"))
    store.delete(key_of("filling"))
    store.check()
    lease = the_lease(store)
    store.commit(lease.detach(key_of("filling")), [lease])
    store.check()
    spec = ChainSpec(
        namespace="",
        digest=key_of("last"),
        position=2,
        state_slot=lease.take_state_row(),
        kv_slots=tensor_of(lease.own.kv_slots),
        exact=True,
        segment_keys=frozenset(),
        kind=BorderKind.REPLY,
    )
    assert store.put_chain(lease, spec)
    store.check()
    lease.close()
    store.check()
