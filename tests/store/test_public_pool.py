"""The index of segment entries: a bounded memory of what was evicted."""

from __future__ import annotations

from hypic_sdk.store import public_pool
from hypic_sdk.store.entries import Need
from tests.store.small_store import granted, key_of, small_store, spec_of, warm


def test_the_memory_of_evictions_is_bounded(monkeypatch):
    monkeypatch.setattr(public_pool, "REMEMBERED_EVICTIONS", 3)
    store = small_store(state_rows=5, transition_rows=5, kv_slots=5)
    warm(store, *range(5), interior=1)
    granted(store, Need(state_rows=5)).close()
    assert [n for n in range(5) if store.was_evicted(key_of(n))] == [2, 3, 4]


def test_tokens_are_kept_no_longer_than_the_entry():
    store = small_store(state_rows=2, transition_rows=2, kv_slots=4)
    for _ in range(2):
        spec = spec_of("a", 1, tokens=b"tokens")
        with granted(store, Need(new_entries=(spec,))) as lease:
            store.commit(lease.detach(spec.key))
        assert store._memory.segments._tokens == {spec.key: b"tokens"}
        granted(store, Need(state_rows=2)).close()
        assert store._memory.segments._tokens == {}
