"""The door: what is admitted and refused, when an entry is seen, what a deletion reaches."""

from __future__ import annotations

import logging

import pytest
import torch

from hypic_sdk.config import MIB, StoreConfig
from hypic_sdk.errors import ConfigError, PoolExhausted
from hypic_sdk.kernels import items
from hypic_sdk.store.entries import ByteStates, ChainRef, Need, Removal
from hypic_sdk.store.layout import NO_SLOT
from hypic_sdk.store.store import Store
from tests.store.small_store import (
    CPU,
    LAYOUTS,
    SEAM_TOKENS,
    books,
    chain,
    chain_spec,
    granted,
    held_chains,
    held_segments,
    key_of,
    small_store,
    spec_of,
    warm,
)


@pytest.fixture
def store():
    """Room for five entries of four tokens, or four and a request."""
    store = small_store(state_rows=6, transition_rows=5, kv_slots=23)
    yield store
    store.check()


def test_the_budget_of_a_configuration_is_what_the_slabs_take():
    layout = LAYOUTS["dense"]
    store = Store(layout, StoreConfig(budget_bytes=MIB, expected_segment_tokens=37), device=CPU)
    usage = store.usage()
    assert usage.budget_bytes == store.slabs.num_bytes == usage.total.free == usage.total.total
    assert usage.budget_bytes + usage.unused_bytes == MIB


def test_a_budget_without_room_for_one_request_is_refused():
    with pytest.raises(ConfigError) as caught:
        Store(LAYOUTS["dense"], StoreConfig(budget_bytes=1000), device=CPU)
    assert caught.value.details["budget_bytes"] == 1000
    assert caught.value.details["least_bytes"] > 1000


def test_life_of_an_entry(store):
    spec = spec_of("a", 4)
    lease = granted(store, Need(new_entries=(spec,)))
    filling = lease.filling[spec.key]
    assert store.is_filling(spec.key)
    assert not store.probe(spec.key)
    assert store.usage().total.filling == filling.entry.num_bytes == store.layout.segment_bytes(4)
    entry = store.commit(lease.detach(spec.key), [lease], cost_ms=1.5)
    assert store.probe(spec.key)
    assert not store.is_filling(spec.key)
    assert entry is lease.entries[spec.key]
    assert (entry.key, entry.num_tokens, entry.interior_tokens) == (spec.key, 4 + SEAM_TOKENS, 4)
    assert store.usage().total.pinned == entry.num_bytes
    lease.close()
    assert store.usage().total.idle == entry.num_bytes
    assert store.probe(spec.key)


def test_an_abandoned_filling_leaves_nothing(store):
    before = store.usage()
    with granted(store, Need(new_entries=(spec_of("a"), spec_of("b")))) as lease:
        with lease.detach(key_of("a")):
            pass
        assert not store.is_filling(key_of("a"))
        assert store.is_filling(key_of("b"))
    assert store.usage() == before
    assert held_segments(store, "a", "b") == []
    assert not store.was_evicted(key_of("a"))


def test_a_filling_ends_once(store):
    with granted(store, Need(new_entries=(spec_of("a"),))) as lease:
        filling = lease.detach(key_of("a"))
        store.commit(filling)
        filling.close()
        with pytest.raises(AssertionError, match="ended already"):
            store.commit(filling)
        with pytest.raises(AssertionError, match="ended already"):
            store.abandon(filling)
    assert store.probe(key_of("a"))


def test_a_detached_filling_outlives_its_lease(store):
    first = granted(store, Need(new_entries=(spec_of("a"),), state_rows=1))
    second = granted(store, Need(state_rows=1))
    filling = first.detach(key_of("a"))
    first.close()
    assert store.is_filling(key_of("a"))
    entry = store.commit(filling, [second])
    assert second.entries == {key_of("a"): entry}
    second.close()
    assert store.probe(key_of("a"))


def test_entries_of_one_layout_have_distinct_slots(store):
    entries = warm(store, "a", "b", "c")
    slots = torch.cat([entry.kv_slots for entry in entries])
    assert len(set(slots.tolist())) == 12
    assert len({entry.state_slot for entry in entries}) == 3
    assert len({entry.transition_slot for entry in entries}) == 3
    for entry in entries:
        assert entry.kv_slots.diff().eq(1).all()


def test_a_closed_form_transition_has_no_slot():
    store = small_store(state_rows=3, transition_rows=3, kv_slots=9, layout=LAYOUTS["constant"])
    (entry,) = warm(store, "a")
    assert entry.transition_slot == NO_SLOT == items.NO_SLOT
    assert store.slabs.transitions is None
    assert store.usage().transition_rows == ByteStates()


def test_without_attention_tokens_take_no_slots():
    store = small_store(state_rows=3, transition_rows=2, kv_slots=0, layout=LAYOUTS["no attention"])
    (entry,) = warm(store, "a", interior=1000)
    assert entry.kv_slots.tolist() == []
    with granted(store, Need(state_rows=1, kv_tokens=1000)) as lease:
        assert lease.take_kv(1000).tolist() == []
        assert store.usage().kv_slots == ByteStates()


# refusals: never, not now


@pytest.mark.parametrize(
    ("need", "pool", "needed", "limit"),
    [
        (Need(kv_tokens=24), "kv_slots", 24, 23),
        (Need(new_entries=(spec_of("x", 24),)), "kv_slots", 24, 23),
        (Need(entries=(key_of("a"),), kv_tokens=20), "kv_slots", 24, 23),
        (Need(chain=ChainRef("", key_of("c")), kv_tokens=22), "kv_slots", 24, 23),
        (Need(state_rows=7), "state_rows", 7, 6),
        (Need(entries=(key_of("a"),), state_rows=6), "state_rows", 7, 6),
        (Need(new_entries=tuple(spec_of(i, 1) for i in range(6))), "transition_rows", 6, 5),
    ],
    ids=["kv", "entry", "pinned entry", "chain", "rows", "pinned row", "transitions"],
)
def test_what_can_never_fit_is_refused_with_both_numbers(store, need, pool, needed, limit):
    warm(store, "a")
    chain(store, "c", tokens=2)
    before = books(store)
    with pytest.raises(PoolExhausted) as caught:
        store.admit(need)
    slot_bytes = {
        "kv_slots": store.layout.kv_slot_bytes,
        "state_rows": store.layout.state_row_bytes,
        "transition_rows": store.layout.transition_row_bytes,
    }[pool]
    assert not caught.value.retryable
    assert caught.value.details == {
        "pool": pool,
        "needed_bytes": needed * slot_bytes,
        "limit_bytes": limit * slot_bytes,
        "setting": "budget_bytes",
        "option": "--cache-mib",
        "budget_bytes": store.sizes.budget_bytes + store.sizes.unused_bytes,
        # its sizes were given, no budget was split
        "enough_bytes": None,
        "enough_mib": None,
        "enough_segment_tokens": None,
        "retryable": False,
    }
    assert f"{needed * slot_bytes} bytes" in caught.value.message
    assert books(store) == before
    assert PoolExhausted.retryable


def test_slots_shared_by_a_chain_and_an_entry_are_needed_once(store):
    """A chain over an entry's own slots (keys without rotation) does not count them twice."""
    (entry,) = warm(store, "a", interior=10)
    with granted(store, Need(entries=(key_of("a"),), state_rows=1)) as lease:
        assert store.put_chain(lease, chain_spec(lease, "c", entry.kv_slots))
    need = Need(entries=(key_of("a"),), chain=ChainRef("", key_of("c")), kv_tokens=13)
    granted(store, need).close()


def test_a_need_as_large_as_the_store_fits(store):
    warm(store, "a", "b", "c")
    with granted(store, Need(state_rows=6, kv_tokens=23)):
        assert held_segments(store, "a", "b", "c") == []


@pytest.mark.parametrize(
    "held",
    [
        Need(kv_tokens=20),
        Need(state_rows=4),
        Need(new_entries=tuple(spec_of(i, 1) for i in range(4))),
    ],
    ids=["reserved kv", "reserved rows", "filling"],
)
def test_what_does_not_fit_now_changes_nothing(store, held):
    warm(store, "a")
    other = granted(store, held)
    before = books(store)
    assert store.admit(Need(new_entries=(spec_of("x"), spec_of("y")), state_rows=1)) is None
    assert books(store) == before
    other.close()
    granted(store, Need(new_entries=(spec_of("x"), spec_of("y")), state_rows=1)).close()


def test_what_a_need_names_is_no_room_for_it(store):
    warm(store, "a")
    other = granted(store, Need(kv_tokens=10))
    before = books(store)
    assert store.admit(Need(entries=(key_of("a"),), kv_tokens=10)) is None
    assert books(store) == before
    granted(store, Need(kv_tokens=10)).close()
    other.close()


def test_a_need_does_not_evict_what_it_names(store):
    warm(store, "a", "b", "c", "d", "e")
    chain(store, "f", tokens=2)
    need = Need(entries=(key_of("a"),), chain=ChainRef("", key_of("f")), kv_tokens=17)
    with granted(store, need) as lease:
        assert held_segments(store, "a", "b", "c", "d", "e") == ["a"]
        assert held_chains(store, "f") == ["f"]
        assert lease.reserved_kv_tokens == 17
    before = books(store)
    with pytest.raises(PoolExhausted):
        store.admit(Need(entries=(key_of("a"),), chain=ChainRef("", key_of("f")), kv_tokens=18))
    assert books(store) == before


def test_a_need_that_names_what_is_not_held_is_a_bug(store):
    with pytest.raises(AssertionError, match="probe again"):
        store.admit(Need(entries=(key_of("a"),)))
    with pytest.raises(AssertionError, match="look up again"):
        store.admit(Need(chain=ChainRef("", key_of("a"))))
    warm(store, "a")
    with pytest.raises(AssertionError, match="held already"):
        store.admit(Need(new_entries=(spec_of("a"),)))
    with pytest.raises(AssertionError, match="twice"):
        store.admit(Need(entries=(key_of("a"), key_of("a"))))
    lease = granted(store, Need(new_entries=(spec_of("b"),)))
    with pytest.raises(AssertionError, match="in filling already"):
        store.admit(Need(new_entries=(spec_of("b"),)))
    lease.close()
    with pytest.raises(AssertionError, match="without an interior"):
        store.admit(Need(new_entries=(spec_of("c", 0),)))


# probing


def test_tokens_are_compared_on_a_probe(store, caplog):
    spec = spec_of("a", tokens=b"tokens")
    with granted(store, Need(new_entries=(spec,))) as lease:
        store.commit(lease.detach(spec.key))
    assert store.probe(spec.key)
    assert store.probe(spec.key, b"tokens")
    with caplog.at_level(logging.ERROR):
        assert not store.probe(spec.key, b"others")
    assert "other tokens" in caplog.text
    assert not store.probe(spec.key, b"tokens")


def test_an_eviction_is_remembered_until_the_entry_is_back_or_deleted(store):
    def evict(*names):
        warm(store, *names)
        granted(store, Need(kv_tokens=23)).close()

    evict("a", "b")
    assert store.was_evicted(key_of("a"))
    assert not store.was_evicted(key_of("never"))
    warm(store, "a")
    assert not store.was_evicted(key_of("a"))
    evict("c")
    store.delete(key_of("b"))
    assert [n for n in "abc" if store.was_evicted(key_of(n))] == ["a", "c"]
    assert store.usage().num_evicted == 4
    store.clear()
    assert not store.was_evicted(key_of("c"))


# deletion


def test_an_idle_entry_is_deleted_at_once(store):
    warm(store, "a", "b")
    assert store.delete(key_of("a")) == Removal(removed=1)
    assert store.delete(key_of("a")) == Removal()
    assert held_segments(store, "a", "b") == ["b"]
    assert store.usage().total.idle == store.layout.segment_bytes(4)


def test_a_pinned_entry_is_not_found_from_now_on_and_gone_with_its_last_lease(store):
    (entry,) = warm(store, "a")
    first = granted(store, Need(entries=(key_of("a"),)))
    second = granted(store, Need(entries=(key_of("a"),)))
    assert store.delete(key_of("a")) == Removal(deferred=1)
    assert not store.probe(key_of("a"))
    first.close()
    assert second.entries[key_of("a")] is entry
    assert store.usage().total.pinned == entry.num_bytes
    # the same key can be made anew beside it
    (again,) = warm(store, "a")
    assert again.state_slot != entry.state_slot
    second.close()
    assert store.usage().total.idle == again.num_bytes
    assert store.probe(key_of("a"))


@pytest.mark.parametrize("waits", [False, True])
def test_an_entry_deleted_while_it_is_made_serves_its_waiters_only(store, waits):
    with granted(store, Need(new_entries=(spec_of("a"),))) as lease:
        filling = lease.detach(key_of("a"))
        assert store.delete(key_of("a")) == Removal(deferred=1)
        assert not store.is_filling(key_of("a"))
        entry = store.commit(filling, [lease] if waits else [])
        assert not store.probe(key_of("a"))
        assert store.usage().total.pinned == (entry.num_bytes if waits else 0)
    assert store.usage().total.free == store.usage().budget_bytes


def test_a_key_can_be_made_anew_while_a_deleted_filling_of_it_is_open(store):
    old = granted(store, Need(new_entries=(spec_of("a"),)))
    store.delete(key_of("a"))
    new = granted(store, Need(new_entries=(spec_of("a"),)))
    entry = store.commit(new.filling[key_of("a")])
    store.commit(old.filling[key_of("a")], [old])
    assert store.probe(key_of("a"))
    old.close()
    new.close()
    assert store.usage().total.idle == entry.num_bytes


def test_deletion_takes_every_chain_that_contains_the_segment(store):
    chain(store, "with", segment_keys=[key_of("a"), key_of("b")])
    chain(store, "without", segment_keys=[key_of("b")])
    assert store.delete(key_of("a")) == Removal(removed=1)
    assert held_chains(store, "with", "without") == ["without"]
    reader = granted(store, Need(chain=ChainRef("", key_of("without"))))
    assert store.delete(key_of("b")) == Removal(deferred=1)
    assert held_chains(store, "without") == []
    assert store.chain_positions("") == []
    reader.close()
    assert store.usage().total.free == store.usage().budget_bytes


def test_no_chain_with_a_segment_deleted_meanwhile_is_put(store):
    with granted(store, Need(state_rows=2, kv_tokens=3)) as lease:
        table = lease.take_kv(3)
        store.delete(key_of("a"))
        spec = chain_spec(lease, "c", table, segment_keys=[key_of("a")])
        assert not store.put_chain(lease, spec)
        assert store.put_chain(lease, chain_spec(lease, "d", table, segment_keys=[key_of("b")]))
    assert held_chains(store, "c", "d") == ["d"]


@pytest.mark.parametrize("cleared", ["here", None])
def test_clear_keeps_namespaces_apart(store, cleared):
    warm(store, "a", namespace="here")
    warm(store, "b", namespace="there")
    chain(store, "c", namespace="here")
    chain(store, "c", namespace="there")
    running = granted(store, Need(state_rows=2, kv_tokens=1))
    removal = store.clear(cleared)
    gone = {"here"} if cleared else {"here", "there"}
    assert removal == Removal(removed=2 * len(gone))
    assert held_segments(store, "a", "b") == ([] if cleared is None else ["b"])
    for namespace in ("here", "there"):
        left = held_chains(store, "c", namespace=namespace)
        assert left == ([] if namespace in gone else ["c"])
        spec = chain_spec(running, "new", torch.tensor([], dtype=torch.int64), namespace=namespace)
        assert store.put_chain(running, spec) == (namespace not in gone)
    running.close()


def test_clear_reaches_what_is_being_made(store):
    needs = (spec_of("a", namespace="here"), spec_of("b", namespace="there"))
    with granted(store, Need(new_entries=needs)) as lease:
        assert store.clear("here") == Removal(deferred=1)
        assert [n for n in "ab" if store.is_filling(key_of(n))] == ["b"]
        for name in "ab":
            store.commit(lease.detach(key_of(name)), [lease])
    assert held_segments(store, "a", "b") == ["b"]


# chains


def test_life_of_a_chain(store):
    with granted(store, Need(state_rows=2, kv_tokens=5)) as lease:
        running, table = lease.take_state_row(), lease.take_kv(5)
        assert store.put_chain(lease, chain_spec(lease, "c", table[:3]))
        assert store.usage().state_rows.idle == store.layout.state_row_bytes
        assert store.usage().kv_slots.pinned == 5 * store.layout.kv_slot_bytes
    assert store.usage().kv_slots.idle == 3 * store.layout.kv_slot_bytes
    entry = store.longest_chain("", [key_of("x"), key_of("c")])
    assert entry is not None
    assert entry.state_slot != running
    assert entry.kv_slots.tolist() == table[:3].tolist()
    with granted(store, Need(chain=ChainRef("", key_of("c")), kv_tokens=4)) as lease:
        assert lease.chain is entry
        # the slots behind the chain are free again, so the table of the request has no gap
        assert torch.cat((entry.kv_slots, lease.take_kv(4))).diff().eq(1).all()


def test_a_table_goes_on_behind_its_chain_though_other_room_comes_first(store):
    warm(store, "a", interior=5)
    chain(store, "c", tokens=3)
    store.delete(key_of("a"))
    with granted(store, Need(chain=ChainRef("", key_of("c")), kv_tokens=4)) as lease:
        assert lease.chain is not None
        assert torch.cat((lease.chain.kv_slots, lease.take_kv(4))).diff().eq(1).all()


def test_the_longest_of_the_digests_in_its_namespace(store):
    chain(store, "short", tokens=2)
    chain(store, "long", tokens=5)
    chain(store, "longest", tokens=6, namespace="elsewhere")
    digests = [key_of(name) for name in ("longest", "short", "long", "none")]
    entry = store.longest_chain("", digests)
    assert entry is not None
    assert entry.digest == key_of("long")
    assert store.longest_chain("nowhere", digests) is None
    assert store.longest_chain("", []) is None


def test_positions_are_distinct_and_rising(store):
    for name, tokens in (("a", 5), ("b", 2), ("c", 5), ("d", 3)):
        chain(store, name, tokens=tokens, segment_keys=[key_of(name)])
    chain(store, "e", tokens=1, namespace="elsewhere")
    assert store.chain_positions("") == [2, 3, 5]
    assert store.chain_positions("", limit=3) == [2, 3]
    store.delete(key_of("a"))
    store.delete(key_of("b"))
    assert store.chain_positions("") == [3, 5]
    assert store.chain_positions("nowhere") == []


def test_a_digest_is_held_once(store):
    chain(store, "c")
    before = store.usage()
    with granted(store, Need(state_rows=1, kv_tokens=2)) as lease:
        spec = chain_spec(lease, "c", lease.take_kv(2))
        assert not store.put_chain(lease, spec)
        lease.return_state_row(spec.state_slot)
        with pytest.raises(AssertionError, match="not in use"):
            lease.return_state_row(spec.state_slot)
    assert store.usage() == before


def test_a_chain_over_slots_that_nobody_uses_is_a_bug(store):
    with granted(store, Need(state_rows=1, kv_tokens=2)) as lease:
        spec = chain_spec(lease, "c", torch.tensor([22]))
        with pytest.raises(AssertionError, match="nobody uses"):
            store.put_chain(lease, spec)
    with pytest.raises(AssertionError, match="closed"):
        store.put_chain(lease, spec)


def test_a_table_may_name_a_slot_twice(store):
    (entry,) = warm(store, "a", interior=3)
    with granted(store, Need(entries=(key_of("a"),), state_rows=1)) as lease:
        twice = torch.cat((entry.kv_slots, entry.kv_slots))
        assert store.put_chain(lease, chain_spec(lease, "c", twice))
    with granted(store, Need(chain=ChainRef("", key_of("c")))):
        store.check()
    store.delete(key_of("a"))
    found = store.longest_chain("", [key_of("c")])
    assert found is not None
    assert found.kv_slots.tolist() == twice.tolist()
    assert store.usage().kv_slots.idle == 3 * store.layout.kv_slot_bytes


def test_the_books_read_nothing_from_the_device():
    """Tensors on `meta` have no values: whoever waited for one would fail."""
    store = Store(LAYOUTS["dense"], StoreConfig(budget_bytes=MIB), device=torch.device("meta"))
    (entry,) = warm(store, "a")
    chain(store, "c", tokens=3)
    need = Need(entries=(key_of("a"),), state_rows=1, kv_tokens=4)
    with granted(store, need) as lease:
        slots = lease.take_kv(4)
        assert store.put_chain(lease, chain_spec(lease, "d", slots))
    store.delete(key_of("a"))
    assert slots.device == entry.kv_slots.device == CPU
    store.check()
