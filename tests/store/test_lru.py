"""The order of eviction: last use first forgotten, whatever happened in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.store.lru import Lru


class Entry:
    num_bytes = 1
    cost_ms = 0.0


@given(uses=st.lists(st.integers(0, 6), min_size=1), gone=st.sets(st.integers(0, 6)))
def test_order_is_that_of_the_last_use(uses, gone):
    entries = [Entry() for _ in range(7)]
    policy: Lru[Entry] = Lru()
    for index, use in enumerate(uses):
        if use in uses[:index]:
            policy.remove(entries[use])
        policy.add(entries[use])
    for index in gone & set(uses):
        policy.remove(entries[index])
    by_last_use = sorted(set(uses) - gone, key=lambda entry: uses[::-1].index(entry), reverse=True)
    assert list(policy.order()) == [entries[index] for index in by_last_use]


def test_an_entry_is_idle_once():
    policy: Lru[Entry] = Lru()
    entry = Entry()
    policy.add(entry)
    with pytest.raises(AssertionError, match="idle already"):
        policy.add(entry)
    policy.remove(entry)
    with pytest.raises(KeyError):
        policy.remove(entry)
