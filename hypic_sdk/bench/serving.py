"""The rows of design 13 that need one device: engine, arms and floors in one run over one model.

Rows come in order of importance, and the report is written after each: a run that is cut off has
told what mattered most.  A row that fails says why and stops nobody else; so does one that finds no
time or no room.  Times are of the host's clock, from submit to the token on the host, with nobody
else being there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hypic_sdk.bench.report import circumstances
from hypic_sdk.bench.serving_curves import ttft_curves
from hypic_sdk.bench.serving_determinism import determinism_costs
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_limits import TimeLimit
from hypic_sdk.bench.serving_model import (
    FULL_SIZES,
    TINY_SIZES,
    Bench,
    model_of,
    shape_of,
)
from hypic_sdk.bench.serving_pairs import pair_by_fla, pair_by_torch, pair_cost
from hypic_sdk.bench.serving_peer import over_peer, own_prefill
from hypic_sdk.bench.serving_profile import PROFILED, write_profiles
from hypic_sdk.bench.serving_report import Absent, Failure, Report, Row, line_of
from hypic_sdk.bench.serving_rows import (
    cold_apart,
    cold_segments,
    cold_text,
    decode_steps,
    full_recompute,
    further_1k,
    hits_4x4k,
    layer_zero,
    other_modes,
    segment_bytes,
)
from hypic_sdk.bench.serving_targets import DEFAULT_SHAPE
from hypic_sdk.bench.serving_together import eight_together
from hypic_sdk.engine.opening import usable_device
from hypic_sdk.errors import ConfigError
from hypic_sdk.offline import find_model

if TYPE_CHECKING:
    from rich.console import Console

Measure = Callable[[Bench, Floors], Iterator[Row | Absent]]

ROWS: tuple[Measure, ...] = (
    segment_bytes,
    hits_4x4k,
    decode_steps(1),
    cold_segments,
    decode_steps(32),
    cold_text,
    further_1k,
    full_recompute,
    eight_together,
    cold_apart,
    pair_cost,
    layer_zero,
    other_modes,
    determinism_costs,
    ttft_curves,
    pair_by_torch,
    pair_by_fla,  # its kernels are tuned for two minutes first
)


def run_serving_bench(
    console: Console,
    *,
    shape: str | None = None,
    model: str | None = None,
    device_name: str = "auto",
    tiny: bool = False,
    folder: Path | None = None,
    profile: bool = False,
    transformers: bool = False,
    limit_s: float = 240.0,
) -> bool:
    """Measure, print each row as it comes, write serving.json (and profiles) into `folder`.

    Args:
        shape: of random weights; none: `DEFAULT_SHAPE`.
        model: a checkpoint folder or hub id, instead of a shape.
        tiny: a small model and short documents: to see that it works, not to measure.
        transformers: the same model by that library, at the end, in the memory of ours.
        limit_s: rows that would begin later than this are left out, and named.
    Returns:
        whether no row failed, and none was left out for the time.
    Raises:
        ConfigError: no such device or shape; two of shape, model and `tiny` that exclude each
            other; a model that transformers is to be drawn like; profiles and no folder for them;
            random weights that take more memory than is free.
        ModelFileError: no such model.
    """
    limit = TimeLimit(limit_s, time.monotonic())
    device, shape = usable_device(device_name), shape_of(shape, tiny=tiny, model=model)
    if transformers and model is not None:
        raise ConfigError("transformers is measured over random weights of a shape, not of a model")
    if profile and folder is None:
        raise ConfigError("--profile writes files beside serving.json: give --out FOLDER as well")
    weights, name = (None, shape) if model is None else find_model(model)
    sizes = TINY_SIZES if tiny else FULL_SIZES
    bench = Bench(model_of(shape, weights, device), shape, device, sizes, limit)
    floors, report = Floors.of(bench), Report(folder, name, device, tiny)
    meter, about = Meter(console, report, bench), ""
    if not bench.is_judged:
        about = f"; targets are of {DEFAULT_SHAPE} on a GPU: none is judged here"
    console.print(
        f"{circumstances(device)}, {report.shape}{about}", highlight=False, soft_wrap=True
    )
    for measure in ROWS:
        is_whole = meter.take(name_of(measure), partial(measure, bench, floors))
        if folder is not None and profile and name_of(measure) in PROFILED:
            meter.profile(name_of(measure), folder, is_measured=is_whole)
    if transformers:
        meter.take("own_prefill", partial(own_prefill, bench))
        bench.release()
        meter.take("transformers", partial(over_peer, report.rows, bench))
    return not report.failures and not limit.was_reached


def name_of(measure: Measure) -> str:
    """As it stands in the report's times and failures."""
    return getattr(measure, "__qualname__", "row")


@dataclass(frozen=True, slots=True)
class Meter:
    """Takes measurements one after the other, each told and written as it comes."""

    console: Console
    report: Report
    bench: Bench

    def take(self, name: str, rows: Callable[[], Iterator[Row | Absent]]) -> bool:
        """All rows of a measurement; what it raises is a failure of it, and nobody else's.

        Returns:
            whether each of them gave a number.
        """
        begun_s, is_whole = time.monotonic(), True
        try:
            with torch.inference_mode():
                absent = self.bench.absent(name)
                for row in rows() if absent is None else (absent,):
                    is_whole &= isinstance(row, Row)
                    self._heard(row)
        except Exception as error:  # the other rows go on
            is_whole, reason = False, f"{type(error).__name__}: {error}"[:500]
            self.report.failures.append(Failure(name, reason))
            self.console.print(
                f"{name}: {reason}", style="red", markup=False, highlight=False, soft_wrap=True
            )
        self.report.seconds[name] = round(time.monotonic() - begun_s, 2)
        self.report.write()
        return is_whole

    def _heard(self, row: Row | Absent) -> None:
        if isinstance(row, Absent):
            self.report.absent.append(row)
            line = f"{row.name}: not measured, {row.reason}"
        else:
            row = row if self.bench.is_judged else replace(row, target=None)
            self.report.rows.append(row)
            line = line_of(row)
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)
        self.report.write()

    def profile(self, row: str, folder: Path, *, is_measured: bool) -> None:
        """Where the time of a row goes, by kernel, once the row itself was measured."""
        name = f"profile of {row}"
        absent = self.bench.absent(name)
        if absent is None and not is_measured:
            absent = Absent(name, "its row was not measured")
        if absent is not None:
            self._heard(absent)
            return
        try:
            for line in write_profiles(row, self.bench, folder):
                self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        except Exception as error:
            self.report.failures.append(Failure(name, f"{type(error).__name__}: {error}"))
