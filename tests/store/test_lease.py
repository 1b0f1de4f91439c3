"""A lease gives what was granted, and `close` gives everything back, whatever happened before."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.prompt.segment import BorderKind
from hypic_sdk.store.entries import ChainRef, Need
from tests.store.small_store import (
    chain,
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
    store = small_store(state_rows=6, transition_rows=5, kv_slots=23)
    yield store
    store.check()


def test_no_more_is_taken_than_was_reserved(store):
    with granted(store, Need(state_rows=2, kv_tokens=7)) as lease:
        rows = {lease.take_state_row(), lease.take_state_row()}
        assert len(rows) == 2
        slots = torch.cat((lease.take_kv(3), lease.take_kv(0), lease.take_kv(4)))
        assert slots.diff().eq(1).all()
        assert (lease.reserved_state_rows, lease.reserved_kv_tokens) == (0, 0)
        with pytest.raises(AssertionError, match="no state row"):
            lease.take_state_row()
        with pytest.raises(AssertionError, match="1 KV slots wanted, 0 are reserved"):
            lease.take_kv(1)
        with pytest.raises(AssertionError, match="negative"):
            lease.take_kv(-1)


def test_reserved_becomes_pinned_as_it_is_taken(store):
    row, slot = store.layout.state_row_bytes, store.layout.kv_slot_bytes
    with granted(store, Need(state_rows=2, kv_tokens=7)) as lease:
        assert store.usage().total.reserved == 2 * row + 7 * slot
        lease.take_state_row()
        lease.take_kv(3)
        assert store.usage().total.reserved == row + 4 * slot
        assert store.usage().total.pinned == row + 3 * slot
    assert store.usage().total.free == store.usage().budget_bytes


def test_an_error_on_the_way_gives_everything_back(store):
    warm(store, "a")
    before = store.usage()
    need = Need((key_of("a"),), (spec_of("b"), spec_of("c")), state_rows=1, kv_tokens=3)

    def serve():
        with granted(store, need) as lease:
            lease.take_kv(2)
            lease.take_state_row()
            raise KeyError("on the way")

    with pytest.raises(KeyError, match="on the way"):
        serve()
    assert store.usage() == before
    assert held_segments(store, "a", "b", "c") == ["a"]


def test_closing_twice_is_harmless_and_using_a_closed_lease_is_a_bug(store):
    warm(store, "a")
    lease = granted(store, Need(state_rows=1, kv_tokens=1))
    lease.close()
    lease.close()
    for use in (
        lease.take_state_row,
        lambda: lease.take_kv(1),
        lambda: lease.adopt(key_of("a")),
        lambda: lease.try_state_row(BorderKind.LEADING),
        lambda: lease.return_state_row(0),
    ):
        with pytest.raises(AssertionError, match="closed"):
            use()


def test_an_adopted_entry_is_pinned_like_a_hit(store):
    (entry,) = warm(store, "a")
    with granted(store, Need(kv_tokens=1)) as lease:
        with pytest.raises(AssertionError, match="no entry"):
            lease.adopt(key_of("b"))
        assert lease.adopt(key_of("a")) is entry
        with pytest.raises(AssertionError, match="already"):
            lease.adopt(key_of("a"))
        assert store.admit(Need(kv_tokens=19)) is None
    granted(store, Need(kv_tokens=20)).close()


def test_entries_can_go_before_the_request_ends(store):
    (entry,) = warm(store, "a")
    chain(store, "c", tokens=3, kind=BorderKind.LEADING)
    need = Need((key_of("a"),), chain=ChainRef("", key_of("c")), state_rows=1, kv_tokens=2)
    with granted(store, need) as lease:
        table = lease.take_kv(2)
        lease.release_entries()
        assert lease.entries == {}
        assert store.usage().total.idle == entry.num_bytes + store.layout.state_row_bytes
        # both may be evicted now, and the slots the request reads are not handed out
        with granted(store, Need(state_rows=5, kv_tokens=18)) as other:
            assert held_segments(store, "a") == []
            assert held_chains(store, "c") == []
            assert lease.chain is not None
            used = {*lease.chain.kv_slots.tolist(), *table.tolist()}
            assert used.isdisjoint(other.take_kv(18).tolist())
        store.check()
        lease.release_entries()
    assert store.usage().total.free == store.usage().budget_bytes


def test_a_row_for_a_snapshot_is_taken_from_free_rows_first(store):
    warm(store, "a", "b")
    with granted(store, Need(state_rows=1)) as lease:
        rows = [lease.try_state_row(BorderKind.MESSAGE) for _ in range(3)]
        assert len({*rows, lease.take_state_row()}) == 4
        assert held_segments(store, "a", "b") == ["a", "b"]
        assert lease.try_state_row(BorderKind.PROMPT) is None


@pytest.mark.parametrize(
    ("kind", "session_id", "retained"),
    [
        (BorderKind.MESSAGE, None, False),
        (BorderKind.REPLY, None, False),
        (BorderKind.PROMPT, "s", True),
        (BorderKind.LEADING, None, True),
    ],
)
def test_a_snapshot_drives_segments_out_only_if_it_will_be_retained(
    store, kind, session_id, retained
):
    warm(store, "a", "b")
    chain(store, "leading", tokens=1, kind=BorderKind.LEADING)
    chain(store, "spare", tokens=1)
    with granted(store, Need(state_rows=2)) as lease:
        assert lease.try_state_row(kind, session_id) is not None
        assert held_chains(store, "leading", "spare") == ["leading"]
        assert (lease.try_state_row(kind, session_id) is not None) == retained
        assert held_segments(store, "a", "b") == (["b"] if retained else ["a", "b"])
        assert held_chains(store, "leading") == ["leading"]


def test_a_snapshot_never_gets_a_row_in_use(store):
    granted_rows = granted(store, Need(state_rows=6))
    with granted(store, Need(kv_tokens=1)) as lease:
        assert lease.try_state_row(BorderKind.LEADING) is None
    granted_rows.close()
