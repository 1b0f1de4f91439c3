"""How room is made: by the policy, no more than needed, of what is short only."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.config import StoreConfig
from hypic_sdk.prompt.segment import BorderKind
from hypic_sdk.store.entries import ChainRef, Need
from hypic_sdk.store.eviction import Evictable
from hypic_sdk.store.store import Store
from tests.store.small_store import (
    CPU,
    LAYOUTS,
    chain_spec,
    granted,
    held_chains,
    held_segments,
    key_of,
    small_store,
    spec_of,
    warm,
)


@given(
    uses=st.lists(st.integers(0, 4), max_size=8),
    kv_tokens=st.integers(0, 20),
)
def test_the_least_recently_used_go_and_no_more_than_needed(uses, kv_tokens):
    store = small_store(state_rows=5, transition_rows=5, kv_slots=20)
    warm(store, *range(5))
    for use in uses:
        granted(store, Need(entries=(key_of(use),))).close()
    by_last_use = sorted(range(5), key=lambda n: uses[::-1].index(n) if n in uses else 99 - n)
    granted(store, Need(kv_tokens=kv_tokens)).close()
    # each entry has four slots
    num_left = 5 - -(-kv_tokens // 4)
    assert set(held_segments(store, *range(5))) == set(by_last_use[:num_left])


def test_probes_and_lookups_do_not_count_as_use():
    store = small_store(state_rows=3, transition_rows=3, kv_slots=12)
    warm(store, "a", "b", "c")
    assert store.probe(key_of("a"))
    granted(store, Need(kv_tokens=4)).close()
    assert held_segments(store, "a", "b", "c") == ["b", "c"]


def test_an_entry_without_what_is_short_stays():
    store = small_store(state_rows=4, transition_rows=4, kv_slots=12)
    with granted(store, Need(state_rows=1)) as lease:
        # the oldest entry holds a state row and nothing else
        assert store.put_chain(lease, chain_spec(lease, "c", lease.take_kv(0)))
    warm(store, "a", "b", interior=6)
    granted(store, Need(kv_tokens=3)).close()
    assert held_chains(store, "c") == ["c"]
    assert held_segments(store, "a", "b") == ["b"]


def test_a_prefix_whose_slots_a_longer_chain_shares_is_not_sacrificed_for_nothing():
    store = small_store(state_rows=4, transition_rows=4, kv_slots=10)
    with granted(store, Need(state_rows=2, kv_tokens=6)) as lease:
        table = lease.take_kv(6)
        assert store.put_chain(lease, chain_spec(lease, "short", table[:4]))
        assert store.put_chain(lease, chain_spec(lease, "long", table))
    granted(store, Need(kv_tokens=5)).close()
    assert held_chains(store, "short", "long") == ["short"]
    granted(store, Need(kv_tokens=7)).close()
    assert held_chains(store, "short", "long") == []


def test_entries_that_share_every_slot_go_together_when_nothing_else_helps():
    store = small_store(state_rows=4, transition_rows=4, kv_slots=6)
    with granted(store, Need(state_rows=2, kv_tokens=6)) as lease:
        table = lease.take_kv(6)
        for name in ("c", "d"):
            kind = BorderKind.LEADING
            assert store.put_chain(lease, chain_spec(lease, name, table, kind=kind))
    granted(store, Need(kv_tokens=1)).close()
    assert held_chains(store, "c", "d") == []
    store.check()


def test_a_chain_over_slots_in_use_is_no_room():
    store = small_store(state_rows=4, transition_rows=4, kv_slots=6)
    with granted(store, Need(state_rows=1, kv_tokens=6)) as lease:
        table = lease.take_kv(6)
        assert store.put_chain(lease, chain_spec(lease, "c", table))
        assert store.admit(Need(kv_tokens=1)) is None
        assert held_chains(store, "c") == ["c"]
    with granted(store, Need(chain=ChainRef("", key_of("c")))):
        assert store.admit(Need(kv_tokens=1)) is None
    granted(store, Need(kv_tokens=1)).close()


def test_scattered_slots_are_as_good_as_neighbours():
    store = small_store(state_rows=6, transition_rows=6, kv_slots=12)
    warm(store, *range(6), interior=2)
    for name in (0, 2, 4):
        store.delete(key_of(name))
    with granted(store, Need(new_entries=(spec_of("a", 6),))) as lease:
        entry = lease.filling[key_of("a")].entry
        assert sorted(entry.kv_slots.tolist()) == [0, 1, 4, 5, 8, 9]
        assert held_segments(store, 1, 3, 5) == [1, 3, 5]
    store.check()


class CheapestFirst:
    """A policy that weighs cost: milliseconds saved per byte."""

    def __init__(self) -> None:
        self.idle: set[Evictable] = set()

    def add(self, entry: Evictable) -> None:
        self.idle.add(entry)

    def remove(self, entry: Evictable) -> None:
        self.idle.remove(entry)

    def order(self) -> Sequence[Evictable]:
        return sorted(self.idle, key=lambda entry: entry.cost_ms / entry.num_bytes)


@pytest.mark.parametrize("policy", [None, CheapestFirst()], ids=["lru", "cheapest first"])
def test_a_policy_is_a_port(policy):
    layout = LAYOUTS["constant"]
    probe_store = small_store(state_rows=3, transition_rows=0, kv_slots=30, layout=layout)
    store = Store(layout, StoreConfig(), device=CPU, policy=policy, sizes=probe_store.sizes)
    for name, cost_ms in (("dear", 100.0), ("cheap", 1.0), ("fair", 9.0)):
        with granted(store, Need(new_entries=(spec_of(name),))) as lease:
            store.commit(lease.detach(key_of(name)), cost_ms=cost_ms)
    granted(store, Need(state_rows=1)).close()
    gone = "dear" if policy is None else "cheap"
    left = [name for name in ("dear", "cheap", "fair") if name != gone]
    assert held_segments(store, "dear", "cheap", "fair") == left
    store.check()
