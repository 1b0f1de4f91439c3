"""Tables of slots by position, however few ranges they have."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.engine.kv_table import KvTable

CPU = torch.device("cpu")


def test_kv_tables_know_whether_they_are_a_range():
    assert KvTable(torch.arange(5, 9), CPU).contiguous_start == 5
    assert KvTable(torch.tensor([5, 7]), CPU).contiguous_start is None
    assert KvTable(torch.tensor([6, 5]), CPU).contiguous_start is None
    assert KvTable(torch.empty(0, dtype=torch.int64), CPU).contiguous_start == 0
    assert KvTable((), CPU).contiguous_start == 0


@given(
    spans=st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4)), max_size=8),
    ends=st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_kv_tables_are_the_same_of_numbers_and_of_ranges(spans, ends):
    """Few ranges and many; neighbours that touch are one range, in whatever order they come."""
    ranges, last = [], 30
    for skipped, count in spans:
        ranges.append(range(last + skipped, last + skipped + count))
        last += skipped + count
    slots = [slot for span in ranges for slot in span]
    for given_as in (torch.tensor(slots, dtype=torch.int64), tuple(ranges)):
        table = KvTable(given_as, CPU)
        assert table.slots.tolist() == table.host_slots.tolist() == slots
        assert table.slots.dtype == table.host_slots.dtype == torch.int64
        start, stop = sorted(min(end, len(slots)) for end in ends)
        own = table.between(start, stop)
        assert [slot for span in own for slot in span] == slots[start:stop]
        assert all(own)
        assert all(a.stop != b.start for a, b in pairwise(own)), "as few ranges as there can be"
        is_one = slots == list(range(slots[0], slots[0] + len(slots))) if slots else True
        assert (table.contiguous_start is not None) == is_one
