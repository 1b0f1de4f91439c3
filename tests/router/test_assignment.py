"""Laws of assignments: nothing lost, nothing twice, and the bounds of longest first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.router.assignment import Assign, WorkerId, in_turn, longest_first

RULES = (longest_first, in_turn)


def costs_of(sizes: Sequence[float]) -> dict[int, float]:
    return dict(enumerate(sizes))


def workers(count: int, load: float = 0.0) -> dict[WorkerId, float]:
    return {WorkerId(f"w{i}"): load for i in range(count)}


def best_makespan(sizes: Sequence[float], num_workers: int) -> float:
    """The optimum, by search: workers of equal load are tried once, hopeless ways are cut."""
    order = sorted(sizes, reverse=True)
    best = float("inf")

    def search(place: int, loads: tuple[float, ...]) -> None:
        nonlocal best
        if max(loads) >= best:
            return
        if place == len(order):
            best = max(loads)
            return
        for load in sorted(set(loads)):
            worker = loads.index(load)
            search(place + 1, (*loads[:worker], load + order[place], *loads[worker + 1 :]))

    search(0, (0.0,) * num_workers)
    return best


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@given(
    sizes=st.lists(st.integers(1, 4096), max_size=30),
    loads=st.lists(st.integers(0, 10_000), min_size=1, max_size=9),
)
def test_every_key_has_one_worker_and_loads_add_up(
    rule: Assign[int], sizes: list[int], loads: list[int]
) -> None:
    before = {WorkerId(f"w{i}"): float(load) for i, load in enumerate(loads)}
    given_out = rule(costs_of(sizes), before)
    assert sorted(key for keys in given_out.work.values() for key in keys) == list(
        range(len(sizes))
    )
    assert all(given_out.work.values())
    assert given_out.work.keys() == given_out.loads.keys()
    for worker, keys in given_out.work.items():
        assert given_out.loads[worker] == before[worker] + sum(sizes[key] for key in keys)
    assert given_out.makespan == max(given_out.loads.values(), default=0)


@given(sizes=st.lists(st.integers(1, 4096), min_size=1, max_size=40), m=st.integers(1, 16))
def test_longest_first_is_within_the_list_bound(sizes: list[int], m: int) -> None:
    makespan = longest_first(costs_of(sizes), workers(m)).makespan
    assert makespan <= sum(sizes) / m + (1 - 1 / m) * max(sizes) + 1e-6


@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=10), m=st.integers(2, 4))
def test_longest_first_is_within_four_thirds_of_the_best(sizes: list[int], m: int) -> None:
    makespan = longest_first(costs_of(sizes), workers(m)).makespan
    assert makespan <= (4 / 3 - 1 / (3 * m)) * best_makespan(sizes, m) + 1e-6


def test_the_bound_is_reached() -> None:
    # Graham's own list for two workers: 7/6 of the best
    assert longest_first(costs_of([3, 3, 2, 2, 2]), workers(2)).makespan == 7
    assert best_makespan([3, 3, 2, 2, 2], 2) == 6


@given(
    sizes=st.lists(st.integers(1, 4096), min_size=1, max_size=30),
    loads=st.lists(st.integers(0, 10_000), min_size=1, max_size=9),
)
def test_longest_first_begins_with_the_longest_and_never_with_a_busier_worker(
    sizes: list[int], loads: list[int]
) -> None:
    before = {WorkerId(f"w{i}"): float(load) for i, load in enumerate(loads)}
    given_out = longest_first(costs_of(sizes), before)
    for keys in given_out.work.values():
        assert [sizes[key] for key in keys] == sorted((sizes[k] for k in keys), reverse=True)
    longest = max(range(len(sizes)), key=lambda key: sizes[key])
    holder = next(w for w, keys in given_out.work.items() if longest in keys)
    assert before[holder] == min(before.values())


def test_in_turn_is_worse_where_sizes_differ() -> None:
    sizes = [100, 1, 100, 1]
    assert in_turn(costs_of(sizes), workers(2)).makespan == 200
    assert longest_first(costs_of(sizes), workers(2)).makespan == 101
