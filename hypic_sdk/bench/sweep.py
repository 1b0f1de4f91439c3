"""What each setting of reuse costs and gives: seams, stored precision, segment length and count."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from hypic_sdk.bench.fidelity_arms import DEFAULT, Arm, Bench, Row, full_row
from hypic_sdk.bench.fidelity_cases import Case, CaseSizes, make_cases
from hypic_sdk.bench.report import circumstances
from hypic_sdk.bench.scores import Interval, bootstrap
from hypic_sdk.bench.subject import Subject, check_reads, load_subject
from hypic_sdk.bench.svg_figure import Point, scatter
from hypic_sdk.config import SeamRule

if TYPE_CHECKING:
    from rich.console import Console

STRATA = ("one document, trained sentences", "two documents", "latest wins", "tally",
          "mentioned first")  # fmt: skip
DEFAULT_SEAM = "8"
# head only; both ends; tail only (the head is widened to what the conv needs); shares of a segment
SEAMS = ("0", "4", "8", "16", "32", "4+4", "8+8", "16+16", "0+8", "5%", "10%", "20%")
ANCHORED_SEAMS = ("0", "8", "8+8", "16")  # behind the leading part, at the same live tokens
ANCHORED = ", anchored"
# (documents, tokens of each): length at one count, count at one length
SHAPES = ((4, 80), (4, 160), (4, 320), (2, 120), (8, 120))
MIN_SEGMENT_TOKENS = 48  # so that a seam of 16+16 leaves an interior in the shortest documents


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting over all its prompts; differences are paired with the default seam's."""

    name: str
    em: Interval
    em_loss: Interval  # to full recompute
    kl: Interval
    em_more: Interval  # than the default
    kl_more: Interval
    live_tokens: float
    live_share: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Segments behind the leading part, against the same setting without."""

    name: str
    em_more: Interval
    kl_more: Interval


def seam_arms() -> list[Arm]:
    """Every seam, one without any; the default with fp32 transitions, and anchored."""
    arms = [Arm(seam, seam=SeamRule.parse(seam)) for seam in SEAMS]
    plain = Arm("none", "transition_rope")
    precise = Arm("8, fp32 transition", transition_dtype="float32")
    anchored = [
        replace(plain, name=plain.name + ANCHORED, anchored=True),
        *(
            Arm(seam + ANCHORED, seam=SeamRule.parse(seam), anchored=True)
            for seam in ANCHORED_SEAMS
        ),
    ]
    return [plain, *arms, precise, *anchored]


def measure_arms(
    subject: Subject, cases: Sequence[Case], arms: Sequence[Arm], say: Callable[[str], None]
) -> list[Row]:
    """Every case in every arm, arm by arm; an arm's engine is given back after it."""
    bench = Bench(subject, MIN_SEGMENT_TOKENS)
    fulls = [bench.full(case, number) for number, case in enumerate(cases)]
    say(f"full recompute of {len(cases)} prompts is done")
    rows = [full_row(subject, full) for full in fulls]
    for arm in arms:
        rows += [bench.row(arm, full) for full in fulls]
        bench.drop(arm)
        say(f"{arm.name} is done")
    return rows


def settings(rows: Sequence[Row], default: str) -> list[Setting]:
    """Rows as figures, one setting an arm."""
    full = {row.case: row for row in rows if row.arm == rows[0].arm}
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
                bootstrap([row.em - base[row.case].em for row in own], worlds),
                bootstrap([row.kl - base[row.case].kl for row in own], worlds),
                live,
                live / (sum(row.prompt_tokens for row in own) / len(own)),
            )
        )
    return found


def anchored_pairs(rows: Sequence[Row]) -> list[Pair]:
    """Every anchored setting beside its like, paired by prompt."""
    by_arm: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_arm.setdefault(row.arm, {})[row.case] = row
    pairs = []
    for name in by_arm:
        plain = by_arm.get(name.removesuffix(ANCHORED))
        if not name.endswith(ANCHORED) or plain is None:
            continue
        own = list(by_arm[name].values())
        worlds = [row.world for row in own]
        pairs.append(
            Pair(
                name,
                bootstrap([row.em - plain[row.case].em for row in own], worlds),
                bootstrap([row.kl - plain[row.case].kl for row in own], worlds),
            )
        )
    return pairs


def advice(found: Sequence[Setting], default: str) -> str:
    """What the default seam should be, as far as these figures carry; anchors are no seam."""
    found = [one for one in found if not one.name.endswith(ANCHORED)]
    base = next(one for one in found if one.name == default)
    better = [one for one in found[1:] if one.em_more.low > 0.0]
    cheaper = [
        one
        for one in found[1:]
        if one.live_tokens <= base.live_tokens + 0.5 and one.kl_more.high < 0.0
    ]
    nearer = [one for one in found[1:] if one.kl_more.high < 0.0 and one not in cheaper]
    said = [
        f"surely more exact match than {default}: {_names(better)}",
        f"surely nearer to full recompute at no more live tokens: {_names(cheaper)}",
        f"surely nearer, for more live tokens: {_names(nearer)}",
    ]
    is_clear = bool(better) or bool(cheaper)
    said.append("a change of the default is clear" if is_clear else f"the default stays {default}")
    return "; ".join(said)


def _names(found: Sequence[Setting]) -> str:
    return ", ".join(one.name for one in found) or "none"


def shape_rows(
    subject: Subject, per_count: int, say: Callable[[str], None]
) -> dict[str, list[Row]]:
    """The default seam over segments of several lengths and counts."""
    found = {}
    for count, tokens in SHAPES:
        cases = make_cases(CaseSizes(per_count, (count,), (tokens,), 1), STRATA)
        name = f"{count} documents of about {tokens} tokens"
        found[name] = measure_arms(subject, cases, [Arm(DEFAULT)], lambda _: None)
        say(f"{name} is done")
    return found


def table_of(found: Sequence[Setting], title: str) -> Table:
    """Settings as a table."""
    table = Table(
        "setting", "live tokens", "share", "EM", "to full", "KL", "EM to default",
        "KL to default", title=title,
    )  # fmt: skip
    for one in found:
        table.add_row(
            one.name, f"{one.live_tokens:.0f}", f"{one.live_share:.0%}", one.em.text(100),
            one.em_loss.text(100), one.kl.text(1, 4), one.em_more.text(100),
            one.kl_more.text(1, 4),
        )  # fmt: skip
    return table


def pairs_table(pairs: Sequence[Pair]) -> Table:
    """Pairs as a table."""
    table = Table("setting", "EM to the same without", "KL to it", title="behind the leading part")
    for one in pairs:
        table.add_row(one.name, one.em_more.text(100), one.kl_more.text(1, 4))
    return table


def run_sweep_bench(
    console: Console, *, model: str | None, per_count: int, folder: Path | None, device_name: str
) -> None:
    """Measure, print, and write `sweep.json` with its figures."""
    subject = load_subject(model, device_name)
    check_reads(subject)

    def say(line: str) -> None:
        console.print(line, style="dim")

    cases = make_cases(CaseSizes(per_count, (4,), (100, 180), 1), STRATA)
    rows = measure_arms(subject, cases, seam_arms(), say)
    seams, pairs = settings(rows, DEFAULT_SEAM), anchored_pairs(rows)
    shapes = {
        name: settings(rows, DEFAULT)[-1]
        for name, rows in shape_rows(subject, per_count, say).items()
    }
    console.print(table_of(seams, f"seams (head, head+tail, share), {len(cases)} prompts"))
    console.print(pairs_table(pairs))
    console.print(table_of(list(shapes.values()), "the default, in the order below"))
    console.print("; ".join(shapes))
    told = advice(seams, DEFAULT_SEAM)
    console.print(told, highlight=False)
    console.print(str(circumstances()), style="dim")
    if folder is not None:
        _write(folder, subject, seams, pairs, shapes, told)


def _write(
    folder: Path,
    subject: Subject,
    seams: Sequence[Setting],
    pairs: Sequence[Pair],
    shapes: dict[str, Setting],
    told: str,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    body = {
        "model": subject.name,
        "circumstances": asdict(circumstances()),
        "advice": told,
        "seams": [asdict(one) for one in seams],
        "anchored": [asdict(one) for one in pairs],
        "shapes": {name: asdict(one) for name, one in shapes.items()},
    }
    (folder / "sweep.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    for name, of in (("kl", "KL, nats a token"), ("em", "exact match")):
        points = [_point(one, name) for one in seams[1:]]
        figure = scatter(points, f"{of} by seam, {subject.name}", "live tokens a prompt", of)
        (folder / f"sweep_{name}.svg").write_text(figure, encoding="utf-8")


def _point(one: Setting, field: str) -> Point:
    interval: Interval = getattr(one, field)
    return Point(one.name, one.live_tokens, interval.mean, interval.low, interval.high)
