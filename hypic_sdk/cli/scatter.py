"""`hypic bench scatter`: one cold request over several workers, and a cluster on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hypic_sdk.cli.options import DeviceOption, JsonLinesOption, ModelOption

CountsOption = Annotated[
    list[int] | None, typer.Option("--workers", help="May be given again; 1, 2 and 4.", min=1)
]
RunsOption = Annotated[int, typer.Option("--runs", help="Counted rounds.", min=1)]
SimulateOption = Annotated[
    bool, typer.Option("--simulate", help="Then a cluster on paper, with the costs found.")
]
CostsOption = Annotated[
    str | None, typer.Option("--costs", help="Simulate with these five times; measure nothing.")
]
FigureOption = Annotated[
    Path | None, typer.Option("--figure", help="Draw the simulation as an SVG.")
]
ShapesOption = Annotated[
    str | None,
    typer.Option("--model-shapes", help="Instead: two workers of this shape, random weights."),
]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="With shapes: write scatter.json into this folder.")
]
SecondsOption = Annotated[
    float, typer.Option("--seconds", help="With shapes: no row begins later than this.")
]


def bench_scatter(
    model: ModelOption = None,
    workers: CountsOption = None,
    runs: RunsOption = 5,
    device: DeviceOption = "auto",
    simulate: SimulateOption = False,
    costs: CostsOption = None,
    figure: FigureOption = None,
    json_lines: JsonLinesOption = None,
    shapes: ShapesOption = None,
    out: OutOption = None,
    seconds: SecondsOption = 240.0,
) -> None:
    """One cold request over several workers, and a cluster on paper."""
    if shapes is not None:
        _over_shapes(shapes, device, out, seconds)
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


def bench_capacity(
    costs: Annotated[str, typer.Option("--costs", help="The five times of `bench scatter`.")],
    rate: Annotated[float, typer.Option("--rate", help="Requests a second.", min=0.001)],
    documents: Annotated[int, typer.Option("--documents", help="Of the corpus.", min=1)] = 2000,
    tokens: Annotated[int, typer.Option("--tokens", help="Of a document, median.", min=16)] = 800,
    per_request: Annotated[int, typer.Option("--per-request", help="Documents.", min=1)] = 12,
    zipf: Annotated[float, typer.Option("--zipf", help="How uneven; 0 is even.", min=0.0)] = 1.0,
    cache_tokens: Annotated[
        int, typer.Option("--cache-tokens", help="Of documents, in one worker.", min=1)
    ] = 200_000,
    ttft_ms: Annotated[float, typer.Option("--ttft-ms", help="To be kept.", min=1.0)] = 1000.0,
    share: Annotated[float, typer.Option("--share", help="Of requests.", min=0.01, max=0.999)] = (
        0.9
    ),
) -> None:
    """How many workers a corpus and a rate need, on paper."""
    from hypic_sdk.bench.capacity import run_capacity
    from hypic_sdk.bench.cluster_trace import TraceShape
    from hypic_sdk.bench.scatter import try_cost_model

    trace = TraceShape(
        rate_per_s=rate, num_documents=documents, zipf=zipf, per_request=per_request,
        median_tokens=tokens,
    )  # fmt: skip
    found = try_cost_model(costs)
    assert found is not None, "there is a text"
    needed = run_capacity(
        Console(), found, trace, cache_tokens=cache_tokens, ttft_ms=ttft_ms, share=share
    )
    raise typer.Exit(0 if needed else 1)


def _over_shapes(shapes: str, device: str, out: Path | None, seconds: float) -> None:
    """Two workers of a known shape, and the exit."""
    from hypic_sdk.bench.scatter_shapes import run_scatter_shapes

    holds = run_scatter_shapes(Console(), shape=shapes, device=device, folder=out, limit_s=seconds)
    raise typer.Exit(0 if holds else 1)
