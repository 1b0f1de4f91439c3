"""From rows of choices to figures: what each costs and gives, and whether it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from hypic_sdk.bench.choices_ways import WIDTHS, offset_arms, ways
from hypic_sdk.bench.fidelity_arms import DEFAULT, FULL, Row
from hypic_sdk.bench.fidelity_cases import SEED
from hypic_sdk.bench.report import Circumstances
from hypic_sdk.bench.scores import Interval, bootstrap
from hypic_sdk.bench.sweep_report import LEAST_WORLDS, is_nearer

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Result:
    """One choice over its prompts; differences are paired, a KL below 0 is nearer to the full."""

    name: str
    live_tokens: float
    all_tokens: float  # with those of the first pass
    em: Interval
    kl: Interval
    control: str  # empty: none
    kl_to_control: Interval | None
    em_to_control: Interval | None
    rival: str  # the widest fixed seam with no more tokens in all
    kl_to_rival: Interval | None
    em_to_rival: Interval | None

    @property
    def pays(self) -> bool:
        """Whether it is surely better than the like by chance and than the seam of its price."""
        return _is_better(self.kl, self.kl_to_control, self.em_to_control) and _is_better(
            self.kl, self.kl_to_rival, self.em_to_rival
        )


def _is_better(kl: Interval, kl_more: Interval | None, em_more: Interval | None) -> bool:
    """Surely nearer than another, or surely right more often."""
    if kl_more is None or em_more is None:
        return False
    return is_nearer(kl, kl_more) or em_more.low > 0.0


@dataclass(frozen=True, slots=True)
class Offset:
    """The default with its cached keys turned too far."""

    name: str
    em: Interval
    kl: Interval
    top1: float
    kl_more: Interval | None  # than as it should be; none: this is as it should be
    em_more: Interval | None


def difference(own: Sequence[Row], other: Sequence[Row], field: str) -> Interval:
    """Paired by prompt, over those that both have."""
    by_case = {row.case: getattr(row, field) for row in other}
    both = [row for row in own if row.case in by_case]
    return bootstrap(
        [getattr(row, field) - by_case[row.case] for row in both], [row.world for row in both]
    )


def by_arm(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each arm."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.arm, []).append(row)
    return found


def mean(rows: Sequence[Row], field: str) -> Interval:
    """Of one arm."""
    return bootstrap([getattr(row, field) for row in rows], [row.world for row in rows])


def results(rows: Sequence[Row]) -> list[Result]:
    """Every choice beside the like one by chance and beside the fixed seam of its price."""
    found = by_arm(rows)
    base = f"fixed {WIDTHS[0]}"
    live = {name: mean(own, "live_tokens").mean for name, own in found.items()}
    told = []
    for way in ways():
        if way.name not in found:
            continue
        own = found[way.name]
        total = live[way.name] + (live[base] if way.first_pass else 0.0)
        fixed_ones = [f"fixed {width}" for width in WIDTHS]
        cheap = [one for one in fixed_ones if live[one] <= total + 0.5 and one != way.name]
        rival = "" if way.name in fixed_ones or not cheap else cheap[-1]
        pairs = [
            difference(own, found[other], field) if other in found else None
            for other in (way.control, rival)
            for field in ("kl", "em")
        ]
        told.append(
            Result(way.name, live[way.name], total, mean(own, "em"), mean(own, "kl"),
                   way.control, pairs[0], pairs[1], rival, pairs[2], pairs[3])
        )  # fmt: skip
    return told


def offsets(rows: Sequence[Row]) -> list[Offset]:
    """The default, right and wrong."""
    found = by_arm(rows)
    right = found[DEFAULT]
    return [
        Offset(
            "0" if own is right else arm.name,
            mean(own, "em"),
            mean(own, "kl"),
            mean(own, "top1").mean,
            None if own is right else difference(own, right, "kl"),
            None if own is right else difference(own, right, "em"),
        )
        for arm in offset_arms()
        for own in (found.get(arm.name, []),)
        if own
    ]


def cell(one: Interval | None, scale: float = 1.0, digits: int = 1) -> str:
    """An interval or a dash."""
    return "-" if one is None else one.text(scale, digits)


def print_results(console: Console, told: Sequence[Result], shifted: Sequence[Offset]) -> None:
    """Both tables; intervals of EM are in the file."""
    table = Table("live tokens by", "live", "in all", "EM", "KL", "KL to chance", "KL to rival")
    for one in told:
        table.add_row(
            one.name, f"{one.live_tokens:.0f}", f"{one.all_tokens:.0f}",
            f"{100 * one.em.mean:.1f}", one.kl.text(1, 4), cell(one.kl_to_control, 1, 4),
            f"{one.rival}: {cell(one.kl_to_rival, 1, 4)}" if one.rival else "-",
        )  # fmt: skip
    console.print(table)
    table = Table("keys turned as if segments stood", "EM", "KL", "top-1", "KL more", "EM more")
    for of in shifted:
        table.add_row(
            of.name, of.em.text(100), of.kl.text(1, 4), f"{of.top1:.1%}", cell(of.kl_more, 1, 4),
            cell(of.em_more, 100),
        )  # fmt: skip
    console.print(table)


def paying(told: Sequence[Result], num_worlds: int) -> str:
    """Names of the choices that pay, those that a user could make."""
    if num_worlds < LEAST_WORLDS:
        return f"not told by {num_worlds} worlds ({LEAST_WORLDS} are wanted)"
    unknown = {way.name for way in ways() if way.needs_gold}
    return ", ".join(one.name for one in told if one.pays and one.name not in unknown) or "none"


@dataclass(frozen=True, slots=True)
class Report:
    """What `choices.json` holds."""

    model: str
    seed: int
    num_prompts: int
    num_cases: int  # planned
    full_em: Interval
    prompt_tokens: float
    circumstances: Circumstances
    paying: str
    choices: list[Result]
    offsets: list[Offset]


def report(model: str, rows: Sequence[Row], num_cases: int, where: Circumstances) -> Report:
    """Rows as figures."""
    told, full = results(rows), by_arm(rows)[FULL]
    return Report(
        model=model,
        seed=SEED,
        num_prompts=len(full),
        num_cases=num_cases,
        full_em=mean(full, "em"),
        prompt_tokens=mean(full, "prompt_tokens").mean,
        circumstances=where,
        paying=paying(told, len({row.world for row in full})),
        choices=told,
        offsets=offsets(rows),
    )
