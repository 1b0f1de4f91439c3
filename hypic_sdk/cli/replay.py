"""`hypic bench replay`: the rate of a made-up RAG trace that a real server bears, arm by arm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hypic_sdk.cli.options import (
    DEFAULT_PAIR,
    SERVER_CAPTURE_AHEAD_S,
    CaptureAheadOption,
    DeviceOption,
    PairOption,
)

Folder = Annotated[Path | None, typer.Option("--model", help="A checkpoint folder.")]
Shapes = Annotated[str | None, typer.Option(help="Random weights: qwen3.5-35b-a3b, tiny-8k.")]
Url = Annotated[str | None, typer.Option(help="A server that runs already, the only arm then.")]
Modes = Annotated[list[str] | None, typer.Option("--mode", help="An arm; may be given again.")]
Spread = Annotated[float, typer.Option(help="Standard deviation of the log of a length.", min=0.0)]
Burst = Annotated[int, typer.Option(help="Requests of a burst, on average.", min=1)]
Limit = Annotated[float, typer.Option(help="Of the median time to the first token.")]
Seconds = Annotated[float, typer.Option(help="Of one replay.", min=1.0)]
Rate = Annotated[
    float | None,
    typer.Option(
        help="The first that is tried, requests a second; none: 0.75 of the saturated.",
        min=0.001,
    ),
]
Fill = Annotated[
    float, typer.Option("--fill-s", help="Of asking before anything is counted.", min=0.0)
]
Total = Annotated[
    float | None,
    typer.Option(
        "--total-s",
        help="Of the whole run, an equal share for each arm; what does not fit is left out.",
        min=1.0,
    ),
]
Split = Annotated[
    int | None,
    typer.Option(
        help="Of a segment, by which the budget is split into states and keys; "
        "none: --median-tokens.",
        min=1,
    ),
]
Out = Annotated[Path | None, typer.Option(help="Write replay.json into this folder.")]
Budget = Annotated[float, typer.Option("--budget-gib", help="Of the pools.", min=0.001)]
Count = Annotated[int, typer.Option(min=1)]
Tokens = Annotated[int, typer.Option(help="Of a document.", min=16)]


def bench_replay(
    model: Folder = None, shapes: Shapes = None, url: Url = None, modes: Modes = None,
    documents: Count = 2000, median_tokens: Tokens = 840, spread: Spread = 0.6,
    per_request: Count = 12, zipf: Annotated[float, typer.Option(min=0.0)] = 1.0,
    burst: Burst = 4, max_tokens: Count = 64, limit_s: Limit = 1.0, seconds: Seconds = 20.0,
    rate: Rate = None, callers: Count = 32, fill_s: Fill = 20.0, total_s: Total = None,
    budget_gib: Budget = 1.0, expected_segment_tokens: Split = None,
    pair: PairOption = DEFAULT_PAIR, capture_ahead: CaptureAheadOption = SERVER_CAPTURE_AHEAD_S,
    device: DeviceOption = "auto", seed: int = 0, out: Out = None,
) -> None:  # fmt: skip
    """The rate of a made-up RAG trace that a real server bears, arm by arm."""
    from hypic_sdk.bench.cluster_trace import TraceShape
    from hypic_sdk.bench.replay import DEFAULT_ARMS, run_replay_bench, served
    from hypic_sdk.bench.replay_caller import ReplayPlan
    from hypic_sdk.config import StoreConfig

    trace = TraceShape(
        num_documents=documents, zipf=zipf, per_request=per_request, median_tokens=median_tokens,
        spread=spread, burst=burst, seed=seed,
    )  # fmt: skip
    split = expected_segment_tokens or median_tokens
    store = StoreConfig(round(budget_gib * 2**30), split, pair, segments_per_request=per_request)
    results = run_replay_bench(
        Console(),
        plan=ReplayPlan(trace, max_tokens, limit_s, seconds, rate, callers, fill_s, total_s),
        modes=modes or DEFAULT_ARMS,
        server=served(model, shapes, device, store, capture_ahead),
        url=url,
        folder=out,
    )
    raise typer.Exit(0 if all(one.best is not None for one in results) else 1)
