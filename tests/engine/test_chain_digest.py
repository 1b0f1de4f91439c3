"""Chain digests name item lists: the same items give the same digest, anything else another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.config import SeamWidths
from hypic_sdk.engine.chain_digest import ChainDigest
from hypic_sdk.prompt.segment import segment_key, token_bytes

live = st.lists(st.integers(0, 5), max_size=6).map(lambda ids: ("live", tuple(ids), 0))
interior = st.tuples(
    st.just("interior"),
    st.lists(st.integers(0, 5), min_size=1, max_size=6).map(tuple),
    st.integers(0, 2),
)
item_lists = st.lists(live | interior, max_size=6)


def feed(rolling: ChainDigest, items: list[tuple[str, tuple[int, ...], int]]) -> ChainDigest:
    for kind, ids, head in items:
        if kind == "live":
            rolling.feed_live(token_bytes(ids))
        else:
            key = segment_key(ids, SeamWidths(head, 0), "n")
            rolling.feed_interior(key, head, token_bytes(ids))
    return rolling


def merged(items: list[tuple[str, tuple[int, ...], int]]) -> list[object]:
    """Items with live tokens one by one: what the digest must depend on, and no more."""
    flat: list[object] = []
    for item in items:
        flat.extend(item[1] if item[0] == "live" else [item])
    return flat


@given(one=item_lists, other=item_lists)
def test_digests_are_equal_exactly_when_the_items_are(one, other):
    same = feed(ChainDigest("n"), one).digest() == feed(ChainDigest("n"), other).digest()
    assert same == (merged(one) == merged(other))


@given(items=item_lists, more=item_lists)
def test_a_copy_goes_on_alone(items, more):
    rolling = feed(ChainDigest("n"), items)
    before = rolling.digest()
    continued = feed(rolling.copy(), more).digest()
    assert rolling.digest() == before
    assert continued == feed(ChainDigest("n"), [*items, *more]).digest()


def test_namespaces_are_apart():
    assert ChainDigest("a").digest() != ChainDigest("b").digest()
    assert ChainDigest("ab").digest() != ChainDigest("a").digest()
