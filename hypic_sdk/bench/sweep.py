"""What each setting of reuse costs and gives: seams, stored precision, segment length and count."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from hypic_sdk.bench.fidelity_arms import DEFAULT, Arm, Bench, Row
from hypic_sdk.bench.fidelity_cases import SEED, CaseSizes, make_cases
from hypic_sdk.bench.fidelity_rows import Say, arm_rows, measure_rows
from hypic_sdk.bench.kept_rows import KeptRows, TimeLimit
from hypic_sdk.bench.report import circumstances
from hypic_sdk.bench.scores import Interval, bootstrap
from hypic_sdk.bench.subject import Subject, check_reads, load_subject
from hypic_sdk.bench.svg_figure import Point, scatter
from hypic_sdk.config import MIB, SeamRule

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
LEAST_WORLDS = 20  # below it one odd prompt makes an interval
LEAST_GAIN = 0.05  # of the KL: what is less is sure at times, and never of use
SEAMS_SHARE = 0.7  # of a limited time; shapes have the rest
BUDGET_BYTES = 48 * MIB  # of each setting's engine: they all stand at once


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    per_count: int  # worlds of each stratum, and of each shape
    arms: tuple[str, ...]  # of `seam_arms`; none: all
    shapes: tuple[tuple[int, int], ...]  # documents, tokens of each


WHOLE = Sizes(6, (), SHAPES)
QUICK = Sizes(2, ("none", "0", "8", "16", "8+8", "8, anchored"), ((4, 80), (2, 120)))


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
    num_worlds: int  # orders and duplicates of a world are drawn together


@dataclass(frozen=True, slots=True)
class Pair:
    """Segments behind the leading part, against the same setting without."""

    name: str
    em_more: Interval
    kl_more: Interval


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
                len(set(worlds)),
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


def shape_settings(
    bench: Bench, sizes: Sizes, kept_for: Callable[[str], KeptRows], say: Say, limit: TimeLimit
) -> Iterator[tuple[str, Setting]]:
    """The default seam over segments of several lengths and counts, as they are measured."""
    for count, tokens in sizes.shapes:
        cases = make_cases(CaseSizes(sizes.per_count, (count,), (tokens,), 1), STRATA)
        say(f"{count} documents of about {tokens} tokens")
        kept = kept_for(f"sweep_{count}x{tokens}.jsonl")
        rows = measure_rows(bench, cases, arm_rows(bench, [Arm(DEFAULT)]), kept, say, limit=limit)
        yield f"{count} documents of about {tokens} tokens", settings(rows, DEFAULT)[-1]


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
    console: Console, *, model: str | None, quick: bool, per_count: int | None,
    folder: Path | None, seconds: float | None, device_name: str,
) -> None:  # fmt: skip
    """Measure, print, and write `sweep.json` with its figures, seams first.

    Args:
        per_count: worlds of each stratum (for shapes: of each shape too); none: the plan's.
        folder: rows are written as they come, and those of an earlier run there are not run again.
        seconds: about what it may take; the later prompts of each part are then left out.
    """
    limit = TimeLimit(seconds)
    subject = load_subject(model, device_name)
    check_reads(subject)
    sizes = QUICK if quick else WHOLE
    sizes = sizes if per_count is None else replace(sizes, per_count=per_count)

    def say(line: str) -> None:
        console.print(line, style="dim", highlight=False)

    def kept_for(name: str) -> KeptRows:
        about = {"fingerprint": subject.fingerprint, "seed": SEED, "sizes": repr(sizes)}
        about |= {"device": str(subject.device), "commit": circumstances().commit}
        return KeptRows(None if folder is None else folder / name, about)

    bench = Bench(replace(subject, budget_bytes=BUDGET_BYTES), MIN_SEGMENT_TOKENS)
    arms = [arm for arm in seam_arms() if arm.name in sizes.arms or not sizes.arms]
    cases = make_cases(CaseSizes(sizes.per_count, (4,), (100, 180), 1), STRATA)
    say(f"seams: {len(cases)} prompts in {len(arms)} settings")
    kept = kept_for("sweep_rows.jsonl")
    rows = measure_rows(
        bench, cases, arm_rows(bench, arms), kept, say, limit=limit, share=SEAMS_SHARE
    )
    seams, pairs = settings(rows, DEFAULT_SEAM), anchored_pairs(rows)
    told = advice(seams, DEFAULT_SEAM)
    shapes: dict[str, Setting] = {}
    _write(folder, subject, sizes, seams, pairs, shapes, told)
    for name, setting in shape_settings(bench, sizes, kept_for, say, limit):
        shapes[name] = setting
        _write(folder, subject, sizes, seams, pairs, shapes, told)
    num_prompts = seams[0].em.num_items
    console.print(table_of(seams, f"seams (head, head+tail, share), {num_prompts} prompts"))
    console.print(pairs_table(pairs))
    console.print(table_of(list(shapes.values()), "the default, in the order below"))
    console.print("; ".join(shapes))
    console.print(told, highlight=False)
    console.print(f"{circumstances()}, {limit.passed_s:.0f} s, seed {SEED}", style="dim")


def _write(
    folder: Path | None,
    subject: Subject,
    sizes: Sizes,
    seams: Sequence[Setting],
    pairs: Sequence[Pair],
    shapes: dict[str, Setting],
    told: str,
) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    body = {
        "model": subject.name,
        "seed": SEED,
        "sizes": asdict(sizes),
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
