"""Rows of the scatter bench are of real workers; lines through points; a cluster on paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hypic_sdk.bench.cluster_trace import TraceShape
from hypic_sdk.bench.scatter import RULES, Bench, documents, measure, try_cost_model
from hypic_sdk.bench.scatter_costs import Sample, fitted_costs
from hypic_sdk.bench.scatter_simulation import run_scatter_simulation, simulate
from hypic_sdk.config import EngineConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import HypicError
from hypic_sdk.router.costs import CostModel
from hypic_sdk.server.fleet import Fleet
from hypic_sdk.transport.process_settings import ProcessSettings

SMALL = ProcessSettings(str(reader_path()), EngineConfig(store=StoreConfig(budget_bytes=96 << 20)))


@given(
    costs=st.tuples(*[st.floats(0, 50)] * 4, st.floats(0.01, 5)),
    sizes=st.lists(st.integers(1, 5000), min_size=2, max_size=8, unique=True),
)
def test_costs_that_are_lines_are_found_again(
    costs: tuple[float, float, float, float, float], sizes: list[int]
) -> None:
    true = CostModel(*costs)
    samples = [
        Sample(n, true.cold(n), true.transfer(n), at_hand_ms=true.live(40), live_tokens=40)
        for n in sizes
    ]
    found = fitted_costs(samples)
    for name in CostModel.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-6, abs=1e-6)


def test_two_workers_give_the_tokens_of_one_and_take_turns_at_nothing() -> None:
    with Fleet(SMALL, 2) as fleet:
        fleet.wait_ready(120)
        bench = Bench(fleet)
        rows = list(measure(bench, (1, 2), 1, {"short": (200, 96, 96, 96)}))
        assert [(row.num_workers, row.rule) for row in rows] == [
            (1, "longest first"), *((2, rule) for rule in RULES)
        ]  # fmt: skip
        assert all(row.same_tokens for row in rows)
        assert rows[0].made_at_once.median == pytest.approx(1.0)
        assert rows[1].made_at_once.median > 1.1
        for row in rows:
            assert 0 < row.combine.median < row.total.median
        samples = list(bench.samples((96, 200)))
        assert all(one.cold_ms > 0 and one.at_hand_ms > 0 for one in samples)


def test_documents_of_a_request_are_no_two_the_same() -> None:
    parts = documents((96,) * 12)
    assert len({part.segment_id for part in parts}) == 12
    assert len({part.token_ids for part in parts}) == 12


def test_a_cluster_on_paper_is_told_by_rule_and_size(tmp_path: Path) -> None:
    trace = TraceShape(num_requests=40, num_documents=60, per_request=4)
    costs = CostModel()
    cases = simulate(costs, trace, (2, 16))
    assert [case.num_workers for case in cases] == [2] * 4 + [16] * 4
    alone = {case.num_workers: case for case in cases if case.name == "one worker each"}
    spread = {case.num_workers: case for case in cases if case.name == "longest first"}
    assert spread[16].result.quantile_ms(0.5) < alone[16].result.quantile_ms(0.5)
    console = Console(record=True, width=160)
    figure = tmp_path / "figure.svg"
    run_scatter_simulation(console, costs, trace=trace, figure=figure)
    assert "longest first" in figure.read_text(encoding="utf-8")
    text = console.export_text()
    assert "not measured" in text
    assert "commit" in text


@pytest.mark.parametrize("text", ["1,2,3", "a,b,c,d,e", "1,2,3,4,-5", "1,2,3,4,5,6"])
def test_costs_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(HypicError):
        try_cost_model(text)
