"""`hypic bench kernels`, `serving`, `experiments` and `figures`: one device, and what docs show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hypic_sdk.bench.destination import claimed
from hypic_sdk.cli.bench_options import OverwriteOption, RowSecondsOption, number
from hypic_sdk.cli.options import DeviceOption, path_of, written_path

ShapesOption = Annotated[
    str | None,
    typer.Option(
        "--shapes", help="Of a model with random weights; none is qwen3.5-35b-a3b. Not with --tiny."
    ),
]
TinyOption = Annotated[bool, typer.Option("--tiny", help="Small shapes: does it work?")]


def bench_kernels(
    device: DeviceOption = "auto",
    tiny: TinyOption = False,
    out: Annotated[
        Path | None, written_path("--out", help="Write kernels.json into this folder.")
    ] = None,
    overwrite: OverwriteOption = False,
    seconds: Annotated[
        float, number("--seconds", least=0.0, most=3600.0, help="About what a case takes.")
    ] = 2.0,
) -> None:
    """Every op against its definition, then its time against its floor."""
    with claimed(out, "kernels", overwrite=overwrite):
        from hypic_sdk.bench.kernels import run_kernel_bench

        passed = run_kernel_bench(
            Console(), device_name=device, tiny=tiny, folder=out, seconds=seconds
        )
    raise typer.Exit(0 if passed else 1)


def bench_serving(
    shapes: ShapesOption = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Checkpoint folder or hub id instead; none is --shapes."),
    ] = None,
    device: DeviceOption = "auto",
    tiny: TinyOption = False,
    out: Annotated[
        Path | None, written_path("--out", help="Write serving.json into this folder.")
    ] = None,
    overwrite: OverwriteOption = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="And profiles of some rows, by kernel, into --out."),
    ] = False,
    transformers: Annotated[
        bool, typer.Option("--transformers", help="The same model by transformers as well, last.")
    ] = False,
    seconds: RowSecondsOption = 240.0,
) -> None:
    """TTFT, decode and prefill of an engine alone, beside their targets and floors."""
    beside = ("profile-*.json", "profile-*.txt")
    with claimed(out, "serving", *beside, overwrite=overwrite):
        from hypic_sdk.bench.serving import run_serving_bench

        passed = run_serving_bench(
            Console(),
            shape=shapes,
            model=model,
            device_name=device,
            tiny=tiny,
            folder=out,
            profile=profile,
            transformers=transformers,
            limit_s=seconds,
        )
    raise typer.Exit(0 if passed else 1)


def bench_experiments(
    shapes: ShapesOption = None,
    device: DeviceOption = "auto",
    tiny: TinyOption = False,
    out: Annotated[
        Path | None, written_path("--out", help="Write experiments.json into this folder.")
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Shared keys, and eight requests assembled together: kept or given up, by a rule."""
    with claimed(out, "experiments", overwrite=overwrite):
        from hypic_sdk.bench.experiments import run_experiments

        sound = run_experiments(Console(), shape=shapes, device_name=device, tiny=tiny, folder=out)
    raise typer.Exit(0 if sound else 1)


def bench_figures(
    folder: Annotated[
        Path,
        typer.Argument(
            help="What benches wrote with --out: serving, replay, experiments.",
            parser=path_of,
            metavar="FOLDER",
        ),
    ] = Path("docs/bench"),
    root: Annotated[
        Path,
        written_path(
            "--root",
            help="Of a checkout, which has no tiny runs, none on a CPU and none of changed files, "
            "and whose tables lose no row; or a folder in no checkout, for a look at those too.",
        ),
    ] = Path(),
) -> None:
    """Draw TTFT by length, number and rate, and write the docs' tables from the results."""
    from hypic_sdk.bench.figures import update

    update(Console(), folder=folder, root=root)
