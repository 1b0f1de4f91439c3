"""`hypic bench fidelity` and its kin: what reuse costs, and what else was tried."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hypic_sdk.bench.destination import claimed
from hypic_sdk.cli.bench_options import (
    MOST_RUNS,
    WEEK_S,
    OverwriteOption,
    PerCountOption,
    number,
)
from hypic_sdk.cli.options import DeviceOption, ModelOption, written_path

SecondsOption = Annotated[
    float | None,
    number(
        "--seconds",
        least=1.0,
        most=WEEK_S,
        help="About what it may take: later prompts are then left out.",
    ),
]
QuickOption = Annotated[bool, typer.Option("--quick", help="A few minutes on two cores.")]
WorldsOption = Annotated[
    int | None, number("--per-count", least=1, most=MOST_RUNS, help="Worlds of each kind.")
]
STRATA_HELP = "Ask these too, beside the usual strata (see docs/fidelity.md); may be given again."
StrataOption = Annotated[list[str] | None, typer.Option("--strata", help=STRATA_HELP)]
DIRECTORY_HELP = (
    "Write into this folder, as results come; the same again goes on where it stopped, and a run "
    "of another model, device, size or commit is refused."
)
OutOption = Annotated[Path | None, written_path("--out", help=DIRECTORY_HELP)]


def bench_fidelity(
    model: ModelOption = None,
    quick: QuickOption = False,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
    per_count: Annotated[
        int | None,
        number(
            "--per-count",
            least=1,
            most=MOST_RUNS,
            help="Worlds of each kind and number of documents.",
        ),
    ] = None,
    seconds: SecondsOption = None,
    strata: StrataOption = None,
    device: DeviceOption = "auto",
) -> None:
    """What reuse costs against full recompute, rung by rung, and whether the model can tell."""
    with claimed(out, "fidelity", overwrite=overwrite, resumes=True):
        from hypic_sdk.bench.fidelity import run_fidelity_bench

        holds = run_fidelity_bench(
            Console(),
            model=model,
            quick=quick,
            folder=out,
            device_name=device,
            per_count=per_count,
            seconds=seconds,
            strata=tuple(strata or ()),
        )
    raise typer.Exit(0 if holds else 1)


def bench_modes(
    model: ModelOption = None,
    server: Annotated[
        list[str] | None,
        typer.Option("--server", help="NAME=URL of a server in some mode; may be given again."),
    ] = None,
    per_count: PerCountOption = 4,
    out: Annotated[
        Path | None, written_path("--out", help="Write modes.json into this folder.")
    ] = None,
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
) -> None:
    """The six modes side by side: scores, distance, live tokens, time."""
    with claimed(out, "modes", overwrite=overwrite):
        from hypic_sdk.bench.modes import run_modes_bench

        run_modes_bench(
            Console(), model=model, servers=tuple(server or ()), per_count=per_count, folder=out,
            device_name=device,
        )  # fmt: skip


def bench_divergence(
    model: ModelOption = None,
    per_count: PerCountOption = 2,
    out: Annotated[
        Path | None, written_path("--out", help="Write divergence.json into this folder.")
    ] = None,
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
) -> None:
    """The first layer at which each mode and each planted fault leaves full recompute."""
    with claimed(out, "divergence", overwrite=overwrite):
        from hypic_sdk.bench.divergence import run_divergence_bench

        run_divergence_bench(
            Console(), model=model, per_count=per_count, folder=out, device_name=device
        )


def bench_sweep(
    model: ModelOption = None,
    quick: QuickOption = False,
    per_count: WorldsOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
    seconds: SecondsOption = None,
    strata: StrataOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Seams, stored precision, anchors, segment length and count: loss against live tokens."""
    with claimed(out, "sweep", "sweep_*.svg", overwrite=overwrite, resumes=True):
        from hypic_sdk.bench.sweep import run_sweep_bench

        run_sweep_bench(
            Console(), model=model, quick=quick, per_count=per_count, folder=out, seconds=seconds,
            device_name=device, strata=tuple(strata or ()),
        )  # fmt: skip


def bench_choices(
    model: ModelOption = None,
    quick: QuickOption = False,
    per_count: WorldsOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
    seconds: SecondsOption = None,
    strata: StrataOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Seams that follow attention, refreshed interiors, and how wrong an offset may be."""
    with claimed(out, "choices", overwrite=overwrite, resumes=True):
        from hypic_sdk.bench.choices import run_choices_bench

        run_choices_bench(
            Console(), model=model, quick=quick, per_count=per_count, folder=out, seconds=seconds,
            device_name=device, strata=tuple(strata or ()),
        )  # fmt: skip
