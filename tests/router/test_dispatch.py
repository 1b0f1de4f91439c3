"""Plans: complete, local where spreading does not pay, and never worse than one worker alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.prompt.segment import SegmentId
from hypic_sdk.router.assignment import WorkerId
from hypic_sdk.router.costs import CostModel
from hypic_sdk.router.dispatch import DispatchPlan, Segment, plan_dispatch

COSTS = CostModel(
    prefill_ms=2, prefill_ms_per_token=0.1, transfer_ms=1, transfer_ms_per_token=0.005,
    live_ms_per_token=0.1,
)  # fmt: skip


def worker(number: int) -> WorkerId:
    return WorkerId(f"w{number}")


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[Segment], dict[WorkerId, float]]:
    loads = draw(st.lists(st.floats(0, 5000), min_size=1, max_size=6))
    everybody = [worker(i) for i in range(len(loads) + 1)]  # one of them is not ready
    segments = [
        Segment(
            SegmentId(f"seg_{i}"),
            draw(st.integers(1, 4000)),
            frozenset(draw(st.sets(st.sampled_from(everybody), max_size=2))),
            draw(st.none() | st.sampled_from(everybody)),
        )
        for i in range(draw(st.integers(0, 8)))
    ]
    again = draw(st.lists(st.sampled_from(segments), max_size=3)) if segments else []
    return [*segments, *again], {worker(i): load for i, load in enumerate(loads)}


@given(request=requests(), live=st.integers(1, 2000), preferred=st.integers(0, 7))
def test_each_segment_is_there_or_comes_from_one_ready_worker(
    request: tuple[list[Segment], dict[WorkerId, float]], live: int, preferred: int
) -> None:
    segments, loads = request
    plan = plan_dispatch(segments, live, loads, COSTS, preferred=worker(preferred))
    made = [id_ for ids in plan.cold.values() for id_ in ids]
    assert plan.combine in loads
    assert {*plan.cold, *plan.hits.values()} <= set(loads)
    assert plan.combine not in plan.hits.values()
    assert len([*made, *plan.hits]) == len({*made, *plan.hits})
    for segment in segments:
        here = plan.combine in segment.holders or (
            segment.maker == plan.combine and not segment.holders & loads.keys()
        )
        named = segment.segment_id in plan.hits or segment.segment_id in made
        assert here != named
        if segment.segment_id in plan.hits:
            source = plan.hits[segment.segment_id]
            assert source in segment.holders or source == segment.maker


@given(request=requests(), live=st.integers(1, 2000))
def test_more_workers_never_make_a_plan_slower(
    request: tuple[list[Segment], dict[WorkerId, float]], live: int
) -> None:
    segments, loads = request
    plan = plan_dispatch(segments, live, loads, COSTS)
    for one, load in loads.items():
        alone = plan_dispatch(segments, live, {one: load}, COSTS)
        assert plan.predicted_ms <= alone.predicted_ms / (1 - 0.10) + 1e-6
        assert not alone.is_spread


@given(request=requests(), live=st.integers(1, 2000))
def test_a_request_whose_segments_all_lie_with_an_idle_worker_goes_there(
    request: tuple[list[Segment], dict[WorkerId, float]], live: int
) -> None:
    segments, loads = request
    home = worker(0)
    loads = {one: (0.0 if one == home else load + 1.0) for one, load in loads.items()}
    here = [replace(segment, holders=frozenset([home])) for segment in segments]
    plan = plan_dispatch(here, live, loads, COSTS)
    assert plan == DispatchPlan(home, {}, {}, COSTS.live(live))


@given(request=requests(), live=st.integers(1, 2000))
def test_a_plan_takes_what_its_workers_and_its_links_take(
    request: tuple[list[Segment], dict[WorkerId, float]], live: int
) -> None:
    segments, loads = request
    plan = plan_dispatch(segments, live, loads, COSTS)
    tokens = {segment.segment_id: segment.num_tokens for segment in segments}
    ends_ms = [loads[plan.combine]]
    arriving = list(plan.hits)
    for one, ids in plan.cold.items():
        made_ms = loads[one] + sum(COSTS.cold(tokens[id_]) for id_ in ids)
        assert [tokens[id_] for id_ in ids] == sorted((tokens[id_] for id_ in ids), reverse=True)
        if one == plan.combine:
            ends_ms.append(made_ms)
        else:
            ends_ms.append(made_ms + COSTS.transfer(tokens[ids[-1]]))
            arriving += ids
    linked_ms = sum(COSTS.transfer(tokens[id_]) for id_ in arriving)
    # links work while the one that answers is busy, at best
    least_ms = max(*ends_ms, linked_ms) + COSTS.live(live)
    most_ms = max(*ends_ms, loads[plan.combine] + linked_ms) + COSTS.live(live)
    assert least_ms - 1e-6 <= plan.predicted_ms <= most_ms + 1e-6
    assert plan.predicted_ms == pytest.approx(least_ms) or not plan.is_spread


def test_who_holds_everything_answers_though_many_are_less_busy() -> None:
    home = worker(11)
    loads = {worker(i): float(i) for i in range(12)}
    segments = [Segment(SegmentId(f"seg_{i}"), 3000, frozenset([home])) for i in range(6)]
    plan = plan_dispatch(segments, 10, loads, COSTS)
    assert plan.combine == home
    assert (plan.cold, plan.hits) == ({}, {})


def test_long_cold_documents_are_spread_and_short_ones_are_not() -> None:
    loads = {worker(i): 0.0 for i in range(4)}
    long = [Segment(SegmentId(f"seg_{i}"), 2400) for i in range(11)]
    plan = plan_dispatch(long, 300, loads, COSTS)
    alone = plan_dispatch(long, 300, {worker(0): 0.0}, COSTS)
    assert sorted(len(ids) for ids in plan.cold.values()) == [2, 3, 3, 3]
    assert alone.predicted_ms / plan.predicted_ms > 3.0
    short = [Segment(SegmentId(f"seg_{i}"), 20) for i in range(2)]
    assert not plan_dispatch(short, 300, loads, COSTS).is_spread


def test_the_session_stays_with_its_worker_among_equals() -> None:
    loads = {worker(i): 0.0 for i in range(4)}
    assert plan_dispatch([], 10, loads, COSTS, preferred=worker(2)).combine == worker(2)
    loads[worker(2)] = 5000.0
    assert plan_dispatch([], 10, loads, COSTS, preferred=worker(2)).combine == worker(0)


def test_of_a_thousand_workers_few_are_weighed() -> None:
    loads = {worker(i): float(i % 7) for i in range(1024)}
    segments = [Segment(SegmentId(f"seg_{i}"), 1000 + i) for i in range(12)]
    plan = plan_dispatch(segments, 64, loads, COSTS)
    assert len(plan.cold) == 12
