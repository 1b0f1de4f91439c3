"""Experiments with a rule that ends them: what is kept, what is given up (docs/experiments.md).

Shared keys: attention over a segment's own keys, kept if it is at most 10 % slower than over
private copies.  Eight together: kept if eight requests take at most 1.5 times one.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table

from hypic_sdk.bench import shared_keys
from hypic_sdk.bench.kernel_shapes import LARGE, SMALL, TINY
from hypic_sdk.bench.report import circumstances
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_model import FULL_SIZES, TINY_SIZES, Bench, model_of, shape_of
from hypic_sdk.bench.serving_report import Absent, Failure, Row, line_of
from hypic_sdk.bench.serving_together import LIMIT as TOGETHER_LIMIT
from hypic_sdk.bench.serving_together import eight_together
from hypic_sdk.bench.shared_keys import Check, Timing
from hypic_sdk.engine.opening import usable_device
from hypic_sdk.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an experiment's rule says of what was found."""

    experiment: str
    rule: str
    found: float  # the worst case, in the rule's unit; infinite: it gave no right number
    limit: float

    @property
    def is_kept(self) -> bool:
        """Whether the worst case is within the limit."""
        return self.found <= self.limit

    def __str__(self) -> str:
        word = "kept" if self.is_kept else "given up"
        return f"{self.experiment}: {self.found:.2f}, {self.rule}: {word}"


@dataclass(slots=True)
class Results:
    """All that was found."""

    checks: list[Check] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether every arm gave what the definition gives."""
        return all(check.passed for check in self.checks)

    def write(self, folder: Path, shape: str, device: torch.device) -> None:
        """experiments.json."""
        folder.mkdir(parents=True, exist_ok=True)
        report = {
            "bench": "experiments",
            "shape": shape,
            "circumstances": asdict(circumstances(device)),
            "checks": [{**asdict(x), "error": _number(x.error)} for x in self.checks],
            "timings": [asdict(x) for x in self.timings],
            "rows": [asdict(x) for x in self.rows],
            "verdicts": [
                {**asdict(x), "found": _number(x.found), "is_kept": x.is_kept, "says": str(x)}
                for x in self.verdicts
            ],
            "failures": [asdict(x) for x in self.failures],
        }
        text = json.dumps(report, indent=1, allow_nan=False) + "\n"
        (folder / "experiments.json").write_text(text, encoding="utf-8")


def _number(x: float) -> float | None:
    """JSON knows neither infinity nor what is no number."""
    return x if math.isfinite(x) else None


def run_experiments(
    console: Console,
    *,
    shape: str | None = None,
    device_name: str = "auto",
    tiny: bool = False,
    folder: Path | None = None,
) -> bool:
    """Run both, print rows and verdicts, write experiments.json into `folder`.

    Args:
        shape: of random weights; none: `serving_model.DEFAULT_SHAPE`.
        tiny: small shapes: to see that it works, not to measure.
    Returns:
        whether every arm gave what the definition gives; a verdict is no failure.
    Raises:
        ConfigError: no such device or shape; a shape beside `tiny`.
    """
    device, results = usable_device(device_name), Results()
    shape = shape_of(shape, tiny=tiny)
    console.print(f"{circumstances(device)}, {shape}", highlight=False)
    sizes = TINY_SIZES if tiny else FULL_SIZES

    def together() -> None:
        model = model_of(shape, None, device)
        _together(console, results, Bench(model, shape, device, sizes))

    for name, experiment in (
        ("shared keys", partial(_shared_keys, console, results, device, tiny=tiny)),
        ("eight together", together),
    ):
        try:
            with torch.inference_mode():
                experiment()
        except Exception as error:  # the other one is asked all the same
            reason = f"{type(error).__name__}: {error}"[:500]
            results.failures.append(Failure(name, reason))
            console.print(f"{name}: {reason}", style="red", markup=False)
        if folder is not None:
            results.write(folder, shape, device)
    for verdict in results.verdicts:
        console.print(str(verdict), highlight=False, markup=False, soft_wrap=True)
    return results.is_sound and not results.failures


def _shared_keys(console: Console, results: Results, device: torch.device, *, tiny: bool) -> None:
    """Checks first: a way that is wrong here is not timed."""
    is_small = tiny or device.type == "cpu"
    checked = shared_keys.TINY_SCENES if is_small else shared_keys.SMALL_SCENES
    timed = shared_keys.TINY_SCENES if is_small else shared_keys.SCENES
    for scene in checked:
        results.checks += shared_keys.checks(scene, TINY if is_small else SMALL, device)
    console.print(_checks_table(results.checks))
    wrong = {check.arm for check in results.checks if not check.passed}
    arms = [] if "private" in wrong else [turn for turn in shared_keys.TURNS if turn not in wrong]
    for scene in timed:
        results.timings += shared_keys.timings(scene, TINY if is_small else LARGE, device, arms)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    console.print(_timings_table(results.timings))
    rule = f"kept if attention takes at most {shared_keys.LIMIT} times that over private copies"
    for turn in shared_keys.TURNS:
        ratios = [x.over_private for x in results.timings if x.arm == turn]
        found = max(ratios, default=math.inf)
        name = f"a segment's own keys, the {turn} turned"
        results.verdicts.append(Verdict(name, rule, found, shared_keys.LIMIT))


def _together(console: Console, results: Results, bench: Bench) -> None:
    for row in eight_together(bench, Floors.of(bench)):
        if isinstance(row, Absent):
            raise ConfigError(f"{row.name}: {row.reason}")
        row = row if bench.is_judged else replace(row, target=None)
        results.rows.append(row)
        console.print(line_of(row), highlight=False, markup=False, soft_wrap=True)
        rule = f"kept if at most {TOGETHER_LIMIT} times one"
        results.verdicts.append(Verdict(row.name, rule, row.found.median, TOGETHER_LIMIT))


def _checks_table(checks: list[Check]) -> Table:
    table = Table("scene", "arm", "error", "", title="bf16 against the definition in fp64")
    for one in checks:
        table.add_row(one.scene, one.arm, f"{one.error:.1e}", "ok" if one.passed else "WRONG")
    return table


def _timings_table(found: list[Timing]) -> Table:
    table = Table(
        *(
            "scene",
            "arm",
            "us a layer",
            "over private",
            "all layers with placing, ms",
            "copies, MiB",
        ),
        title="attention: minimum / median / maximum",
    )
    for one in found:
        cells: list[Any] = [one.scene, one.arm, str(one.us_a_layer)]
        cells += [f"{one.over_private:.2f}", f"{one.with_placing_ms:.3f}", f"{one.copies_mib:.1f}"]
        table.add_row(*cells)
    return table
