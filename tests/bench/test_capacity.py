"""More workers never hold less, and the first number that holds is the one that is told."""

from __future__ import annotations

import pytest
from rich.console import Console

from hypic_sdk.bench.capacity import Capacity, capacities, run_capacity
from hypic_sdk.bench.cluster_trace import TraceShape
from hypic_sdk.router.costs import CostModel

TRACE = TraceShape(num_requests=120, num_documents=60, per_request=4, rate_per_s=3.0)
COSTS = CostModel()


def found(ttft_ms: float, counts: tuple[int, ...] = (1, 2, 4, 8, 16)) -> list[Capacity]:
    return capacities(
        COSTS, TRACE, cache_tokens=50_000, ttft_ms=ttft_ms, share=0.9, worker_counts=counts
    )


def test_time_and_load_fall_with_more_workers() -> None:
    all_found = found(ttft_ms=1.0)
    assert [one.num_workers for one in all_found] == [1, 2, 4, 8, 16]
    times = [one.result.quantile_ms(0.9) for one in all_found]
    loads = [one.result.busy_share for one in all_found]
    assert times == sorted(times, reverse=True)
    assert loads == sorted(loads, reverse=True)
    assert not any(one.holds(1.0, 0.9) for one in all_found)


def test_the_search_ends_two_sizes_behind_the_first_that_holds() -> None:
    assert [one.num_workers for one in found(ttft_ms=1e9, counts=(4, 8, 16, 32, 64))] == [4, 8, 16]


@pytest.mark.parametrize(("ttft_ms", "is_enough"), [(1e7, True), (1.0, False)])
def test_what_is_needed_is_told(ttft_ms: float, is_enough: bool) -> None:
    console = Console(record=True, width=120)
    needed = run_capacity(console, COSTS, TRACE, cache_tokens=50_000, ttft_ms=ttft_ms, share=0.9)
    text = console.export_text()
    assert (needed is not None) is is_enough
    assert "not measured" in text
    assert ("more than" in text) is not is_enough
