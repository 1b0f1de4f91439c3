"""`hypic bench pairs`: how small a segment's pair may be stored, and what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import Console

from hypic_sdk.bench.destination import claimed
from hypic_sdk.cli.bench_options import OverwriteOption
from hypic_sdk.cli.options import ModelOption, written_path


def bench_pairs(
    model: ModelOption = None,
    out: Annotated[
        Path | None, written_path("--out", help="Write pairs.json into this folder.")
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """How small a segment's pair may be stored, and what that costs in the composed state."""
    with claimed(out, "pairs", overwrite=overwrite):
        from hypic_sdk.bench.pairs import run_pairs_bench

        run_pairs_bench(Console(), model=model, folder=out)
