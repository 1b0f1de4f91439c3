"""Does it pay to choose what runs live?  Seams that follow attention, refreshed interiors; and how
wrong an offset may be before it shows.

A choice by attention needs a first pass: the prompt under default seams, to see what the trailing
part attends to.  Its live tokens are counted.  Each choice stands beside the like choice by chance
(does attention know anything?), and beside the widest fixed seam that costs no more (does it pay?).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch

from hypic_sdk.bench.choices_report import Report, print_results, report
from hypic_sdk.bench.choices_ways import QUICK_OFFSETS, Way, offset_arms, ways
from hypic_sdk.bench.chosen_live import ChosenAssembly
from hypic_sdk.bench.fidelity_arms import Arm, Bench, FullReply, Row, compared
from hypic_sdk.bench.fidelity_cases import SEED, Case, CaseSizes, make_cases, with_more
from hypic_sdk.bench.fidelity_rows import Say, measure_rows, rows_of
from hypic_sdk.bench.kept_rows import KeptRows, TimeLimit
from hypic_sdk.bench.live_choices import Scene
from hypic_sdk.bench.report import circumstances, write_whole
from hypic_sdk.bench.subject import check_reads, load_subject

if TYPE_CHECKING:
    from rich.console import Console

# where the answer hangs on more than one segment: elsewhere there is little to lower
STRATA = ("two documents", "latest wins", "tally", "mentioned first")
WRITE_EVERY = 10  # prompts


def scene_of(assembly: ChosenAssembly, full: FullReply) -> Scene:
    """What choices may look at, the first pass included."""
    blind = Scene(
        assembly.prompt.num_tokens,
        assembly.segments,
        torch.zeros(assembly.prompt.num_tokens, dtype=torch.float64),
        full.case.gold,
        f"{SEED}/{full.number}",
    )
    return replace(blind, mass_N=assembly.trailing_mass(blind.base()))


def choice_rows(bench: Bench, full: FullReply, chosen: Sequence[Way]) -> Iterator[Row]:
    """One case under every choice; where the reply differs, F1 and ROUGE-L are not known."""
    subject = bench.subject
    assembly = ChosenAssembly(subject.model, full.case.prompt(subject), subject.device)
    scene = scene_of(assembly, full)
    right = subject.tokenizer.encode_text(full.case.answer)
    for way in chosen:
        if way.needs_gold and not full.case.gold:
            continue
        live_N = way.choice(scene)
        logits_NV = assembly.force(live_N, full.token_ids)
        row = compared(
            subject, way.name, full, logits_NV, full.token_ids, prompt_tokens=scene.num_tokens,
            live_tokens=int(live_N.sum()),
        )  # fmt: skip
        if row.top1 < 1.0:
            # another reply than full recompute's: all that is asked of it is whether it is right
            is_right = right != full.token_ids and assembly.says(live_N, right)
            row = replace(row, em=float(is_right), f1=math.nan, rouge_l=math.nan, same_reply=False)
        yield row


@final
@dataclass(frozen=True, slots=True)
class Choices:
    """One run: what is compared over which prompts, and where the rows go."""

    bench: Bench
    chosen: tuple[Way, ...]
    arms: tuple[Arm, ...]  # the default, then wrong offsets
    cases: list[Case]
    kept: KeptRows
    folder: Path | None

    def measure(self, say: Say, limit: TimeLimit) -> Report:
        """Every prompt under every choice and offset; the report is written now and then."""
        say(f"{len(self.cases)} prompts, {len(self.chosen)} choices, {len(self.arms) - 1} offsets")

        def on_case(number: int) -> None:
            if number % WRITE_EVERY == 0:
                self._written(list(rows_of(self.kept)))

        return self._written(
            measure_rows(
                self.bench, self.cases, self._rows, self.kept, say, limit=limit, on_case=on_case
            )
        )

    def _rows(self, full: FullReply) -> Iterator[Row]:
        yield from choice_rows(self.bench, full, self.chosen)
        for arm in self.arms:
            yield self.bench.row(arm, full)

    def _written(self, rows: Sequence[Row]) -> Report:
        subject = self.bench.subject
        body = report(subject.name, rows, len(self.cases), circumstances(subject.device))
        if self.folder is not None:
            text = json.dumps(asdict(body), indent=1) + "\n"
            write_whole(self.folder / "choices.json", text)
        return body


def run_choices_bench(
    console: Console, *, model: str | None, quick: bool, per_count: int | None,
    folder: Path | None, seconds: float | None, device_name: str, strata: Sequence[str] = (),
) -> None:  # fmt: skip
    """Measure, print, and write `choices.json`.

    Args:
        per_count: worlds of each stratum; none: 12, quick 5.
        folder: rows are written as they come, and those of an earlier run there are not run again.
        seconds: about what it may take; later prompts are then left out.
        strata: those asked for besides the plan's, by name.
    Raises:
        ConfigError: a name that is no stratum's.
    """
    limit = TimeLimit(seconds)
    wanted = with_more(STRATA, strata)
    subject = load_subject(model, device_name)
    check_reads(subject)
    sizes = CaseSizes(per_count or (5 if quick else 12), (4,), (100,), 1)
    about = {"fingerprint": subject.fingerprint, "seed": SEED}
    about |= {"sizes": repr((sizes, quick, wanted)), "device": str(subject.device)}
    about |= {"commit": circumstances(subject.device).commit}
    run = Choices(
        Bench(subject),
        tuple(way for way in ways() if way.is_quick or not quick),
        tuple(arm for arm in offset_arms() if arm.name in QUICK_OFFSETS or not quick),
        make_cases(sizes, wanted),
        KeptRows(None if folder is None else folder / "choices_rows.jsonl", about),
        folder,
    )
    body = run.measure(lambda line: console.print(line, style="dim", highlight=False), limit)
    print_results(console, body.choices, body.offsets)
    console.print(f"surely better than chance and than a fixed seam: {body.paying}")
    told = f"{body.num_prompts} of {body.num_cases} prompts, {limit.passed_s:.0f} s, seed {SEED}"
    console.print(f"{told}; {body.circumstances}", style="dim")
