"""A cluster of 2 to 1,024 workers on paper, with measured costs: where it saturates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from hypic_sdk.bench.cluster_simulation import ClusterResult, ClusterShape, Simulation
from hypic_sdk.bench.cluster_trace import TraceShape, make_trace
from hypic_sdk.bench.report import circumstances
from hypic_sdk.bench.svg_figure import Point, scatter
from hypic_sdk.router.assignment import in_turn
from hypic_sdk.router.costs import CostModel

if TYPE_CHECKING:
    from rich.console import Console

WORKER_COUNTS = (2, 4, 8, 16, 64, 256, 1024)
LOAD = 0.5
"""Of what all workers could compute if nothing were ever found; the rate grows with them."""


@dataclass(frozen=True, slots=True)
class Case:
    """One cluster and what it came to."""

    name: str
    num_workers: int
    rate_per_s: float
    result: ClusterResult


def simulate(
    costs: CostModel, trace: TraceShape, worker_counts: Sequence[int] = WORKER_COUNTS
) -> list[Case]:
    """The same work a worker, over growing clusters, by each way of giving it out."""
    cold_ms = costs.cold(trace.median_tokens) * trace.per_request + costs.live(trace.live_tokens)
    cases = []
    for count in worker_counts:
        rate_per_s = LOAD * count * 1000.0 / max(cold_ms, 1e-6)
        scaled = replace(trace, rate_per_s=rate_per_s)
        shapes = {
            "longest first": ClusterShape(count),
            "in turn": ClusterShape(count, assign=in_turn),
            "one worker each": ClusterShape(count, spreads=False),
            "longest first, 1 in 8 slow": ClusterShape(count, straggler_share=0.125),
        }
        for name, shape in shapes.items():
            result = Simulation(shape, costs).run(make_trace(scaled))
            cases.append(Case(name, count, rate_per_s, result))
    return cases


def run_scatter_simulation(
    console: Console, costs: CostModel, *, trace: TraceShape | None = None, figure: Path | None
) -> list[Case]:
    """Simulate, print a table, and draw the figure if one is wanted."""
    cases = simulate(costs, trace or TraceShape())
    table = Table(
        "workers", "rule", "requests/s", "p50 ms", "p99 ms", "hit share", "busy", "spread",
        "plan us", title="a cluster on paper (not measured)",
    )  # fmt: skip
    for case in cases:
        result = case.result
        table.add_row(
            str(case.num_workers), case.name, f"{case.rate_per_s:.1f}",
            f"{result.quantile_ms(0.5):.0f}", f"{result.quantile_ms(0.99):.0f}",
            f"{result.hit_share:.2f}", f"{result.busy_share:.2f}", f"{result.spread_share:.2f}",
            f"{result.plan_us:.0f}",
        )  # fmt: skip
    console.print(table)
    console.print(f"costs: {costs}")
    console.print(f"trace: {trace or TraceShape()}")
    console.print(str(circumstances("cpu")))
    if figure is not None:
        draw(cases, figure)
        console.print(f"figure: {figure}")
    return cases


def draw(cases: Sequence[Case], figure: Path) -> None:
    """Time to the first token over the number of workers, from p50 up to p99, as an SVG."""
    points = [
        Point(
            f"{case.num_workers}, {case.name}",
            math.log2(case.num_workers),
            case.result.quantile_ms(0.5),
            case.result.quantile_ms(0.5),
            case.result.quantile_ms(0.99),
        )
        for case in cases
        if case.name in ("longest first", "one worker each")
    ]
    figure.write_text(
        scatter(points, "a cluster on paper", "log2 of workers", "ms to first token, p50 to p99"),
        encoding="utf-8",
    )
