"""Where each way of reuse leaves full recompute: layer by layer, along the same reply."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from hypic_sdk.bench.fidelity_arms import CONTROL_ARMS, MODE_ARMS, Arm, Bench, FullReply, usable
from hypic_sdk.bench.fidelity_cases import Case, CaseSizes, make_cases
from hypic_sdk.bench.probe import Forced
from hypic_sdk.bench.report import circumstances
from hypic_sdk.bench.scores import relative_l2
from hypic_sdk.bench.subject import Subject, check_reads, load_subject
from hypic_sdk.engine.divergence import divergence_rows

if TYPE_CHECKING:
    from rich.console import Console

# what the stored precision of a transition may do (design 3.7); beyond it a layer has left
THRESHOLD = 5e-4
STRATA = ("one document, trained sentences", "two documents", "latest wins", "tally")
LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class Divergence:
    """One arm: how far each layer's mixer is from full recompute at the reply's rows."""

    arm: str
    num_prompts: int
    layers: tuple[str, ...]  # number and kind, in order
    relative_l2: tuple[float, ...]  # medians, one a layer
    first_layer: str  # the one that most prompts leave at; `logits` or `none` if no layer does
    first_counts: dict[str, int]
    logits_kl: float  # mean


def layer_names(subject: Subject) -> tuple[str, ...]:
    """`0 linear`, `3 attention`, ..."""
    return tuple(f"{at} {kind.value}" for at, kind in enumerate(subject.model.spec.layers))


def layer_errors(other: Forced, wanted: Forced) -> list[float]:
    """Relative L2 of each layer's mixer output."""
    return [relative_l2(a, b) for a, b in zip(other.outputs, wanted.outputs, strict=True)]


def first_left(errors: Sequence[float], names: Sequence[str], kl: float) -> str:
    """The first layer over the threshold."""
    for name, error in zip(names, errors, strict=True):
        if error > THRESHOLD:
            return name
    return LOGITS if kl > THRESHOLD else "none"


def divergence(
    bench: Bench, arm: Arm, fulls: Sequence[FullReply], names: tuple[str, ...]
) -> Divergence:
    """One arm over all prompts that it means something for."""
    errors: list[list[float]] = []
    divergences = []
    for full in fulls:
        forced, _ = bench.forced(arm, full)
        errors.append(layer_errors(forced, full.forced))
        kl = divergence_rows(full.forced.logits_NV, forced.logits_NV)
        divergences.append(float(kl.mean()))
    counts = Counter(
        first_left(own, names, kl) for own, kl in zip(errors, divergences, strict=True)
    )
    medians = tuple(statistics.median(column) for column in zip(*errors, strict=True))
    return Divergence(
        arm.name, len(errors), names, medians, counts.most_common(1)[0][0], dict(counts),
        statistics.fmean(divergences),
    )  # fmt: skip


def measure(bench: Bench, cases: Sequence[Case], arms: Sequence[Arm]) -> list[Divergence]:
    """Every arm."""
    fulls = [bench.full(case, number) for number, case in enumerate(cases)]
    names = layer_names(bench.subject)
    found = []
    for arm in arms:
        meant = [full for full in fulls if usable(arm, full.case)]
        if meant:
            found.append(divergence(bench, arm, meant, names))
    return found


def run_divergence_bench(
    console: Console, *, model: str | None, per_count: int, folder: Path | None, device_name: str
) -> None:
    """Measure, print, write `divergence.json`."""
    subject = load_subject(model, device_name)
    check_reads(subject)
    cases = make_cases(CaseSizes(per_count, (2, 4), (100,), 1), STRATA)
    found = measure(Bench(subject), cases, (*MODE_ARMS, *CONTROL_ARMS))
    table = Table(
        "arm", "leaves first at", *layer_names(subject), "KL",
        title=f"relative L2 of each mixer to full recompute, {len(cases)} prompts, medians",
    )  # fmt: skip
    for one in found:
        cells = [f"{error:.1e}" for error in one.relative_l2]
        where = f"{one.first_layer} ({one.first_counts[one.first_layer]}/{one.num_prompts})"
        table.add_row(one.arm, where, *cells, f"{one.logits_kl:.4f}")
    console.print(table)
    measured_on = circumstances(subject.device)
    console.print(str(measured_on), style="dim")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        body = {
            "model": subject.name,
            "threshold": THRESHOLD,
            "circumstances": asdict(measured_on),
            "arms": [asdict(one) for one in found],
        }
        path = folder / "divergence.json"
        path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
