"""Whole texts into groups."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.integrations.llama_index.packing import packed

sizes = st.lists(st.integers(0, 12), max_size=20)


@given(sizes, st.integers(0, 20))
def test_every_place_once_in_order(sizes: list[int], limit: int):
    assert [at for group in packed(sizes, limit) for at in group] == list(range(len(sizes)))


@given(sizes, st.integers(0, 20))
def test_a_group_over_the_limit_is_one_that_is_so_on_its_own(sizes: list[int], limit: int):
    for group in packed(sizes, limit):
        assert len(group) == 1 or sum(sizes[at] for at in group) <= limit


@given(sizes, st.integers(0, 20))
def test_two_neighbours_do_not_fit_together(sizes: list[int], limit: int):
    """So there are as few as there can be: each group takes all that still fits."""
    groups = packed(sizes, limit)
    for group, following in pairwise(groups):
        assert sum(sizes[at] for at in group) + sizes[following[0]] > limit


def test_nothing():
    assert packed([], 5) == []
