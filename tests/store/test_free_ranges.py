"""Free slots: what is given back is whole again, and neighbours come together."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.store.free_ranges import FreeRanges

# each pair: take so many; then give back the share of what is out whose index has these bits
STEPS = st.lists(st.tuples(st.integers(0, 13), st.integers(0, 2**37 - 1)), max_size=12)


def well_formed(free: FreeRanges) -> list[int]:
    """The free slots; fails unless ranges are disjoint, rising and never touching."""
    slots: list[int] = []
    for start, stop in free.ranges:
        assert start < stop
        assert not slots or slots[-1] + 1 < start, "two ranges touch, or do not rise"
        slots.extend(range(start, stop))
    assert len(slots) == len(free)
    return slots


@given(num_slots=st.integers(1, 37), steps=STEPS, after=st.none() | st.integers(0, 37))
def test_each_slot_is_free_or_out_once(num_slots, steps, after):
    free, out = FreeRanges(num_slots), set()
    for wanted, bits in steps:
        taken = free.take(min(wanted, len(free)), after).tolist()
        assert len(taken) == len(set(taken)) == min(wanted, num_slots - len(out))
        assert out.isdisjoint(taken)
        out.update(taken)
        back = [slot for slot in sorted(out, reverse=True) if bits >> slot & 1]
        free.give(torch.tensor(back, dtype=torch.int64))
        out.difference_update(back)
        assert sorted([*well_formed(free), *out]) == list(range(num_slots))
    free.give(torch.tensor(sorted(out), dtype=torch.int64))
    assert free.ranges == [(0, num_slots)]


@given(num_slots=st.integers(1, 37), bits=st.integers(0, 2**37 - 1), wanted=st.integers(1, 9))
def test_pieces_are_as_few_as_can_be(num_slots, bits, wanted):
    free = FreeRanges(num_slots)
    everything = free.take(num_slots)
    free.give(everything[[bool(bits >> slot & 1) for slot in range(num_slots)]])
    wanted = min(wanted, len(free))
    if wanted == 0:
        return
    lengths = sorted((stop - start for start, stop in free.ranges), reverse=True)
    fewest = next(n for n in range(1, len(lengths) + 1) if sum(lengths[:n]) >= wanted)
    taken = free.take(wanted)
    assert 1 + int((taken.diff() != 1).sum()) == fewest


def test_first_fit():
    free = FreeRanges(20)
    free.take(20)
    free.give(torch.tensor([1, 2, 5, 6, 7, 8, 11, 12, 13]))
    assert free.take(3).tolist() == [5, 6, 7]
    assert free.take(2).tolist() == [1, 2]


def test_goes_on_where_asked_if_all_of_it_fits_there():
    free = FreeRanges(20)
    free.take(12)
    free.give(torch.arange(0, 6))
    assert free.take(3, after=12).tolist() == [12, 13, 14]
    # 15..19 are five, so six come from elsewhere in one piece
    assert free.take(6, after=15).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("slots", [[3], [2, 3], [3, 4], [0]], ids=str)
def test_giving_back_a_free_slot_is_caught(slots):
    free = FreeRanges(6)
    taken = free.take(6)
    free.give(taken[[0, 3]])
    with pytest.raises(AssertionError, match="free already"):
        free.give(torch.tensor(slots))


def test_no_slots_at_all():
    free = FreeRanges(0)
    assert free.ranges == []
    assert free.take(0).tolist() == []
    free.give(torch.tensor([], dtype=torch.int64))
    assert len(free) == 0
