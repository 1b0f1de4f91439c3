"""How many workers a corpus and a rate need, on paper: the router's plans over queues of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from hypic_sdk.bench.cluster_simulation import ClusterResult, ClusterShape, Simulation
from hypic_sdk.bench.cluster_trace import TraceShape, make_trace
from hypic_sdk.bench.report import circumstances
from hypic_sdk.router.costs import CostModel

if TYPE_CHECKING:
    from rich.console import Console

WORKER_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
FULL = 0.95  # of the workers' time: beyond it a queue has no end


@dataclass(frozen=True, slots=True)
class Capacity:
    """What so many workers come to."""

    num_workers: int
    result: ClusterResult

    def holds(self, ttft_ms: float, share: float) -> bool:
        """Whether this share of the requests has its first token in time."""
        return self.result.quantile_ms(share) <= ttft_ms and self.result.busy_share < FULL


def capacities(
    costs: CostModel,
    trace: TraceShape,
    *,
    cache_tokens: int,
    ttft_ms: float,
    share: float,
    worker_counts: Sequence[int] = WORKER_COUNTS,
) -> list[Capacity]:
    """The same trace over growing clusters, up to two sizes beyond the first that holds.

    Caches are empty at first, and what fills them counts: a cluster that has run for long is
    better.
    """
    found: list[Capacity] = []
    for count in worker_counts:
        shape = ClusterShape(count, cache_tokens=cache_tokens)
        found.append(Capacity(count, Simulation(shape, costs).run(make_trace(trace))))
        if sum(one.holds(ttft_ms, share) for one in found) > 2:
            break
    return found


def run_capacity(
    console: Console,
    costs: CostModel,
    trace: TraceShape,
    *,
    cache_tokens: int,
    ttft_ms: float,
    share: float,
) -> int | None:
    """Simulate, print a table, and return how many workers are needed; none: more than tried."""
    found = capacities(costs, trace, cache_tokens=cache_tokens, ttft_ms=ttft_ms, share=share)
    table = Table(
        "workers", "p50 ms", f"p{100 * share:g} ms", "hit share", "busy", "holds",
        title=f"{trace.rate_per_s:g} requests/s on paper (not measured)",
    )  # fmt: skip
    for one in found:
        result = one.result
        table.add_row(
            str(one.num_workers), f"{result.quantile_ms(0.5):.0f}",
            f"{result.quantile_ms(share):.0f}", f"{result.hit_share:.2f}",
            f"{result.busy_share:.2f}", "yes" if one.holds(ttft_ms, share) else "no",
        )  # fmt: skip
    console.print(table)
    needed = next((one.num_workers for one in found if one.holds(ttft_ms, share)), None)
    said = f"{needed} workers" if needed else f"more than {found[-1].num_workers} workers"
    console.print(f"{said} for {100 * share:g} % within {ttft_ms:g} ms")
    console.print(f"costs: {costs}; a worker holds {cache_tokens} tokens of documents")
    console.print(f"trace: {trace}")
    console.print(str(circumstances("cpu")))
    return needed
