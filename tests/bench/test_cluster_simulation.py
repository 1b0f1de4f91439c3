"""The simulated cluster: laws that hold whatever the trace."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.bench.cluster_simulation import ClusterShape, Simulation
from hypic_sdk.bench.cluster_trace import Arrival, TraceShape, make_trace
from hypic_sdk.prompt.segment import SegmentId
from hypic_sdk.router.costs import CostModel

COSTS = CostModel(
    prefill_ms=2, prefill_ms_per_token=0.02, transfer_ms=1, transfer_ms_per_token=0.001,
    live_ms_per_token=0.1,
)  # fmt: skip
TRACES = st.builds(
    TraceShape,
    num_requests=st.integers(1, 60),
    rate_per_s=st.sampled_from([0.1, 4.0, 100.0]),
    burst=st.integers(1, 5),
    num_documents=st.integers(1, 40),
    per_request=st.integers(1, 6),
    seed=st.integers(0, 5),
)
CLUSTERS = st.builds(
    ClusterShape,
    num_workers=st.integers(1, 6),
    cache_tokens=st.sampled_from([2000, 10**9]),
    straggler_share=st.sampled_from([0.0, 0.5]),
    spreads=st.booleans(),
)


@settings(max_examples=50)
@given(trace=TRACES, shape=CLUSTERS)
def test_a_trace_comes_out_whole(trace: TraceShape, shape: ClusterShape) -> None:
    arrivals = list(make_trace(trace))
    result = Simulation(shape, COSTS).run(arrivals)
    assert result.num_requests == len(arrivals) == trace.num_requests
    assert min(result.ttft_ms) >= COSTS.live(trace.live_tokens) - 1e-6
    assert 0.0 <= result.hit_share <= 1.0
    assert 0.0 <= result.busy_share <= 1.0 + 1e-9
    assert result.spread_share == 0.0 or (shape.spreads and shape.num_workers > 1)
    assert [a.at_ms for a in arrivals] == sorted(a.at_ms for a in arrivals)
    again = Simulation(shape, COSTS).run(make_trace(trace))
    assert replace(again, plan_us=result.plan_us) == result


@given(lengths=st.lists(st.integers(1, 4000), max_size=8), workers=st.integers(1, 5))
def test_one_request_takes_what_its_plan_predicts_on_one_worker(
    lengths: list[int], workers: int
) -> None:
    documents = tuple((SegmentId(f"seg_{i}"), n) for i, n in enumerate(lengths))
    alone = Simulation(ClusterShape(num_workers=workers, spreads=False), COSTS)
    result = alone.run([Arrival(0.0, documents, 100)])
    expected = sum(COSTS.cold(n) for n in lengths) + COSTS.live(100)
    assert result.ttft_ms == (pytest.approx(expected),)
    spread = Simulation(ClusterShape(num_workers=workers), COSTS).run(
        [Arrival(0.0, documents, 100)]
    )
    assert spread.ttft_ms[0] <= expected + 1e-6
    assert spread.sent_tokens == 0 or spread.spread_share == 1.0


def test_the_second_time_everything_is_a_hit() -> None:
    documents = tuple((SegmentId(f"seg_{i}"), 1000) for i in range(6))
    twice = [Arrival(0.0, documents, 100), Arrival(60_000.0, documents[::-1], 100)]
    result = Simulation(ClusterShape(num_workers=3, cache_tokens=10**9), COSTS).run(twice)
    assert result.ttft_ms[0] == pytest.approx(COSTS.live(100))
    assert result.hit_share == 0.5


def test_a_cache_of_one_document_keeps_the_last() -> None:
    order = ["seg_0", "seg_1", "seg_1", "seg_0"]
    arrivals = [
        Arrival(60_000.0 * i, ((SegmentId(id_), 1000),), 100) for i, id_ in enumerate(order)
    ]
    result = Simulation(ClusterShape(num_workers=1, cache_tokens=1000), COSTS).run(arrivals)
    assert result.hit_share == 0.25
