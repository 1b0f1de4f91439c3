"""Counts by stretches against a plain list of counts."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.store.range_counts import RangeCounts

NUM_SLOTS = 19
SPANS = st.integers(0, NUM_SLOTS - 1).flatmap(
    lambda start: st.integers(start + 1, NUM_SLOTS).map(lambda stop: range(start, stop))
)


@given(changes=st.lists(st.tuples(st.booleans(), SPANS), max_size=30), asked=SPANS)
def test_counts_are_those_of_a_list_and_stretches_as_few_as_they_can_be(changes, asked):
    counts, plain = RangeCounts(NUM_SLOTS), [0] * NUM_SLOTS
    for adds, span in changes:
        if adds:
            assert counts.add(span) == sum(plain[slot] == 0 for slot in span)
        else:
            unnamed = [slot for stretch in counts.remove(span) for slot in stretch]
            assert unnamed == [slot for slot in span if plain[slot] == 1]
        for slot in span:
            plain[slot] += 1 if adds else -1
        told = counts.tensor()
        assert told.dtype == torch.int32
        assert told.tolist() == plain
        assert len(counts._counts) - 2 == sum(a != b for a, b in pairwise(plain))
    for times in range(-1, 3):
        found = list(counts.where(asked, times))
        assert all(found)
        assert [slot for stretch in found for slot in stretch] == [
            slot for slot in asked if plain[slot] == times
        ]


def test_a_slab_without_slots_has_no_counts():
    assert RangeCounts(0).tensor().tolist() == []


def test_a_call_costs_by_stretches_not_by_slots():
    """Ten million slots named a hundred thousand at a time: a stretch each."""
    counts = RangeCounts(10_000_000)
    for start in range(0, 10_000_000, 200_000):
        counts.add(range(start, start + 100_000))
    assert len(counts._counts) == 101
    assert counts.add(range(10_000_000)) == 5_000_000
    assert sum(map(len, counts.remove(range(10_000_000)))) == 5_000_000
