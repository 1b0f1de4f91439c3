"""Which chain entries are retained, and that the others go first."""

from __future__ import annotations

import pytest

from hypic_sdk.config import StoreConfig
from hypic_sdk.prompt.segment import BorderKind
from hypic_sdk.store.entries import ChainRef, Need
from tests.store.small_store import (
    chain,
    chain_spec,
    granted,
    held_chains,
    held_segments,
    key_of,
    small_store,
    warm,
)


@pytest.fixture
def store():
    store = small_store(state_rows=7, transition_rows=5, kv_slots=23)
    yield store
    store.check()


def turn(store, session_id, name):
    chain(store, name, tokens=1, kind=BorderKind.REPLY, session_id=session_id)


def evict_rows(store, count):
    """Evict this many entries, by asking for one row more than is free, again and again."""
    free = store.usage().state_rows.free // store.layout.state_row_bytes
    granted(store, Need(state_rows=free + count)).close()


def test_other_entries_go_before_retained_ones_however_old(store):
    warm(store, "segment")
    chain(store, "leading", tokens=1, kind=BorderKind.LEADING)
    turn(store, "s", "turn 1")
    turn(store, "s", "turn 2")
    chain(store, "message", tokens=1, kind=BorderKind.MESSAGE)
    chain(store, "prompt", tokens=1, kind=BorderKind.PROMPT)
    names = ("leading", "turn 1", "turn 2", "message", "prompt")
    evict_rows(store, 2)
    assert held_chains(store, *names) == ["leading", "turn 1", "turn 2"]
    assert held_segments(store, "segment") == ["segment"]
    # from here on all are retained, and the least recently used goes first
    evict_rows(store, 1)
    assert held_segments(store, "segment") == []
    assert held_chains(store, *names) == ["leading", "turn 1", "turn 2"]
    evict_rows(store, 2)
    assert held_chains(store, *names) == ["turn 2"]


def test_a_session_retains_its_last_two(store):
    for name in ("turn 1", "turn 2", "turn 3"):
        turn(store, "s", name)
    turn(store, "other", "turn of another")
    evict_rows(store, 1)
    names = ("turn 1", "turn 2", "turn 3", "turn of another")
    assert held_chains(store, *names) == list(names[1:])


def test_sessions_of_two_namespaces_are_two(store):
    for namespace in ("here", "there"):
        for name in ("turn 1", "turn 2"):
            chain(store, name, tokens=1, session_id="s", namespace=namespace)
    store.check()
    assert all(resident.retained for resident in store._memory.chains.held.values())


def test_putting_a_held_digest_again_makes_it_the_sessions_last(store):
    for name in ("turn 1", "turn 2"):
        turn(store, "s", name)
    with granted(store, Need(state_rows=1, kv_tokens=1)) as lease:
        spec = chain_spec(lease, "turn 1", lease.take_kv(1), session_id="s")
        assert not store.put_chain(lease, spec)
    turn(store, "s", "turn 3")
    evict_rows(store, 1)
    assert held_chains(store, "turn 1", "turn 2", "turn 3") == ["turn 1", "turn 3"]


def test_putting_a_held_digest_again_is_a_use(store):
    for name in ("c", "d"):
        chain(store, name, tokens=1)
    with granted(store, Need(state_rows=1, kv_tokens=1)) as lease:
        assert not store.put_chain(lease, chain_spec(lease, "c", lease.take_kv(1)))
    evict_rows(store, 1)
    assert held_chains(store, "c", "d") == ["c"]


def test_an_entry_stays_retained_while_one_session_wants_it(store):
    turn(store, "s", "shared")
    with granted(store, Need(state_rows=1, kv_tokens=1)) as lease:
        spec = chain_spec(lease, "shared", lease.take_kv(1), session_id="other")
        assert not store.put_chain(lease, spec)
    for name in ("turn 2", "turn 3"):
        turn(store, "s", name)
    chain(store, "message", tokens=1)
    evict_rows(store, 1)
    assert held_chains(store, "shared", "message") == ["shared"]


def test_a_message_border_that_is_a_leading_part_elsewhere_is_retained(store):
    chain(store, "c", tokens=1)
    with granted(store, Need(state_rows=1, kv_tokens=1)) as lease:
        spec = chain_spec(lease, "c", lease.take_kv(1), kind=BorderKind.LEADING)
        assert not store.put_chain(lease, spec)
    chain(store, "d", tokens=1)
    evict_rows(store, 1)
    assert held_chains(store, "c", "d") == ["c"]


def test_ended_sessions_leave_nothing_behind(store):
    for session in range(20):
        turn(store, str(session), f"turn of {session}")
    chains = store._memory.chains
    assert len(chains.held) == 7
    assert len(chains._sessions) == len(chains._retained_by) == 7
    store.clear()
    assert not chains._sessions
    assert not chains._retained_by
    assert not chains._by_segment
    assert not chains._positions


def test_a_session_may_retain_none():
    config = StoreConfig(max_chain_entries_per_session=0)
    store = small_store(state_rows=3, transition_rows=3, kv_slots=9, config=config)
    warm(store, "a")
    turn(store, "s", "turn 1")
    turn(store, "s", "turn 2")
    evict_rows(store, 2)
    assert held_chains(store, "turn 1", "turn 2") == []
    assert held_segments(store, "a") == ["a"]
    # so a snapshot for it is worth no more than any other
    with granted(store, Need(state_rows=2)) as lease:
        assert lease.try_state_row(BorderKind.REPLY, "s") is None
        assert held_segments(store, "a") == ["a"]
    store.check()


def test_a_chain_in_use_is_not_evicted(store):
    chain(store, "c", tokens=2)
    with granted(store, Need(chain=ChainRef("", key_of("c")))):
        assert store.admit(Need(state_rows=7)) is None
        evict_rows(store, 0)
        assert held_chains(store, "c") == ["c"]
