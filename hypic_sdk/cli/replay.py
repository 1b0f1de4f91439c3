"""`hypic bench replay`: the rate of a made-up RAG trace that a real server bears, arm by arm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hypic_sdk.bench.destination import claimed
from hypic_sdk.cli.bench_options import (
    MOST_DOCUMENTS,
    MOST_RUNS,
    MOST_TOKENS,
    WEEK_S,
    OverwriteOption,
    number,
)
from hypic_sdk.cli.options import (
    DEFAULT_PAIR,
    SERVER_CAPTURE_AHEAD_S,
    CaptureAheadOption,
    DeviceOption,
    PairOption,
    written_path,
)

MOST_GIB = 1_000_000.0
MOST_RATE = 1_000_000.0  # a second
MOST_SEED = 2**63 - 1
# above these, lengths and popularity are so uneven that one document is all there is
MOST_SPREAD, MOST_ZIPF = 3.0, 4.0

Folder = Annotated[
    str | None,
    typer.Option("--model", help="Checkpoint folder or hub id; none is the model in the package."),
]
SHAPES_HELP = (
    "Random weights: qwen3.5-35b-a3b, or tiny-8k to see that it works; tiny has fewer words than "
    "the tokenizer and does not run here."
)
Shapes = Annotated[str | None, typer.Option(help=SHAPES_HELP)]
Url = Annotated[str | None, typer.Option(help="A server that runs already, the only arm then.")]
Modes = Annotated[list[str] | None, typer.Option("--mode", help="An arm; may be given again.")]
Spread = Annotated[
    float,
    number(least=0.0, most=MOST_SPREAD, help="Standard deviation of the log of a length."),
]
Zipf = Annotated[float, number(least=0.0, most=MOST_ZIPF, help="How uneven; 0 is even.")]
Burst = Annotated[int, number(least=1, most=MOST_RUNS, help="Requests of a burst, on average.")]
Limit = Annotated[
    float, number(least=0.001, most=3600.0, help="Of the median time to the first token.")
]
Seconds = Annotated[float, number(least=1.0, most=WEEK_S, help="Of one replay.")]
RATE_HELP = "The first that is tried, requests a second; none: 0.75 of the saturated."
Rate = Annotated[float | None, number(least=0.001, most=MOST_RATE, help=RATE_HELP)]
Fill = Annotated[
    float, number("--fill-s", least=0.0, most=WEEK_S, help="Of asking before anything is counted.")
]
TOTAL_HELP = "Of the whole run, an equal share for each arm; what does not fit is left out."
Total = Annotated[float | None, number("--total-s", least=1.0, most=WEEK_S, help=TOTAL_HELP)]
SPLIT_HELP = (
    "Of a segment, by which the budget is split into states and keys; none: --median-tokens."
)
Split = Annotated[int | None, number(least=1, most=MOST_TOKENS, help=SPLIT_HELP)]
Out = Annotated[Path | None, written_path("--out", help="Write replay.json into this folder.")]
Budget = Annotated[float, number("--budget-gib", least=0.001, most=MOST_GIB, help="Of the pools.")]
Documents = Annotated[int, number(least=1, most=MOST_DOCUMENTS)]
Count = Annotated[int, number(least=1, most=MOST_RUNS)]
Reply = Annotated[int, number(least=1, most=MOST_TOKENS)]
Tokens = Annotated[int, number(least=16, most=MOST_TOKENS, help="Of a document.")]
Seed = Annotated[int, number(least=-MOST_SEED, most=MOST_SEED)]


def bench_replay(
    model: Folder = None, shapes: Shapes = None, url: Url = None, modes: Modes = None,
    documents: Documents = 2000, median_tokens: Tokens = 840, spread: Spread = 0.6,
    per_request: Count = 12, zipf: Zipf = 1.0,
    burst: Burst = 4, max_tokens: Reply = 64, limit_s: Limit = 1.0, seconds: Seconds = 20.0,
    rate: Rate = None, callers: Count = 32, fill_s: Fill = 20.0, total_s: Total = None,
    budget_gib: Budget = 1.0, expected_segment_tokens: Split = None,
    pair: PairOption = DEFAULT_PAIR, capture_ahead: CaptureAheadOption = SERVER_CAPTURE_AHEAD_S,
    device: DeviceOption = "auto", seed: Seed = 0, out: Out = None,
    overwrite: OverwriteOption = False,
) -> None:  # fmt: skip
    """The rate of a made-up RAG trace that a real server bears, arm by arm."""
    with claimed(out, "replay", overwrite=overwrite):
        from hypic_sdk.bench.cluster_trace import TraceShape
        from hypic_sdk.bench.replay import DEFAULT_ARMS, run_replay_bench, served
        from hypic_sdk.bench.replay_caller import ReplayPlan
        from hypic_sdk.config import StoreConfig

        trace = TraceShape(
            num_documents=documents, zipf=zipf, per_request=per_request,
            median_tokens=median_tokens, spread=spread, burst=burst, seed=seed,
        )  # fmt: skip
        split, budget_bytes = expected_segment_tokens or median_tokens, round(budget_gib * 2**30)
        store = StoreConfig(budget_bytes, split, pair, segments_per_request=per_request)
        results = run_replay_bench(
            Console(),
            plan=ReplayPlan(trace, max_tokens, limit_s, seconds, rate, callers, fill_s, total_s),
            modes=modes or DEFAULT_ARMS,
            server=served(model, shapes, device, store, capture_ahead),
            url=url,
            folder=out,
        )
    raise typer.Exit(0 if all(one.best is not None for one in results) else 1)
