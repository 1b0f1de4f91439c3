"""A fidelity report on the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from hypic_sdk.bench.fidelity_verdict import ALL, Check, Verdict

if TYPE_CHECKING:
    from rich.console import Console

    from hypic_sdk.bench.fidelity import Fidelity


def headline(verdict: Verdict) -> str:
    """What may be concluded, in a sentence."""
    if not verdict.qualifies:
        return (
            "THIS MODEL DOES NOT QUALIFY AS A JUDGE: small losses below prove little, since it "
            "would hardly notice bad reuse either"
        )
    if not verdict.sees_all_controls:
        return "THE BENCH IS TOO WEAK HERE: a planted fault passed for the default"
    return "the model qualifies as a judge, and every planted fault was seen"


def _checks(title: str, checks: tuple[Check, ...]) -> Table:
    table = Table("what", "measured", "wanted", "", title=title)
    for check in checks:
        verdict = "[green]yes[/]" if check.passed else "[red]NO[/]"
        table.add_row(check.name, check.measured, check.wanted, verdict)
    return table


def _scores(found: Fidelity) -> Table:
    table = Table(
        "arm", "EM", "EM, paired", "F1, paired", "ROUGE-L, paired", "KL", "KL p99", "top-1",
        "same reply", "live", title="L3 and L4 against full recompute: points, nats a token",
    )  # fmt: skip
    for one in found.summaries:
        if one.stratum == ALL:
            table.add_row(
                one.arm, one.em.text(100), one.em_loss.text(100), one.f1_loss.text(100),
                one.rouge_l_loss.text(100), one.kl.text(1, 4), f"{one.kl_p99:.3f}",
                f"{one.top1:.1%}", f"{one.same_reply:.1%}",
                f"{one.live_tokens:.0f} of {one.prompt_tokens:.0f}",
            )  # fmt: skip
    return table


def _strata(found: Fidelity) -> Table:
    names = [one for one in dict.fromkeys(s.stratum for s in found.summaries) if one != ALL]
    table = Table("arm", *names, title="exact match by what the answer hangs on")
    by_place = {(one.arm, one.stratum): one for one in found.summaries}
    for arm in dict.fromkeys(one.arm for one in found.summaries):
        cells = [by_place.get((arm, name)) for name in names]
        texts = ["-" if one is None else f"{100 * one.em.mean:.0f}" for one in cells]
        table.add_row(arm, *texts)
    counts = [
        next((str(s.em.num_items) for s in found.summaries if s.stratum == name), "0")
        for name in names
    ]
    table.add_row("prompts", *counts, style="dim")
    return table


def _drift(found: Fidelity) -> Table:
    layers = sorted({one.layer for one in found.drift})
    table = Table(
        "arm", "attention", *(f"layer {layer}" for layer in layers),
        title="state after the reply, relative L2 to full recompute (angle), medians",
    )  # fmt: skip
    for arm, attention in dict.fromkeys((one.arm, one.attention) for one in found.drift):
        own = [one for one in found.drift if (one.arm, one.attention) == (arm, attention)]
        cells = [f"{one.relative_l2:.1e} ({one.degrees:.1f}°)" for one in own]
        table.add_row(arm, "yes" if attention else "silenced", *cells)
    return table


def print_report(console: Console, found: Fidelity) -> None:
    """The verdict first, then every rung."""
    verdict = found.verdict
    console.print(headline(verdict), style="bold", highlight=False)
    console.print(_checks("does the model qualify?", verdict.qualification))
    console.print(_checks("rungs", (*verdict.rungs, *verdict.targets)))
    console.print(_checks("L5: controls, each of which must be seen", verdict.controls))
    for table in (_scores(found), _strata(found), _drift(found)):
        console.print(table)
    num_prompts = max((one.em.num_items for one in found.summaries), default=0)
    console.print(f"{num_prompts} of {found.num_cases} prompts", style="dim")
    console.print(f"{found.circumstances}, {found.seconds:.0f} s, seed {found.seed}", style="dim")
