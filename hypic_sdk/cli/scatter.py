"""`hypic bench scatter`: one cold request over several workers, and a cluster on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hypic_sdk.cli.options import ModelOption


def bench_scatter(
    model: ModelOption = None,
    workers: Annotated[
        list[int] | None, typer.Option("--workers", help="May be given again; 1, 2 and 4.", min=1)
    ] = None,
    runs: Annotated[int, typer.Option("--runs", help="Counted rounds.", min=1)] = 5,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda")] = "auto",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Then a cluster on paper, with the costs found.")
    ] = False,
    costs: Annotated[
        str | None, typer.Option("--costs", help="Simulate with these five times; measure nothing.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Draw the simulation as an SVG.")
    ] = None,
    json_lines: Annotated[
        Path | None, typer.Option("--json-lines", help="Append one JSON line per row here.")
    ] = None,
) -> None:
    """One cold request over several workers, and a cluster on paper."""
    from hypic_sdk.bench.scatter import run_scatter_bench, try_cost_model
    from hypic_sdk.bench.scatter_simulation import run_scatter_simulation
    from hypic_sdk.offline import find_model

    console, given = Console(), try_cost_model(costs)
    found = given or run_scatter_bench(
        console,
        model=find_model(model)[0],
        worker_counts=tuple(workers or (1, 2, 4)),
        num_runs=runs,
        json_lines=json_lines,
        device=device,
    )
    if simulate or given is not None:
        run_scatter_simulation(console, found, figure=figure)
