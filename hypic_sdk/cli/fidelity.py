"""`hypic bench fidelity` and its kin: what reuse costs, and what else was tried."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hypic_sdk.cli.options import DeviceOption, ModelOption

SecondsOption = Annotated[
    float | None,
    typer.Option(
        "--seconds", min=1.0, help="About what it may take: later prompts are then left out."
    ),
]
QuickOption = Annotated[bool, typer.Option("--quick", help="A few minutes on two cores.")]
WorldsOption = Annotated[
    int | None, typer.Option("--per-count", min=1, help="Worlds of each kind.")
]
DIRECTORY_HELP = "Write into this folder, as results come; the same again goes on where it stopped."
OutOption = Annotated[Path | None, typer.Option("--out", help=DIRECTORY_HELP)]


def bench_fidelity(
    model: ModelOption = None,
    quick: QuickOption = False,
    out: OutOption = None,
    per_count: Annotated[
        int | None,
        typer.Option("--per-count", min=1, help="Worlds of each kind and number of documents."),
    ] = None,
    seconds: SecondsOption = None,
    device: DeviceOption = "auto",
) -> None:
    """What reuse costs against full recompute, rung by rung, and whether the model can tell."""
    from hypic_sdk.bench.fidelity import run_fidelity_bench

    holds = run_fidelity_bench(
        Console(),
        model=model,
        quick=quick,
        folder=out,
        device_name=device,
        per_count=per_count,
        seconds=seconds,
    )
    raise typer.Exit(0 if holds else 1)


def bench_modes(
    model: ModelOption = None,
    server: Annotated[
        list[str] | None,
        typer.Option("--server", help="NAME=URL of a server in some mode; may be given again."),
    ] = None,
    per_count: Annotated[int, typer.Option("--per-count", min=1)] = 4,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write modes.json into this folder.")
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """The six modes side by side: scores, distance, live tokens, time."""
    from hypic_sdk.bench.modes import run_modes_bench

    run_modes_bench(
        Console(), model=model, servers=tuple(server or ()), per_count=per_count, folder=out,
        device_name=device,
    )  # fmt: skip


def bench_divergence(
    model: ModelOption = None,
    per_count: Annotated[int, typer.Option("--per-count", min=1)] = 2,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write divergence.json into this folder.")
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """The first layer at which each mode and each planted fault leaves full recompute."""
    from hypic_sdk.bench.divergence import run_divergence_bench

    run_divergence_bench(
        Console(), model=model, per_count=per_count, folder=out, device_name=device
    )


def bench_sweep(
    model: ModelOption = None,
    quick: QuickOption = False,
    per_count: WorldsOption = None,
    out: OutOption = None,
    seconds: SecondsOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Seams, stored precision, anchors, segment length and count: loss against live tokens."""
    from hypic_sdk.bench.sweep import run_sweep_bench

    run_sweep_bench(
        Console(), model=model, quick=quick, per_count=per_count, folder=out, seconds=seconds,
        device_name=device,
    )  # fmt: skip


def bench_choices(
    model: ModelOption = None,
    quick: QuickOption = False,
    per_count: WorldsOption = None,
    out: OutOption = None,
    seconds: SecondsOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Seams that follow attention, refreshed interiors, and how wrong an offset may be."""
    from hypic_sdk.bench.choices import run_choices_bench

    run_choices_bench(
        Console(), model=model, quick=quick, per_count=per_count, folder=out, seconds=seconds,
        device_name=device,
    )  # fmt: skip
