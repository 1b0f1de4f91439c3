"""What reuse costs, rung by rung (design 12), and whether the model can tell at all.

Everything goes through the engine: its modes, its store, its kernels.  The first lines say whether
the model qualifies as a judge.  One that does not is still measured; its small losses then prove
little, and the report says so.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_sdk.bench.fidelity_arms import (
    CONTROL_ARMS,
    DEFAULT,
    MODE_ARMS,
    Arm,
    Bench,
    FullReply,
    Row,
    full_row,
    usable,
)
from hypic_sdk.bench.fidelity_cases import SEED, STRATA, Case, CaseSizes, long_texts, make_cases
from hypic_sdk.bench.fidelity_rungs import (
    Law,
    LayerDrift,
    Norms,
    Purity,
    WarmCold,
    algebra,
    distinct_worlds,
    drift,
    drift_arms,
    purity,
    transition_norms,
    warm_cold,
)
from hypic_sdk.bench.fidelity_tables import print_report
from hypic_sdk.bench.fidelity_verdict import Summary, Verdict, judge, summarise
from hypic_sdk.bench.report import Circumstances, circumstances
from hypic_sdk.bench.subject import Subject, check_reads, load_subject

if TYPE_CHECKING:
    from rich.console import Console

QUICK_STRATA = ("one document, trained sentences", "two documents", "latest wins", "tally",
                "mentioned first")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    sizes: CaseSizes
    strata: tuple[str, ...]
    num_pure: int  # prompts of L1
    num_warm: int  # prompts of L2
    num_drift: int  # prompts of the drift by layer
    num_norms: int  # segments


QUICK = Plan(CaseSizes(2, (2, 4), (100,), 2), QUICK_STRATA, 2, 6, 6, 4)
WHOLE = Plan(CaseSizes(6, (2, 4, 8), (100, 180), 2), tuple(STRATA), 8, 60, 24, 16)


@dataclass(frozen=True, slots=True)
class Fidelity:
    """All that one run found."""

    model: str
    fingerprint: str
    seed: int
    plan: Plan
    circumstances: Circumstances
    seconds: float
    verdict: Verdict
    norms: Norms
    laws: tuple[Law, ...]
    purity: Purity
    warm_cold: WarmCold
    summaries: tuple[Summary, ...]
    drift: tuple[LayerDrift, ...]
    rows: tuple[Row, ...]


def measure_rows(
    bench: Bench, cases: Sequence[Case], arms: Sequence[Arm], on_case: Callable[[int], None]
) -> tuple[list[Row], list[FullReply]]:
    """L3, L4 and L5: every case in every arm it means something for."""
    rows: list[Row] = []
    fulls: list[FullReply] = []
    for number, case in enumerate(cases, 1):
        full = bench.full(case, number)
        fulls.append(full)
        rows.append(full_row(bench.subject, full))
        rows += [bench.row(arm, full) for arm in arms if usable(arm, case)]
        on_case(number)
    return rows, fulls


def measure(
    subject: Subject, plan: Plan, say: Callable[[str], None], *, min_segment_tokens: int = 64
) -> Fidelity:
    """Run the whole ladder.

    Args:
        say: gets a line now and then: what is done, and how long the rest will take.
    """
    started_s = time.monotonic()
    bench = Bench(subject, min_segment_tokens)
    cases = make_cases(plan.sizes, plan.strata)
    arms = (*MODE_ARMS, *CONTROL_ARMS)
    probe = bench.probe(Arm(DEFAULT))
    laws = algebra(subject, probe)
    norms = transition_norms(subject, probe, long_texts(plan.num_norms))
    prompts = [case.prompt(subject) for case in distinct_worlds(cases, plan.num_warm)]
    pure = purity(probe, prompts[: plan.num_pure])
    same = warm_cold(probe, prompts)
    say(f"{len(cases)} prompts in {len(arms) + 1} arms; lower rungs took "
        f"{time.monotonic() - started_s:.0f} s")  # fmt: skip
    rows, fulls = measure_rows(bench, cases, arms, _progress(say, len(cases)))
    chosen = {id(case) for case in distinct_worlds(cases, plan.num_drift)}
    few = [full for full in fulls if id(full.case) in chosen]
    drifts = tuple(drift(bench, drift_arms(), few))
    return Fidelity(
        model=subject.name,
        fingerprint=subject.fingerprint,
        seed=SEED,
        plan=plan,
        circumstances=circumstances(),
        seconds=round(time.monotonic() - started_s, 1),
        verdict=judge(norms, laws, pure, same, rows),
        norms=norms,
        laws=laws,
        purity=pure,
        warm_cold=same,
        summaries=tuple(summarise(rows)),
        drift=drifts,
        rows=tuple(rows),
    )


def _progress(say: Callable[[str], None], num_cases: int) -> Callable[[int], None]:
    """Tells the rest's time after the third case, and then at each quarter."""
    started_s = time.monotonic()
    marks = {3, *(math.ceil(num_cases * part / 4) for part in (1, 2, 3))}

    def on_case(number: int) -> None:
        if number in marks:
            each_s = (time.monotonic() - started_s) / number
            rest_s = each_s * (num_cases - number)
            say(f"{number} of {num_cases} prompts, about {rest_s:.0f} s to go")

    return on_case


def write_json(found: Fidelity, folder: Path) -> Path:
    """`fidelity.json`, and a line per prompt and arm in `fidelity_rows.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "fidelity.json"
    whole = asdict(found)
    rows = whole.pop("rows")
    path.write_text(json.dumps(finite(whole), indent=1) + "\n", encoding="utf-8")
    lines = "".join(json.dumps(finite(row)) + "\n" for row in rows)
    (folder / "fidelity_rows.jsonl").write_text(lines, encoding="utf-8")
    return path


def finite(value: object) -> object:
    """The same value with none for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value


def run_fidelity_bench(
    console: Console,
    *,
    model: str | None,
    quick: bool,
    folder: Path | None,
    device_name: str,
    per_count: int | None = None,
) -> bool:
    """Measure, print, write; whether every rung that must hold does (not: whether it qualifies).

    Args:
        per_count: worlds of each stratum and number of documents; none: the plan's.
    """
    subject = load_subject(model, device_name)
    check_reads(subject)
    plan = QUICK if quick else WHOLE
    if per_count is not None:
        plan = replace(plan, sizes=replace(plan.sizes, per_count=per_count))
    found = measure(subject, plan, lambda line: console.print(line, style="dim"))
    print_report(console, found)
    if folder is not None:
        console.print(f"written to {write_json(found, folder)}", style="dim")
    return found.verdict.rungs_hold
