"""Ranges that a device counts through give, token for token, what was to be placed."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.engine.gap_placement import RANGE_FIELDS, GapSpan, placement_of, ranges_of_gaps
from hypic_sdk.store.slot_ranges import ranges_of

runs = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=5)


def slots_of(spans: list[tuple[int, int]], count: int) -> torch.Tensor:
    """So many slots in ranges of these starts and lengths, over and over."""
    slots = [slot for start, length in spans for slot in range(start, start + length)]
    return torch.tensor((slots * count)[:count])


@given(
    st.lists(st.tuples(runs, runs, st.integers(0, 99), st.integers(1, 30)), min_size=1, max_size=4)
)
def test_every_token_goes_where_it_is_to_go(gaps):
    sources, targets = ([slots_of(gap[side], gap[3]) for gap in gaps] for side in (0, 1))
    spans = [
        GapSpan(ranges_of(source), ranges_of(target), first)
        for source, target, (*_, first, _) in zip(sources, targets, gaps, strict=True)
    ]
    num_tokens = sum(gap[3] for gap in gaps)
    placement = placement_of(torch.from_numpy(ranges_of_gaps(spans)), num_tokens)
    assert torch.equal(placement.source_slots, torch.cat(sources))
    assert torch.equal(placement.target_slots, torch.cat(targets))
    turns = [torch.arange(first, first + count) for *_, first, count in gaps]
    assert torch.equal(placement.positions, torch.cat(turns))


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 4000))
def test_what_is_a_range_goes_as_four_numbers(source, target, count):
    sources, targets = (range(source, source + count),), (range(target, target + count),)
    ranges = ranges_of_gaps([GapSpan(sources, targets, 7)])
    assert ranges.tolist() == [source, target, 7, count]
    assert len(ranges) == RANGE_FIELDS
