"""What each setting of reuse costs and gives: seams, stored precision, segment length and count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from hypic_sdk.bench.fidelity_arms import DEFAULT, Arm, Bench, Row
from hypic_sdk.bench.fidelity_cases import SEED, CaseSizes, make_cases, with_more
from hypic_sdk.bench.fidelity_rows import Say, arm_rows, measure_rows, rows_of
from hypic_sdk.bench.kept_rows import KeptRows, TimeLimit
from hypic_sdk.bench.report import circumstances
from hypic_sdk.bench.subject import check_reads, load_subject
from hypic_sdk.bench.sweep_report import (
    ANCHORED,
    Report,
    Setting,
    print_sweep,
    report,
    settings,
    write_sweep,
)
from hypic_sdk.config import MIB, SeamRule

if TYPE_CHECKING:
    from rich.console import Console

STRATA = ("one document, trained sentences", "two documents", "latest wins", "tally",
          "mentioned first")  # fmt: skip
DEFAULT_SEAM = "8"
# head only; both ends; tail only (the head is widened to what the conv needs); shares of a segment
SEAMS = ("0", "4", "8", "16", "32", "4+4", "8+8", "16+16", "0+8", "5%", "10%", "20%")
ANCHORED_SEAMS = ("0", "8", "8+8", "16")  # behind the leading part, at the same live tokens
# (documents, tokens of each): length at one count, count at one length
SHAPES = ((4, 80), (4, 160), (4, 320), (2, 120), (8, 120))
MIN_SEGMENT_TOKENS = 48  # so that a seam of 16+16 leaves an interior in the shortest documents
SEAMS_SHARE = 0.7  # of a limited time; shapes have the rest, each as much
BUDGET_BYTES = 48 * MIB  # of each setting's engine: they all stand at once
WRITE_EVERY = 10  # prompts


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    per_count: int  # worlds of each stratum, and of each shape
    arms: tuple[str, ...]  # of `seam_arms`; none: all
    shapes: tuple[tuple[int, int], ...]  # documents, tokens of each
    strata: tuple[str, ...] = STRATA


WHOLE = Sizes(6, (), SHAPES)
QUICK = Sizes(2, ("none", "0", "8", "16", "8+8", "8, anchored"), ((4, 80), (2, 120)))


def seam_arms() -> list[Arm]:
    """Every seam, one without any; the default in other precisions, and anchored."""
    arms = [Arm(seam, seam=SeamRule.parse(seam)) for seam in SEAMS]
    plain = Arm("none", "transition_rope")
    kept = [Arm("8, fp32 transition", pair="float32"), Arm("8, int8 pair", pair="int8")]
    anchored = [
        replace(plain, name=plain.name + ANCHORED, anchored=True),
        *(
            Arm(seam + ANCHORED, seam=SeamRule.parse(seam), anchored=True)
            for seam in ANCHORED_SEAMS
        ),
    ]
    return [plain, *arms, *kept, *anchored]


@final
@dataclass(slots=True)
class Sweep:
    """One run: what it has found so far, and where that goes."""

    bench: Bench
    sizes: Sizes
    say: Say
    folder: Path | None
    limit: TimeLimit
    rows: Sequence[Row] = ()  # of seams
    num_cases: int = 0
    shapes: dict[str, Setting] = field(default_factory=dict)

    def measure(self) -> Report:
        """Seams, then shapes."""
        self._measure_seams()
        self._write()
        for at, (count, tokens) in enumerate(self.sizes.shapes, 1):
            name = f"{count} documents of about {tokens} tokens"
            self.say(name)
            rest = (1.0 - SEAMS_SHARE) * at / len(self.sizes.shapes)
            self.shapes[name] = self._measured_shape(count, tokens, SEAMS_SHARE + rest)
            self._write()
        return self.found()

    def _measure_seams(self) -> None:
        arms = [arm for arm in seam_arms() if arm.name in self.sizes.arms or not self.sizes.arms]
        sizes = CaseSizes(self.sizes.per_count, (4,), (100, 180), 1)
        cases = make_cases(sizes, self.sizes.strata)
        self.num_cases = len(cases)
        self.say(f"seams: {len(cases)} prompts in {len(arms)} settings")
        kept = self._kept("sweep_rows.jsonl")

        def on_case(number: int) -> None:
            if number % WRITE_EVERY == 0:
                self.rows = list(rows_of(kept))
                self._write()

        self.rows = measure_rows(
            self.bench, cases, arm_rows(self.bench, arms), kept, self.say, limit=self.limit,
            share=SEAMS_SHARE, on_case=on_case,
        )  # fmt: skip

    def _measured_shape(self, count: int, tokens: int, share: float) -> Setting:
        """The default seam over segments of one length and count."""
        sizes = CaseSizes(self.sizes.per_count, (count,), (tokens,), 1)
        cases = make_cases(sizes, self.sizes.strata)
        rows = measure_rows(
            self.bench, cases, arm_rows(self.bench, [Arm(DEFAULT)]),
            self._kept(f"sweep_{count}x{tokens}.jsonl"), self.say, limit=self.limit, share=share,
        )  # fmt: skip
        return settings(rows, DEFAULT, len(cases))[-1]

    def _kept(self, name: str) -> KeptRows:
        subject = self.bench.subject
        about = {"fingerprint": subject.fingerprint, "seed": SEED, "sizes": repr(self.sizes)}
        about |= {"device": str(subject.device), "commit": circumstances(subject.device).commit}
        return KeptRows(None if self.folder is None else self.folder / name, about)

    def _write(self) -> None:
        if self.folder is not None:
            write_sweep(self.found(), self.folder)

    def found(self) -> Report:
        """All so far, and what follows from it."""
        subject = self.bench.subject
        return report(
            subject.name, SEED, self.sizes.strata, circumstances(subject.device), self.rows,
            self.num_cases, self.shapes, DEFAULT_SEAM,
        )  # fmt: skip


def run_sweep_bench(
    console: Console, *, model: str | None, quick: bool, per_count: int | None,
    folder: Path | None, seconds: float | None, device_name: str, strata: Sequence[str] = (),
) -> None:  # fmt: skip
    """Measure, print, and write `sweep.json` with its figures, seams first.

    Args:
        per_count: worlds of each stratum (for shapes: of each shape too); none: the plan's.
        folder: rows are written as they come, and those of an earlier run there are not run again.
        seconds: about what it may take; the later prompts of each part are then left out.
        strata: those asked for besides the plan's, by name.
    Raises:
        ConfigError: a name that is no stratum's.
    """
    limit = TimeLimit(seconds)
    sizes = QUICK if quick else WHOLE
    sizes = replace(sizes, per_count=per_count or sizes.per_count, strata=with_more(STRATA, strata))
    subject = load_subject(model, device_name)
    check_reads(subject)

    def say(line: str) -> None:
        console.print(line, style="dim", highlight=False)

    bench = Bench(replace(subject, budget_bytes=BUDGET_BYTES), MIN_SEGMENT_TOKENS)
    found = Sweep(bench, sizes, say, folder, limit).measure()
    print_sweep(console, found)
    console.print(f"{found.circumstances}, {limit.passed_s:.0f} s, seed {SEED}", style="dim")
