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
from typing import TYPE_CHECKING

import torch

from hypic_sdk.bench import shared_keys
from hypic_sdk.bench.kernel_shapes import LARGE, SMALL, TINY
from hypic_sdk.bench.report import circumstances, write_whole
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
    is_judged: bool = True  # the rule is of runs at full size on a GPU

    @property
    def is_kept(self) -> bool | None:
        """Whether the worst case is within the limit; none where the rule is of other runs."""
        return self.found <= self.limit if self.is_judged else None

    def __str__(self) -> str:
        word = "kept" if self.is_kept else "given up" if self.is_judged else "not judged here"
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
        write_whole(folder / "experiments.json", text)


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
        tiny: small shapes: to see that it works; nothing is measured or judged.
    Returns:
        whether every arm gave what the definition gives; a verdict is no failure.
    Raises:
        ConfigError: no such device or shape; a shape beside `tiny`.
    """
    device, results = usable_device(device_name), Results()
    shape = shape_of(shape, tiny=tiny)
    _say(console, f"{circumstances(device)}, {shape}")
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
            console.print(
                f"{name}: {reason}", style="red", markup=False, highlight=False, soft_wrap=True
            )
        if folder is not None:
            results.write(folder, shape, device)
    _say(console, *map(str, results.verdicts))
    return results.is_sound and not results.failures


def rules_apply(device: torch.device, *, tiny: bool) -> bool:
    """Whether what is measured may be kept or given up: the sizes of a large model, on a GPU."""
    return device.type == "cuda" and not tiny


def _shared_keys(console: Console, results: Results, device: torch.device, *, tiny: bool) -> None:
    """Checks first: a way that is wrong here is not timed."""
    is_small = tiny or device.type == "cpu"
    checked = shared_keys.TINY_SCENES if is_small else shared_keys.SMALL_SCENES
    timed = shared_keys.TINY_SCENES if is_small else shared_keys.SCENES
    for scene in checked:
        results.checks += shared_keys.checks(scene, TINY if is_small else SMALL, device)
    _say(console, "bf16 against the definition in fp64", *map(_check_line, results.checks))
    wrong = {check.arm for check in results.checks if not check.passed}
    arms = [] if "private" in wrong else [turn for turn in shared_keys.TURNS if turn not in wrong]
    for scene in timed:
        results.timings += shared_keys.timings(scene, TINY if is_small else LARGE, device, arms)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    _say(console, "attention: minimum / median / maximum", *map(_timing_line, results.timings))
    rule = f"kept if attention takes at most {shared_keys.LIMIT} times that over private copies"
    for turn in shared_keys.TURNS:
        ratios = [x.over_private for x in results.timings if x.arm == turn]
        found = max(ratios, default=math.inf)
        name = f"a segment's own keys, the {turn} turned"
        results.verdicts.append(
            Verdict(name, rule, found, shared_keys.LIMIT, rules_apply(device, tiny=tiny))
        )


def _together(console: Console, results: Results, bench: Bench) -> None:
    for row in eight_together(bench, Floors.of(bench)):
        if isinstance(row, Absent):
            raise ConfigError(f"{row.name}: {row.reason}")
        row = row if bench.is_judged else replace(row, target=None)
        results.rows.append(row)
        _say(console, line_of(row))
        rule = f"kept if at most {TOGETHER_LIMIT} times one"
        found = row.found.median
        results.verdicts.append(Verdict(row.name, rule, found, TOGETHER_LIMIT, bench.is_judged))


def _say(console: Console, *lines: str) -> None:
    """Lines whose numbers no width of a terminal cuts."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _check_line(one: Check) -> str:
    verdict = "ok" if one.passed else "WRONG"
    numbers = f"error {one.error:.1e}, allowed {shared_keys.BOUND:.1e}"
    return f"{one.scene}, {one.arm}: {numbers}: {verdict}"


def _timing_line(one: Timing) -> str:
    return (
        f"{one.scene}, {one.arm}: {one.us_a_layer} us a layer, {one.over_private:.2f} times private"
        f", {one.with_placing_ms:.3f} ms of all layers with placing, {one.copies_mib:.1f} MiB of "
        "copies"
    )
