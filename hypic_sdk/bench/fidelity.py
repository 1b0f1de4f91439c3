"""What reuse costs, rung by rung (design 12), and whether the model can tell at all.

Everything goes through the engine: its modes, its store, its kernels.  The first lines say whether
the model qualifies as a judge.  One that does not is still measured; its small losses then prove
little, and the report says so.

What is told first is measured first, and written after every rung: a run that is cut off is a
smaller run, and one with the same folder goes on with its rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from hypic_sdk.bench.fidelity_arms import CONTROL_ARMS, DEFAULT, MODE_ARMS, Arm, Bench, Row
from hypic_sdk.bench.fidelity_bits import WarmCold, warm_cold
from hypic_sdk.bench.fidelity_cases import (
    SEED,
    STRATA,
    Case,
    CaseSizes,
    long_texts,
    make_cases,
    with_more,
)
from hypic_sdk.bench.fidelity_rows import Say, arm_rows, measure_rows, rows_of
from hypic_sdk.bench.fidelity_rungs import (
    Law,
    LayerDrift,
    Norms,
    Purity,
    algebra,
    distinct_worlds,
    drift,
    drift_arms,
    first_layer_bounds,
    purity,
    transition_norms,
)
from hypic_sdk.bench.fidelity_tables import print_report
from hypic_sdk.bench.fidelity_verdict import Summary, Verdict, judge, summarise
from hypic_sdk.bench.kept_rows import KeptRows, TimeLimit, finite
from hypic_sdk.bench.report import Circumstances, circumstances, write_whole
from hypic_sdk.bench.subject import Subject, check_reads, load_subject
from hypic_sdk.config import Determinism

if TYPE_CHECKING:
    from rich.console import Console

QUICK_STRATA = ("one document, trained sentences", "two documents", "latest wins", "tally",
                "mentioned first", "turned last")  # fmt: skip
# until which share of a limited time new prompts are begun: rows, then L2 in each determinism
ROWS_SHARE, BITS_SHARES = 0.55, (0.85, 0.93)
WRITE_S = 60.0  # and at least so often while rows are measured


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
WHOLE = Plan(CaseSizes(4, (2, 4, 8, 16), (100, 180), 2), tuple(STRATA), 8, 500, 24, 16)


@dataclass(frozen=True, slots=True)
class Fidelity:
    """All that one run found; a rung that it did not reach is none or empty."""

    model: str
    fingerprint: str
    seed: int
    plan: Plan
    circumstances: Circumstances
    seconds: float
    num_cases: int  # planned prompts of L3 to L5; rows tell how many were measured
    verdict: Verdict
    norms: Norms | None
    laws: tuple[Law, ...]
    purity: Purity | None
    warm_cold: tuple[WarmCold, ...]
    summaries: tuple[Summary, ...]
    drift: tuple[LayerDrift, ...]
    rows: tuple[Row, ...]


@final
@dataclass(slots=True)
class Run:
    """One run over the ladder: what it has found so far, and where that goes."""

    subject: Subject
    plan: Plan
    say: Say
    folder: Path | None
    limit: TimeLimit
    min_segment_tokens: int
    cases: list[Case] = field(default_factory=list)
    laws: tuple[Law, ...] = ()
    norms: Norms | None = None
    purity: Purity | None = None
    rows: list[Row] = field(default_factory=list)
    bits: list[WarmCold] = field(default_factory=list)
    drift: list[LayerDrift] = field(default_factory=list)
    _written_s: float = 0.0

    def climb(self) -> Fidelity:
        """Every rung, the one that says most first."""
        self.cases = make_cases(self.plan.sizes, self.plan.strata)
        bench = Bench(self.subject, self.min_segment_tokens)
        for name in ("fidelity_rows.jsonl", "fidelity_bits.jsonl"):
            # those of another run are refused before anything is measured, or written over
            self._kept(name, self.plan.sizes, self.plan.strata)
        self._lower(bench)
        self._scores(bench)
        self._bits()
        chosen = distinct_worlds(self.cases, self.plan.num_drift)
        self.drift += drift(bench, drift_arms(), chosen, self.limit.is_over)
        self._tell("drift by layer")
        return self.found()

    def _lower(self, bench: Bench) -> None:
        """L0, the norms, L1."""
        probe = bench.probe(Arm(DEFAULT))
        self.laws = algebra(self.subject, probe)
        self.norms = transition_norms(self.subject, probe, long_texts(self.plan.num_norms))
        few = distinct_worlds(self.cases, self.plan.num_pure)
        self.purity = purity(probe, [case.prompt(self.subject) for case in few])
        probe.engine.clear()
        self._tell("L0, norms and L1")

    def _scores(self, bench: Bench) -> None:
        """L3, L4 and L5."""
        arms = (*MODE_ARMS, *CONTROL_ARMS)
        self.say(f"L3 to L5: {len(self.cases)} prompts in {len(arms) + 1} arms")
        kept = self._kept("fidelity_rows.jsonl", self.plan.sizes, self.plan.strata)

        def on_case(number: int) -> None:
            if self.limit.passed_s - self._written_s > WRITE_S:
                self.rows = list(rows_of(kept))
                self._write()

        self.rows = measure_rows(
            bench, self.cases, arm_rows(bench, arms), kept, self.say,
            limit=self.limit, share=ROWS_SHARE, on_case=on_case,
        )  # fmt: skip
        self._tell("L3, L4 and L5")

    def _bits(self) -> None:
        """L2, where bits must be equal, and in the device's default besides."""
        prompts = [case.prompt(self.subject) for case in warm_cases(self.plan)]
        kept = self._kept("fidelity_bits.jsonl", self.plan.sizes, self.plan.strata)
        modes = (Determinism.ALL, None) if self.subject.device.type != "cpu" else (None,)
        for mode, share in zip(modes, BITS_SHARES[-len(modes) :], strict=True):
            probe = self.subject.probe(min_segment_tokens=self.min_segment_tokens, determinism=mode)
            self.say(
                f"L2: {len(prompts)} prompts, deterministic={mode.value if mode else 'default'}"
            )
            self.bits.append(warm_cold(probe, prompts, kept, limit=self.limit, share=share))
            self._tell(f"L2 of {self.bits[-1].num_prompts} prompts")

    def _kept(self, name: str, *about: object) -> KeptRows:
        return KeptRows(
            None if self.folder is None else self.folder / name,
            {
                "fingerprint": self.subject.fingerprint,
                "device": str(self.subject.device),
                "seed": SEED,
                "least": self.min_segment_tokens,
                "commit": circumstances(self.subject.device).commit,
                "sizes": repr(about),
            },
        )

    def _tell(self, rung: str) -> None:
        self.say(f"{rung}: done, {self.limit.passed_s:.0f} s so far")
        self._write()

    def _write(self) -> None:
        if self.folder is not None:
            write_json(self.found(), self.folder)
        self._written_s = self.limit.passed_s

    def found(self) -> Fidelity:
        """All so far, and what follows from it."""
        return Fidelity(
            model=self.subject.name,
            fingerprint=self.subject.fingerprint,
            seed=SEED,
            plan=self.plan,
            circumstances=circumstances(self.subject.device),
            seconds=round(self.limit.passed_s, 1),
            num_cases=len(self.cases),
            verdict=judge(
                self.norms,
                self.laws,
                self.purity,
                self.bits,
                self.rows,
                self.plan.strata,
                drift=self.drift,
                first_layer=first_layer_bounds(self.subject),
            ),
            norms=self.norms,
            laws=self.laws,
            purity=self.purity,
            warm_cold=tuple(self.bits),
            summaries=tuple(summarise(self.rows)),
            drift=tuple(self.drift),
            rows=tuple(self.rows),
        )


def warm_cases(plan: Plan) -> list[Case]:
    """The prompts of L2: as many worlds as are asked for, each once."""
    kinds = len(plan.strata) * len(plan.sizes.counts)
    sizes = replace(plan.sizes, per_count=math.ceil(plan.num_warm / kinds), num_orders=1)
    return distinct_worlds(make_cases(sizes, plan.strata), plan.num_warm)


def measure(
    subject: Subject,
    plan: Plan,
    say: Say,
    *,
    min_segment_tokens: int = 64,
    folder: Path | None = None,
    seconds: float | None = None,
) -> Fidelity:
    """Run the ladder.

    Args:
        say: gets a line now and then: what is done, and how long the rest will take.
        folder: where the report is written after every rung, and rows as they come.
        seconds: about what all of it may take; then the later prompts of each rung are left out.
    """
    return Run(subject, plan, say, folder, TimeLimit(seconds), min_segment_tokens).climb()


def write_json(found: Fidelity, folder: Path) -> Path:
    """`fidelity.json`: all but the rows."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {name: value for name, value in asdict(found).items() if name != "rows"}
    return write_whole(folder / "fidelity.json", json.dumps(finite(whole), indent=1) + "\n")


def run_fidelity_bench(
    console: Console,
    *,
    model: str | None,
    quick: bool,
    folder: Path | None,
    device_name: str,
    per_count: int | None = None,
    seconds: float | None = None,
    strata: Sequence[str] = (),
) -> bool:
    """Measure, print, write; whether every rung that must hold does (not: whether it qualifies).

    Args:
        per_count: worlds of each stratum and number of documents; none: the plan's.
        seconds: about what all of it may take.
        strata: those asked for besides the plan's, by name.
    Raises:
        ConfigError: a name that is no stratum's.
    """
    plan = QUICK if quick else WHOLE
    plan = replace(plan, strata=with_more(plan.strata, strata))
    subject = load_subject(model, device_name)
    check_reads(subject)
    if per_count is not None:
        plan = replace(plan, sizes=replace(plan.sizes, per_count=per_count))
    found = measure(
        subject, plan, lambda line: console.print(line, style="dim", highlight=False),
        folder=folder, seconds=seconds,
    )  # fmt: skip
    print_report(console, found)
    if folder is not None:
        console.print(f"written to {folder / 'fidelity.json'}", style="dim")
    return found.verdict.rungs_hold
