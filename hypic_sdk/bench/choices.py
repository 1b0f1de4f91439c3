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
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hypic_sdk.bench.choices_report import print_results, report
from hypic_sdk.bench.choices_ways import QUICK_OFFSETS, Way, offset_arms, ways
from hypic_sdk.bench.chosen_live import ChosenAssembly
from hypic_sdk.bench.fidelity_arms import Bench, FullReply, Row, compared
from hypic_sdk.bench.fidelity_cases import SEED, CaseSizes, make_cases
from hypic_sdk.bench.fidelity_rows import measure_rows
from hypic_sdk.bench.kept_rows import KeptRows, TimeLimit
from hypic_sdk.bench.live_choices import Scene
from hypic_sdk.bench.report import circumstances
from hypic_sdk.bench.subject import check_reads, load_subject

if TYPE_CHECKING:
    from rich.console import Console

# where the answer hangs on more than one segment: elsewhere there is little to lower
STRATA = ("two documents", "latest wins", "tally", "mentioned first")


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


def run_choices_bench(
    console: Console, *, model: str | None, quick: bool, per_count: int | None,
    folder: Path | None, seconds: float | None, device_name: str,
) -> None:  # fmt: skip
    """Measure, print, and write `choices.json`.

    Args:
        per_count: worlds of each stratum; none: 12, quick 5.
        folder: rows are written as they come, and those of an earlier run there are not run again.
        seconds: about what it may take; later prompts are then left out.
    """
    limit = TimeLimit(seconds)
    subject = load_subject(model, device_name)
    check_reads(subject)
    bench = Bench(subject)
    chosen = [way for way in ways() if way.is_quick or not quick]
    arms = [arm for arm in offset_arms() if arm.name in QUICK_OFFSETS or not quick]
    sizes = CaseSizes(per_count or (5 if quick else 12), (4,), (100,), 1)
    cases = make_cases(sizes, STRATA)
    where = circumstances()
    about = {"fingerprint": subject.fingerprint, "seed": SEED, "sizes": repr((sizes, quick))}
    about |= {"device": str(subject.device), "commit": where.commit}
    kept = KeptRows(None if folder is None else folder / "choices_rows.jsonl", about)

    def say(line: str) -> None:
        console.print(line, style="dim", highlight=False)

    def rows_for(full: FullReply) -> Iterator[Row]:
        yield from choice_rows(bench, full, chosen)
        for arm in arms:
            yield bench.row(arm, full)

    say(f"{len(cases)} prompts, {len(chosen)} choices, {len(arms) - 1} offsets")
    rows = measure_rows(bench, cases, rows_for, kept, say, limit=limit)
    body = report(subject.name, rows, len(cases), where)
    print_results(console, body.choices, body.offsets)
    console.print(f"surely better than chance and than a fixed seam: {body.paying}")
    console.print(f"{body.num_prompts} prompts of {len(cases)}, seed {SEED}; {where}", style="dim")
    if folder is not None:
        text = json.dumps(asdict(body), indent=1) + "\n"
        (folder / "choices.json").write_text(text, encoding="utf-8")
