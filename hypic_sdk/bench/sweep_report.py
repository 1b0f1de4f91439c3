"""From rows of a sweep to figures: what each setting costs and gives, and what follows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from hypic_sdk.bench.fidelity_arms import FULL, Row
from hypic_sdk.bench.report import Circumstances, write_whole
from hypic_sdk.bench.scores import Interval, bootstrap
from hypic_sdk.bench.svg_figure import Point, scatter

if TYPE_CHECKING:
    from rich.console import Console

ANCHORED = ", anchored"
BOTH_ENDS = {"4+4": "8", "8+8": "16", "16+16": "32"}  # the head alone with as many live tokens
LEAST_WORLDS = 20  # below it one odd prompt makes an interval
LEAST_GAIN = 0.05  # of the KL: what is less is sure at times, and never of use
# what is drawn over live tokens, and its name on the axis
FIGURES = {"em": "exact match", "top1": "top-1 agreement", "kl": "KL, nats a token"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting over all its prompts; differences are paired with the default seam's."""

    name: str
    em: Interval
    em_loss: Interval  # to full recompute
    kl: Interval
    top1: Interval
    em_more: Interval  # than the default
    kl_more: Interval
    live_tokens: float
    live_share: float
    num_worlds: int  # orders and duplicates of a world are drawn together
    num_cases: int  # planned prompts; `em` tells how many were measured


@dataclass(frozen=True, slots=True)
class Pair:
    """One setting against its like with as many live tokens, paired by prompt."""

    name: str
    other: str
    em_more: Interval
    kl_more: Interval


@dataclass(frozen=True, slots=True)
class Report:
    """What `sweep.json` holds."""

    model: str
    seed: int
    strata: tuple[str, ...]
    circumstances: Circumstances
    advice: str
    seams: list[Setting]
    anchored: list[Pair]  # behind the leading part, against the same without
    ends: list[Pair]  # head and tail, against the head alone
    shapes: dict[str, Setting]  # the default, by documents and their tokens


def settings(rows: Sequence[Row], default: str, num_cases: int) -> list[Setting]:
    """Rows as figures, one setting an arm, full recompute first."""
    full = {row.case: row for row in rows if row.arm == FULL}
    base = {row.case: row for row in rows if row.arm == default}
    found = []
    for arm in dict.fromkeys(row.arm for row in rows):
        own = [row for row in rows if row.arm == arm]
        worlds = [row.world for row in own]
        live = sum(row.live_tokens for row in own) / len(own)
        found.append(
            Setting(
                arm,
                bootstrap([row.em for row in own], worlds),
                bootstrap([row.em - full[row.case].em for row in own], worlds),
                bootstrap([row.kl for row in own], worlds),
                bootstrap([row.top1 for row in own], worlds),
                bootstrap([row.em - base[row.case].em for row in own], worlds),
                bootstrap([row.kl - base[row.case].kl for row in own], worlds),
                live,
                live / (sum(row.prompt_tokens for row in own) / len(own)),
                len(set(worlds)),
                num_cases,
            )
        )
    return found


def pairs(rows: Sequence[Row], likes: Mapping[str, str]) -> list[Pair]:
    """Every setting that has a like beside it, paired by prompt."""
    by_arm: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_arm.setdefault(row.arm, {})[row.case] = row
    found = []
    for name, other in likes.items():
        if name in by_arm and other in by_arm:
            own, like = list(by_arm[name].values()), by_arm[other]
            worlds = [row.world for row in own]
            em = bootstrap([row.em - like[row.case].em for row in own], worlds)
            kl = bootstrap([row.kl - like[row.case].kl for row in own], worlds)
            found.append(Pair(name, other, em, kl))
    return found


def anchored_pairs(rows: Sequence[Row]) -> list[Pair]:
    """Every anchored setting beside the same one that is not."""
    arms = dict.fromkeys(row.arm for row in rows)
    return pairs(rows, {a: a.removesuffix(ANCHORED) for a in arms if a.endswith(ANCHORED)})


def advice(found: Sequence[Setting], default: str) -> str:
    """What the default seam should be, as far as these figures carry; anchors are no seam."""
    found = [one for one in found if not one.name.endswith(ANCHORED)]
    base = next(one for one in found if one.name == default)
    if base.num_worlds < LEAST_WORLDS:
        return f"{base.num_worlds} worlds are too few to tell seams apart ({LEAST_WORLDS} are not)"
    better = [one for one in found[1:] if one.em_more.low > 0.0]
    cheaper = [
        one
        for one in found[1:]
        if one.live_tokens <= base.live_tokens + 0.5 and is_nearer(one.kl, one.kl_more)
    ]
    nearer = [one for one in found[1:] if is_nearer(one.kl, one.kl_more) and one not in cheaper]
    said = [
        f"surely more exact match than {default}: {_names(better)}",
        f"surely nearer to full recompute at no more live tokens: {_names(cheaper)}",
        f"surely nearer, for more live tokens: {_names(nearer)}",
    ]
    is_clear = bool(better) or bool(cheaper)
    said.append("a change of the default is clear" if is_clear else f"the default stays {default}")
    return "; ".join(said)


def is_nearer(kl: Interval, kl_more: Interval) -> bool:
    """Whether a KL is surely less than another one, and by enough to matter.

    Args:
        kl_more: its paired difference to the other.
    """
    other = kl.mean - kl_more.mean
    return kl_more.high < 0.0 and -kl_more.mean >= LEAST_GAIN * other


def _names(found: Sequence[Setting]) -> str:
    return ", ".join(one.name for one in found) or "none"


def report(
    model: str,
    seed: int,
    strata: tuple[str, ...],
    where: Circumstances,
    rows: Sequence[Row],
    num_cases: int,
    shapes: Mapping[str, Setting],
    default: str,
) -> Report:
    """Rows of seams as figures, beside what was found of shapes so far."""
    seams = settings(rows, default, num_cases)
    return Report(
        model=model,
        seed=seed,
        strata=strata,
        circumstances=where,
        advice=advice(seams, default),
        seams=seams,
        anchored=anchored_pairs(rows),
        ends=pairs(rows, BOTH_ENDS),
        shapes=dict(shapes),
    )


def prompts_of(one: Setting) -> str:
    """How many prompts were measured, of how many."""
    return f"{one.em.num_items} of {one.num_cases}"


def print_sweep(console: Console, found: Report) -> None:
    """Every table, then what follows."""
    title = f"seams (head, head+tail, share), {prompts_of(found.seams[0])} prompts"
    console.print(_settings_table(title, {one.name: one for one in found.seams}))
    console.print(_pairs_table("both ends against the head alone", found.ends))
    console.print(_pairs_table("behind the leading part, against the same without", found.anchored))
    console.print(_settings_table("the default seam by length and count", found.shapes))
    console.print(found.advice, highlight=False)


def _settings_table(title: str, found: Mapping[str, Setting]) -> Table:
    table = Table(
        "setting", "live tokens", "share", "EM", "to full", "KL", "EM to default",
        "KL to default", "prompts", title=title,
    )  # fmt: skip
    for name, one in found.items():
        table.add_row(
            name, f"{one.live_tokens:.0f}", f"{one.live_share:.0%}", one.em.text(100),
            one.em_loss.text(100), one.kl.text(1, 4), one.em_more.text(100),
            one.kl_more.text(1, 4), prompts_of(one),
        )  # fmt: skip
    return table


def _pairs_table(title: str, found: Sequence[Pair]) -> Table:
    table = Table("setting", "against", "EM to it", "KL to it", title=title)
    for one in found:
        table.add_row(one.name, one.other, one.em_more.text(100), one.kl_more.text(1, 4))
    return table


def write_sweep(found: Report, folder: Path) -> None:
    """`sweep.json` and its figures."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "sweep.json", json.dumps(asdict(found), indent=1) + "\n")
    for field, of in FIGURES.items():
        points = [_point(one, field) for one in found.seams[1:]]
        title = f"{of} by seam, {found.model}, {prompts_of(found.seams[0])} prompts"
        figure = scatter(points, title, "live tokens a prompt", of)
        (folder / f"sweep_{field}.svg").write_text(figure, encoding="utf-8")


def _point(one: Setting, field: str) -> Point:
    interval: Interval = getattr(one, field)
    return Point(one.name, one.live_tokens, interval.mean, interval.low, interval.high)
