"""Free slots: what is given back is whole again, and neighbours come together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.store.free_ranges import FreeRanges
from hypic_sdk.store.slot_ranges import slots_at

# each pair: take so many; then give back the share of what is out whose index has these bits
STEPS = st.lists(st.tuples(st.integers(0, 13), st.integers(0, 2**37 - 1)), max_size=12)


def well_formed(free: FreeRanges) -> list[int]:
    """The free slots; fails unless ranges are disjoint, rising and never touching."""
    slots: list[int] = []
    for span in free.ranges:
        assert span
        assert not slots or slots[-1] + 1 < span.start, "two ranges touch, or do not rise"
        slots.extend(span)
    assert len(slots) == len(free)
    return slots


def listed(slots):
    return [slot for span in slots for slot in span]


@given(num_slots=st.integers(1, 37), steps=STEPS, after=st.none() | st.integers(0, 37))
def test_each_slot_is_free_or_out_once(num_slots, steps, after):
    free, out = FreeRanges(num_slots), set()
    for wanted, bits in steps:
        taken = listed(free.take(min(wanted, len(free)), after))
        assert len(taken) == len(set(taken)) == min(wanted, num_slots - len(out))
        assert out.isdisjoint(taken)
        out.update(taken)
        back = [slot for slot in sorted(out, reverse=True) if bits >> slot & 1]
        free.give(slots_at(*back))
        out.difference_update(back)
        assert sorted([*well_formed(free), *out]) == list(range(num_slots))
    free.give(slots_at(*out))
    assert free.ranges == (range(num_slots),)


@given(num_slots=st.integers(1, 37), bits=st.integers(0, 2**37 - 1), wanted=st.integers(1, 9))
def test_pieces_are_as_few_as_can_be(num_slots, bits, wanted):
    free = FreeRanges(num_slots)
    free.take(num_slots)
    free.give(slots_at(*(slot for slot in range(num_slots) if bits >> slot & 1)))
    wanted = min(wanted, len(free))
    if wanted == 0:
        return
    lengths = sorted(map(len, free.ranges), reverse=True)
    fewest = next(n for n in range(1, len(lengths) + 1) if sum(lengths[:n]) >= wanted)
    assert len(free.take(wanted)) == fewest


def test_first_fit():
    free = FreeRanges(20)
    free.take(20)
    free.give((range(1, 3), range(11, 14), range(5, 9)))
    assert free.take(3) == (range(5, 8),)
    assert free.take(2) == (range(1, 3),)


def test_goes_on_where_asked_if_all_of_it_fits_there():
    free = FreeRanges(20)
    free.take(12)
    free.give((range(6),))
    assert free.take(3, after=12) == (range(12, 15),)
    # 15..19 are five, so six come from elsewhere in one piece
    assert free.take(6, after=15) == (range(6),)


@pytest.mark.parametrize(
    "slots", [slots_at(3), (range(2, 4),), (range(3, 5),), slots_at(0)], ids=str
)
def test_giving_back_a_free_slot_is_caught(slots):
    free = FreeRanges(6)
    free.take(6)
    free.give(slots_at(0, 3))
    with pytest.raises(AssertionError, match="free already"):
        free.give(slots)


def test_no_slots_at_all():
    free = FreeRanges(0)
    assert free.ranges == ()
    assert free.take(0) == ()
    free.give(())
    assert len(free) == 0
