"""The commands and their flags; what a command does is in its own module."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hypic_sdk.bench.destination import check_file
from hypic_sdk.cli.bench_options import MOST_DOCUMENTS, MOST_RUNS, number
from hypic_sdk.cli.fidelity import (
    bench_choices,
    bench_divergence,
    bench_fidelity,
    bench_modes,
    bench_sweep,
)
from hypic_sdk.cli.generate_app import generate
from hypic_sdk.cli.options import (
    DEFAULT_BUDGET_MIB,
    DEFAULT_MIN_TOKENS,
    DEFAULT_PAIR,
    DEFAULT_SEAM,
    DEFAULT_SEGMENT_TOKENS,
    DEFAULT_SEGMENTS_PER_REQUEST,
    DEFAULT_SHADOW_TOKENS,
    SERVER_CAPTURE_AHEAD_S,
    BudgetOption,
    CaptureAheadOption,
    GateOption,
    JsonLinesOption,
    KeyOption,
    KeysOption,
    MinTokensOption,
    ModelNameOption,
    ModelOption,
    ModeOption,
    OverlapOption,
    PairOption,
    PortOption,
    ScriptOption,
    SeamOption,
    SegmentsFileOption,
    SegmentsPerRequestOption,
    SegmentTokensOption,
    ShadowLimitOption,
    ShadowOption,
    ShadowTokensOption,
    UrlOption,
    WorkerKeyOption,
    WorkersOption,
    engine_config,
    of_server,
    with_shadow,
    with_split,
)
from hypic_sdk.cli.pairs import bench_pairs
from hypic_sdk.cli.replay import bench_replay
from hypic_sdk.cli.scatter import bench_capacity, bench_scatter
from hypic_sdk.cli.segments_app import segments_app
from hypic_sdk.cli.serving import bench_experiments, bench_figures, bench_kernels, bench_serving
from hypic_sdk.cli.worker import worker, worker_key
from hypic_sdk.config import DEFAULT_MODE
from hypic_sdk.errors import ConfigError, HypicError, ModelFileError, RequestError
from hypic_sdk.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Answers from documents that were cached once, wherever they stand in a prompt.",
)
bench_app = typer.Typer(no_args_is_help=True, help="Measurements on this machine.")
app.add_typer(bench_app, name="bench")
bench_app.command("fidelity")(bench_fidelity)
bench_app.command("modes")(bench_modes)
bench_app.command("divergence")(bench_divergence)
bench_app.command("sweep")(bench_sweep)
bench_app.command("choices")(bench_choices)
bench_app.command("pairs")(bench_pairs)
bench_app.command("replay")(bench_replay)
bench_app.command("kernels")(bench_kernels)
bench_app.command("serving")(bench_serving)
bench_app.command("experiments")(bench_experiments)
bench_app.command("figures")(bench_figures)
bench_app.command("scatter")(bench_scatter)
bench_app.command("capacity")(bench_capacity)
app.add_typer(segments_app, name="segments")

ArmRunsOption = Annotated[
    int, number("--runs", least=1, most=MOST_RUNS, help="Counted runs of each arm.")
]
QUESTION_HELP = "Ask this, and no further questions; may be given again."


def show_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        Console().print(__version__)
        raise typer.Exit


@app.callback()
def common(
    verbose: Annotated[bool, typer.Option("--verbose", help="Log decisions to stderr.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Flags that stand before every command."""
    del version  # its callback has acted
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )


@app.command()
def demo(
    question: Annotated[list[str] | None, typer.Option("--ask", help=QUESTION_HELP)] = None,
    interactive: Annotated[
        bool | None, typer.Option("--interactive/--no-input", help="Go on with your own questions.")
    ] = None,
) -> None:
    """Documents of an invented town, cached once, asked about in several orders."""
    from hypic_sdk.cli.demo import run_demo

    run_demo(Console(markup=False), questions=tuple(question or ()), interactive=interactive)


app.command()(generate)
app.command()(worker)
app.command("worker-key")(worker_key)


@app.command()
def serve(
    model: ModelOption = None,
    host: Annotated[str, typer.Option("--host")] = "127.0.0.1",
    port: PortOption = 30_000,
    model_name: ModelNameOption = None,
    keys: KeysOption = None,
    segments_file: SegmentsFileOption = None,
    script: ScriptOption = None,
    workers: WorkersOption = 1,
    gate: GateOption = None,
    worker_key: WorkerKeyOption = None,
    mode: ModeOption = DEFAULT_MODE,
    seam: SeamOption = DEFAULT_SEAM,
    min_segment_tokens: MinTokensOption = DEFAULT_MIN_TOKENS,
    cache_mib: BudgetOption = DEFAULT_BUDGET_MIB,
    pair: PairOption = DEFAULT_PAIR,
    segment_tokens: SegmentTokensOption = DEFAULT_SEGMENT_TOKENS,
    segments_per_request: SegmentsPerRequestOption = DEFAULT_SEGMENTS_PER_REQUEST,
    shadow: ShadowOption = None,
    shadow_limit_kl: ShadowLimitOption = None,
    shadow_tokens: ShadowTokensOption = DEFAULT_SHADOW_TOKENS,
    capture_ahead: CaptureAheadOption = SERVER_CAPTURE_AHEAD_S,
    overlap: OverlapOption = None,
) -> None:
    """Serve a model over HTTP: OpenAI-shaped, and aware of documents."""
    from hypic_sdk.cli.serve import gate_settings, run_serve

    config = engine_config(mode, seam, min_segment_tokens, cache_mib, pair)
    config = with_shadow(config, shadow, shadow_limit_kl, shadow_tokens)
    config = of_server(config, capture_ahead, overlap, segment_tokens, segments_per_request)
    run_serve(
        Console(), model=model, model_name=model_name, host=host, port=port, keys_file=keys,
        segments_file=segments_file, script_file=script, num_workers=workers,
        gate=gate_settings(gate, worker_key), config=config,
    )  # fmt: skip


@app.command()
def doctor(
    model: ModelOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    mode: ModeOption = DEFAULT_MODE,
    seam: SeamOption = DEFAULT_SEAM,
    min_segment_tokens: MinTokensOption = DEFAULT_MIN_TOKENS,
    cache_mib: BudgetOption = DEFAULT_BUDGET_MIB,
    pair: PairOption = DEFAULT_PAIR,
    segment_tokens: SegmentTokensOption = DEFAULT_SEGMENT_TOKENS,
    segments_per_request: SegmentsPerRequestOption = DEFAULT_SEGMENTS_PER_REQUEST,
) -> None:
    """Say what a model is and what it will cost here, before loading its weights."""
    from hypic_sdk.cli.doctor import run_doctor

    config = engine_config(mode, seam, min_segment_tokens, cache_mib, pair)
    config = with_split(config, segment_tokens, segments_per_request)
    run_doctor(Console(markup=False), model=model, config=config, as_json=as_json)


@app.command()
def explain(
    prompt: Annotated[
        Path | None,
        typer.Argument(help="A body as JSON, a list of messages, or a plain prompt (no .json)."),
    ] = None,
    question: Annotated[str | None, typer.Option("--question", "-q", help="What to ask.")] = None,
    document: Annotated[
        list[Path] | None,
        typer.Option("--document", "-d", help="A text file; may be given again.", exists=False),
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="No server: an engine here, with nothing warm.")
    ] = False,
    model: ModelOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The explanation as JSON.")] = False,
    mode: ModeOption = DEFAULT_MODE,
    seam: SeamOption = DEFAULT_SEAM,
    min_segment_tokens: MinTokensOption = DEFAULT_MIN_TOKENS,
) -> None:
    """Say what a prompt would cost and what costs hits, without running it."""
    from hypic_sdk.cli.explain import Where, run_explain

    documents = tuple(document or ())
    config = engine_config(mode, seam, min_segment_tokens)
    where = Where(url, api_key, is_offline=offline or model is not None, model=model, config=config)
    console = Console(markup=False)
    run_explain(console, prompt, question, documents, where=where, as_json=as_json)


@bench_app.command("reuse")
def bench_reuse(
    model: ModelOption = None,
    runs: ArmRunsOption = 7,
    documents: Annotated[int, number("--documents", least=2, most=16)] = 8,
    json_lines: JsonLinesOption = None,
) -> None:
    """TTFT of the same prompts by arm: reuse, prefix cache, full recompute."""
    check_file(json_lines)
    from hypic_sdk.bench.reuse import run_reuse_bench

    run_reuse_bench(
        Console(), model=model, num_runs=runs, num_documents=documents, json_lines=json_lines
    )


@bench_app.command("ttft")
def bench_ttft(
    model: ModelOption = None,
    runs: Annotated[
        int, number("--runs", least=1, most=MOST_RUNS, help="Counted runs of each cell.")
    ] = 7,
    json_lines: JsonLinesOption = None,
) -> None:
    """TTFT against full recompute by length and number of the documents."""
    check_file(json_lines)
    from hypic_sdk.bench.ttft import run_ttft_bench

    run_ttft_bench(Console(), model=model, num_runs=runs, json_lines=json_lines)


@bench_app.command("match")
def bench_match(
    runs: ArmRunsOption = 15,
    texts: Annotated[
        int, number("--texts", least=300, most=MOST_DOCUMENTS, help="Known texts.")
    ] = 20_000,
    characters: Annotated[int, number("--characters", least=1_000, most=1e9)] = 260_000,
    json_lines: JsonLinesOption = None,
) -> None:
    """Time to look through a prompt for known texts."""
    check_file(json_lines)
    from hypic_sdk.bench.match import run_match_bench

    run_match_bench(
        Console(), num_texts=texts, num_chars=characters, num_runs=runs, json_lines=json_lines
    )


def main() -> None:
    """Run the command line; an error that has a sentence is told as one.

    Exit status: 0; 2 for the caller's mistake (also typer's own), a request or settings that can
    not work; 1 for everything else, a model's files among them.
    """
    try:
        app()
    except HypicError as error:
        Console(stderr=True).print(
            f"hypic: {error.code}: {error.message}", style="red", markup=False, soft_wrap=True
        )
        raise SystemExit(_status(error)) from error


def _status(error: HypicError) -> int:
    is_callers = isinstance(error, RequestError | ConfigError)
    return 2 if is_callers and not isinstance(error, ModelFileError) else 1
