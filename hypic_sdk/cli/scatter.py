"""`hypic bench scatter`: one cold request over several workers, and a cluster on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from hypic_sdk.bench.destination import check_file, claim_file, claimed
from hypic_sdk.cli.bench_options import (
    MOST_DOCUMENTS,
    MOST_RUNS,
    MOST_TOKENS,
    OverwriteOption,
    RowSecondsOption,
    number,
)
from hypic_sdk.cli.options import DeviceOption, JsonLinesOption, ModelOption, written_path
from hypic_sdk.errors import ConfigError

CountsOption = Annotated[
    list[int] | None,
    number("--workers", least=1, most=64, help="May be given again; 1, 2 and 4."),
]
RunsOption = Annotated[int, number("--runs", least=1, most=MOST_RUNS, help="Counted rounds.")]
SimulateOption = Annotated[
    bool, typer.Option("--simulate", help="Then a cluster on paper, with the costs found.")
]
CostsOption = Annotated[
    str | None, typer.Option("--costs", help="Simulate with these five times; measure nothing.")
]
FigureOption = Annotated[
    Path | None, written_path("--figure", help="Draw the simulation as an SVG.")
]
ShapesOption = Annotated[
    str | None,
    typer.Option("--model-shapes", help="Instead: two workers of this shape, random weights."),
]
OutOption = Annotated[
    Path | None, written_path("--out", help="With shapes: write scatter.json into this folder.")
]
Rate = Annotated[float, number("--rate", least=0.001, most=1e6, help="Requests a second.")]
Documents = Annotated[
    int, number("--documents", least=1, most=MOST_DOCUMENTS, help="Of the corpus.")
]
Tokens = Annotated[
    int, number("--tokens", least=16, most=MOST_TOKENS, help="Of a document, median.")
]
PerRequest = Annotated[int, number("--per-request", least=1, most=MOST_RUNS, help="Documents.")]
Zipf = Annotated[float, number("--zipf", least=0.0, most=4.0, help="How uneven; 0 is even.")]
CacheTokens = Annotated[
    int, number("--cache-tokens", least=1, most=1e12, help="Of documents, in one worker.")
]
Ttft = Annotated[float, number("--ttft-ms", least=1.0, most=3.6e6, help="To be kept.")]
Share = Annotated[float, number("--share", least=0.01, most=0.999, help="Of requests.")]


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
    overwrite: OverwriteOption = False,
    seconds: RowSecondsOption = 240.0,
) -> None:
    """One cold request over several workers, and a cluster on paper."""
    if shapes is not None:
        with claimed(out, "scatter", overwrite=overwrite):
            _over_shapes(shapes, device, out, seconds)
    if out is not None:
        raise ConfigError("--out is for --model-shapes; rows of this go into --json-lines")
    check_file(json_lines)
    claim_file(figure, overwrite=overwrite)
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
    rate: Rate,
    documents: Documents = 2000,
    tokens: Tokens = 800,
    per_request: PerRequest = 12,
    zipf: Zipf = 1.0,
    cache_tokens: CacheTokens = 200_000,
    ttft_ms: Ttft = 1000.0,
    share: Share = 0.9,
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


def _over_shapes(shapes: str, device: str, out: Path | None, seconds: float) -> NoReturn:
    """Two workers of a known shape, and the exit."""
    from hypic_sdk.bench.scatter_shapes import run_scatter_shapes

    holds = run_scatter_shapes(Console(), shape=shapes, device=device, folder=out, limit_s=seconds)
    raise typer.Exit(0 if holds else 1)
