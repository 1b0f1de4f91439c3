"""Ranges name the slots that a list would name."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.store.slot_ranges import count, joined, ranges_of, slots_at, split, tensor_of, union

SPANS = st.builds(lambda start, length: range(start, start + length), *[st.integers(1, 17)] * 2)
SLOTS = st.lists(SPANS, max_size=5).map(tuple)


def listed(slots):
    return [slot for span in slots for slot in span]


@given(slots=SLOTS)
def test_a_tensor_and_back_in_the_same_order(slots):
    tensor = tensor_of(slots)
    assert tensor.dtype == torch.int64
    assert tensor.tolist() == listed(slots)
    assert listed(ranges_of(tensor)) == listed(slots)
    assert count(slots) == len(listed(slots))


@given(slots=st.lists(st.integers(0, 9), max_size=20))
def test_ranges_are_not_empty_and_as_few_as_the_order_allows(slots):
    ranges = ranges_of(torch.tensor(slots, dtype=torch.int64))
    assert all(ranges)
    assert listed(ranges) == slots == listed(slots_at(*slots))
    assert len(ranges) == sum(a + 1 != b for a, b in zip([-9, *slots], slots, strict=False))


@given(slots=SLOTS)
def test_ranges_that_follow_each_other_are_joined_in_their_order(slots):
    assert joined(slots) == ranges_of(tensor_of(slots))


@given(slots=SLOTS, data=st.data())
def test_a_split_keeps_the_order(slots, data):
    num_slots = data.draw(st.integers(0, count(slots)))
    first, rest = split(slots, num_slots)
    assert listed(first) == listed(slots)[:num_slots]
    assert listed(rest) == listed(slots)[num_slots:]
    assert all([*first, *rest])


def test_no_more_is_split_off_than_there_is():
    with pytest.raises(AssertionError, match="1 slots too few"):
        split((range(3), range(7, 9)), 6)


@given(groups=st.lists(SLOTS, max_size=4))
def test_a_union_has_each_slot_once(groups):
    joined = union(groups)
    assert listed(joined) == sorted({slot for slots in groups for slot in listed(slots)})
    assert all(a.stop < b.start for a, b in pairwise(joined))
