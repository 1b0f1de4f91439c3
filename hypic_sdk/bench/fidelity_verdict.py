"""From rows to figures with intervals, and what may be concluded from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from hypic_sdk.bench.fidelity_arms import CONTROL_ARMS, DEFAULT, FULL, Row
from hypic_sdk.bench.fidelity_bits import WarmCold
from hypic_sdk.bench.fidelity_cases import CUT
from hypic_sdk.bench.fidelity_rungs import (
    LEAST_NORM,
    LEAST_NORM_SHARE,
    NORM_TOKENS,
    Law,
    LayerDrift,
    Norms,
    Purity,
)
from hypic_sdk.bench.scores import Interval, bootstrap, percentile

ALL = "all"
BITE = 0.20  # of exact match, that a control must lose for the model to qualify
MARGIN = -0.005  # of exact match, that the default may lose
NOT_MEASURED = "not measured"
SEEN_RATIO = 2.0  # of a control's KL to the default's, besides an interval over zero
MUST_BITE = ("state zeroed", "interior keys removed", "addition")
NO_SEAM = "transition_rope"
CONTROLS = ("addition", "transition", NO_SEAM, *(arm.name for arm in CONTROL_ARMS))


@dataclass(frozen=True, slots=True)
class Summary:
    """One arm over one stratum; `em_loss` is paired with full recompute (below 0: worse)."""

    arm: str
    stratum: str
    em: Interval
    f1: Interval
    rouge_l: Interval
    em_loss: Interval
    f1_loss: Interval
    rouge_l_loss: Interval
    kl: Interval
    kl_p99: float
    top1: float
    same_reply: float
    live_tokens: float
    prompt_tokens: float


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold, what was measured, and whether it does."""

    name: str
    measured: str
    wanted: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the run allows to be said."""

    qualifies: bool  # the model can tell good reuse from bad
    qualification: tuple[Check, ...]
    controls: tuple[Check, ...]  # each must be seen to do worse than the default
    rungs: tuple[Check, ...]  # L0, L1, L2, and drift where it has to be rounding alone
    targets: tuple[Check, ...]  # the default against full recompute: as measured, and surely

    @property
    def rungs_hold(self) -> bool:
        """Whether algebra, purity and warm = cold do."""
        return all(check.passed for check in self.rungs)

    @property
    def sees_all_controls(self) -> bool:
        """Whether no planted fault passes for the default."""
        return all(check.passed for check in self.controls)


def summarise(rows: Sequence[Row]) -> Iterator[Summary]:
    """Every arm over all prompts, then by stratum."""
    full = {row.case: row for row in rows if row.arm == FULL}
    for arm in dict.fromkeys(row.arm for row in rows):
        own = [row for row in rows if row.arm == arm]
        yield summary(ALL, own, full)
        for stratum in dict.fromkeys(row.stratum for row in own):
            yield summary(stratum, [row for row in own if row.stratum == stratum], full)


def summary(stratum: str, own: Sequence[Row], full: dict[int, Row]) -> Summary:
    """Rows of one arm as figures; worlds are drawn whole."""
    worlds = [row.world for row in own]

    def mean(field: str) -> Interval:
        return bootstrap([getattr(row, field) for row in own], worlds)

    def loss(field: str) -> Interval:
        pairs = [getattr(row, field) - getattr(full[row.case], field) for row in own]
        return bootstrap(pairs, worlds)

    return Summary(
        own[0].arm, stratum, mean("em"), mean("f1"), mean("rouge_l"), loss("em"), loss("f1"),
        loss("rouge_l"), mean("kl"), percentile([row.kl_max for row in own], 0.99),
        *(sum(float(getattr(row, name)) for row in own) / len(own)
          for name in ("top1", "same_reply", "live_tokens", "prompt_tokens")),
    )  # fmt: skip


def judge(
    norms: Norms | None,
    laws: Sequence[Law],
    pure: Purity | None,
    same: Sequence[WarmCold],
    rows: Sequence[Row],
    strata: Sequence[str] = (),
    *,
    drift: Sequence[LayerDrift] = (),
    first_layer: Mapping[str, float] = MappingProxyType({}),
) -> Verdict:
    """Hold the figures against what is wanted of model, bench and engine.

    What a run that was cut off did not measure is none or empty, and does not pass.

    Args:
        strata: those that the run was to measure, if it is not told by the rows.
        first_layer: the bounds of its state by arm, of `first_layer_bounds`.
    """
    found = {(one.arm, one.stratum): one for one in summarise(rows)}
    bites = [_bite(name, found.get((name, ALL))) for name in MUST_BITE]
    qualification = (_norms(norms), *bites)
    controls = [_seen(name, rows) for name in CONTROLS if (name, ALL) in found]
    if CUT in strata or any(row.stratum == CUT for row in rows):
        controls.append(_unjoined(rows))
    return Verdict(
        all(check.passed for check in qualification),
        qualification,
        tuple(controls),
        (*_rungs(laws, pure, same), *_first_layer(drift, first_layer)),
        _targets(found.get((DEFAULT, ALL))),
    )


def _norms(norms: Norms | None) -> Check:
    return Check(
        f"heads whose transition keeps a norm over {LEAST_NORM} at {NORM_TOKENS} tokens",
        NOT_MEASURED
        if norms is None
        else f"{norms.share_slow:.0%} (of {norms.num_segments} segments the median)",
        f"at least {LEAST_NORM_SHARE:.0%}",
        norms is not None and norms.pass_on,
    )


def _targets(default: Summary | None) -> tuple[Check, Check]:
    names = ("exact match of the default against full recompute", "the same, of the whole interval")
    wanted = f"at least {100 * MARGIN:g}"
    if default is None:
        mean, low = (Check(name, NOT_MEASURED, wanted, passed=False) for name in names)
        return mean, low
    loss = default.em_loss
    measured = f"{loss.text(100)} points of {loss.num_items} prompts"
    return (
        Check(names[0], measured, wanted, loss.mean >= MARGIN),
        Check(names[1], f"{100 * loss.low:.1f}", wanted, loss.low >= MARGIN),
    )


def _bite(arm: str, one: Summary | None) -> Check:
    return Check(
        f"exact match lost by {arm}",
        NOT_MEASURED if one is None else f"{one.em_loss.text(100)} points",
        f"at least {100 * BITE:g} worse",
        one is not None and one.em_loss.mean <= -BITE,
    )


def _seen(name: str, rows: Sequence[Row]) -> Check:
    """A control must be worse than the default on the same prompts: by KL, or by exact match.

    A control whose fault met too few entries says nothing of the others.
    """
    default = {row.case: row for row in rows if row.arm == DEFAULT}
    own = [row for row in rows if row.arm == name and row.num_entries not in (0, 1)]
    if not own:
        return Check(name, "no prompt has two entries", "worse than the default", passed=False)
    worlds = [row.world for row in own]
    kl = bootstrap([row.kl - default[row.case].kl for row in own], worlds)
    em = bootstrap([row.em - default[row.case].em for row in own], worlds)
    base = sum(default[row.case].kl for row in own) / len(own)
    ratio = (kl.mean + base) / base if base else float("inf")
    by_kl = kl.low > 0.0 and ratio >= SEEN_RATIO
    return Check(
        name,
        f"KL {ratio:.1f} times the default's, {kl.text(1, 4)} more; EM {em.text(100)} points",
        f"KL over {SEEN_RATIO:g} times and surely more, or EM surely less",
        by_kl or em.high < 0.0,
    )


def _unjoined(rows: Sequence[Row]) -> Check:
    """Without a seam a cut sentence falls apart: what must bite there, as others do everywhere.

    More must be lost than the default loses too, or what is wrong is not that the seam is gone.
    """
    by_arm: dict[str, dict[int, Row]] = {FULL: {}, DEFAULT: {}, NO_SEAM: {}}
    for row in rows:
        if row.stratum == CUT and row.arm in by_arm:
            by_arm[row.arm][row.case] = row
    own = list(by_arm[NO_SEAM].values())
    name, wanted = f"{NO_SEAM}, {CUT}s", f"EM at least {100 * BITE:g} points worse than both"
    if not own:
        return Check(name, NOT_MEASURED, wanted, passed=False)
    worlds = [row.world for row in own]
    to_full, to_default = (
        bootstrap([row.em - by_arm[other][row.case].em for row in own], worlds)
        for other in (FULL, DEFAULT)
    )
    return Check(
        name,
        f"EM {to_full.text(100)} points to full recompute, {to_default.text(100)} to the default; "
        f"{len(own)} prompts",
        wanted,
        max(to_full.mean, to_default.mean) <= -BITE,
    )


def _rungs(laws: Sequence[Law], pure: Purity | None, same: Sequence[WarmCold]) -> tuple[Check, ...]:
    return (_algebra(laws), *_purity(pure), *map(_warm_cold, same or (None,)))


def _first_layer(drift: Sequence[LayerDrift], bounds: Mapping[str, float]) -> Iterator[Check]:
    """An error in T or in composing shows here before any answer does."""
    found = {one.arm: one.largest_l2 for one in drift if one.attention and one.layer == 0}
    for arm, bound in bounds.items():
        error = found.get(arm)
        yield Check(
            f"state of the first layer, {arm}",
            NOT_MEASURED if error is None else f"{error:.1e} at most, of full recompute's",
            f"at most {bound:g}",
            error is not None and error <= bound,
        )


def _algebra(laws: Sequence[Law]) -> Check:
    if not laws:
        return Check("L0 algebra", NOT_MEASURED, "all", passed=False)
    worst = max(laws, key=lambda law: law.error / law.bound)
    return Check(
        "L0 algebra",
        f"{sum(law.holds for law in laws)} of {len(laws)} laws; worst {worst.error:.1e}",
        f"all; its bound {worst.bound:.1e}",
        all(law.holds for law in laws),
    )


def _purity(pure: Purity | None) -> tuple[Check, Check]:
    names = ("L1 purity", "L1 control: one flipped bit")
    if pure is None:
        first, second = (Check(name, NOT_MEASURED, "all", passed=False) for name in names)
        return first, second
    return (
        Check(
            names[0],
            f"{pure.num_pure} of {pure.num_entries} entries",
            "all",
            pure.num_pure == pure.num_entries > 0,
        ),
        Check(
            names[1],
            "found" if pure.flipped_bit_found else "not found",
            "found",
            pure.flipped_bit_found,
        ),
    )


def _warm_cold(same: WarmCold | None) -> Check:
    """Bits must be equal under `all` alone; what the other modes give is told."""
    if same is None:
        return Check("L2 warm = cold = mixed", NOT_MEASURED, "all", passed=False)
    is_all = same.determinism == "all"
    cut = f" ({same.num_wanted} wanted)" if same.num_prompts < same.num_wanted else ""
    told = f"{same.num_equal} of {same.num_prompts} prompts{cut}, bit for bit"
    if same.num_equal < same.num_prompts:
        told += (
            f"; the same tokens in {same.num_same_tokens}; log-probabilities moved by at most "
            f"{same.noise:.1e} nats; widest gap of the two best where a token differed "
            f"{same.widest_gap:.1e}"
        )
    return Check(
        f"L2 warm = cold = mixed, deterministic={same.determinism}",
        told,
        "all" if is_all else "told",
        same.num_equal == same.num_prompts > 0 or not is_all,
    )
