"""The rows of design 13 that need one device: engine, arms and floors in one run over one model.

Rows come in order of importance, and the report is written after each: a run that is cut off has
told what mattered most.  A row that fails says why and stops nobody else.  Times are of the host's
clock, from submit to the token on the host, with nobody else being there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hypic_sdk.bench.report import circumstances
from hypic_sdk.bench.serving_curves import ttft_curves
from hypic_sdk.bench.serving_determinism import determinism_costs
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_model import FULL_SIZES, TINY_SIZES, Bench, model_of
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
    decode_steps(1, 4.0),
    cold_segments,
    decode_steps(32, 18.0),
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
    shape: str = "qwen3.5-35b-a3b",
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
        shape: of random weights, where no model is named.
        model: a checkpoint folder or hub id.
        tiny: a small model and short documents: to see that it works, not to measure.
        transformers: the same model by that library, at the end, in the memory of ours.
        limit_s: rows of ours that would begin later than this are left out, and named.
    Returns:
        whether every row gave a number.
    Raises:
        ConfigError: no such device or shape, or a model that transformers is to be drawn like.
        ModelFileError: no such model.
    """
    start_s = time.monotonic()
    device = usable_device(device_name)
    shape = "tiny" if tiny else shape
    sizes = TINY_SIZES if tiny else FULL_SIZES
    if transformers and model is not None:
        raise ConfigError("transformers is measured over random weights of a shape, not of a model")
    weights, name = (None, shape) if model is None else find_model(model)
    bench = Bench(model_of(shape, weights, device), shape, device, sizes)
    floors = Floors.of(bench)
    report = Report(folder, name, device, tiny)
    meter = Meter(console, report, start_s)
    console.print(f"{circumstances(device)}, {report.shape}", highlight=False)
    for measure in ROWS:
        meter.take(name_of(measure), partial(measure, bench, floors), limit_s)
        if profile and name_of(measure) in PROFILED and folder is not None:
            _profile(console, report, name_of(measure), bench)
    if transformers:
        meter.take("own_prefill", partial(own_prefill, bench), math.inf)
        bench.release()
        meter.take("transformers", partial(over_peer, report.rows, bench), math.inf)
    return not report.failures


def name_of(measure: Measure) -> str:
    """As it stands in the report's times and failures."""
    return getattr(measure, "__qualname__", "row")


@dataclass(frozen=True, slots=True)
class Meter:
    """Takes measurements one after the other, each told and written as it comes."""

    console: Console
    report: Report
    start_s: float

    def take(self, name: str, rows: Callable[[], Iterator[Row | Absent]], limit_s: float) -> None:
        """All rows of a measurement; what it raises is a failure of it, and nobody else's."""
        begun_s = time.monotonic()
        try:
            if begun_s - self.start_s > limit_s:
                raise TimeoutError(f"not begun within {limit_s:g} s")
            with torch.inference_mode():
                for row in rows():
                    self._heard(row)
        except Exception as error:  # the other rows go on
            reason = f"{type(error).__name__}: {error}"[:500]
            self.report.failures.append(Failure(name, reason))
            self.console.print(f"{name}: {reason}", style="red", markup=False)
        self.report.seconds[name] = round(time.monotonic() - begun_s, 2)
        self.report.write()

    def _heard(self, row: Row | Absent) -> None:
        if isinstance(row, Absent):
            self.report.absent.append(row)
            line = f"{row.name}: not here, {row.reason}"
        else:
            self.report.rows.append(row)
            line = line_of(row)
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)
        self.report.write()


def _profile(console: Console, report: Report, name: str, bench: Bench) -> None:
    """Where the time of a row goes, by kernel."""
    assert report.folder is not None, "profiles are files"
    try:
        for line in write_profiles(name, bench, report.folder):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    except Exception as error:
        report.failures.append(Failure(f"profile of {name}", f"{type(error).__name__}: {error}"))
