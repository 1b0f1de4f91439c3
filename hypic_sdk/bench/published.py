"""Results that pages are made of, read as what their benches write; anything else is refused.

Only what pages show is looked at, and what that is derived from.  A file that is broken, of another
bench, without anything to show, that contradicts itself, or of a run that no page may show is
named, with what is wrong and what to do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from hypic_sdk.bench.pages import measure_again
from hypic_sdk.bench.report import Circumstances, Spread
from hypic_sdk.bench.serving_report import Absent, Failure, Row
from hypic_sdk.bench.serving_targets import DEFAULT_SHAPE, TARGETS
from hypic_sdk.errors import ConfigError

TINY_SHAPES = ("tiny", "tiny-8k")  # of `serving_model.SHAPES`: to see that it works

# as reports write it: its first digits, behind a tag's name where the checkout has one
_COMMIT = re.compile(r"(?:\S+-\d+-g)?[0-9a-f]{7,40}")

LEAST, MOST = 1e-12, 1e12  # of what has a place on a logarithmic axis, in any unit

Above = Annotated[float, msgspec.Meta(ge=LEAST, le=MOST)]
NotBelow = Annotated[float, msgspec.Meta(ge=0.0, le=MOST)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """What a file says of a row that the row's own numbers say, too."""

    is_met: bool | None


@dataclass(frozen=True, slots=True)
class RowVerdicts:
    """Those of serving.json, in the order of its rows."""

    rows: list[RowVerdict]


@dataclass(frozen=True, slots=True)
class ServingBody:
    """serving.json."""

    bench: Literal["serving"]
    shape: str
    circumstances: Circumstances
    rows: list[Row]
    failures: list[Failure] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    is_tiny: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a row that can not be, or has no place on its axes."""
        for row in self.rows:
            _check_spread(row.name, row.found, is_difference=_is_difference(row))
            if row.place is not None:
                at = (row.place.num_segments, row.place.segment_tokens)
                drawn = (row.found.minimum, row.found.maximum, *at)
                if not LEAST <= min(drawn) <= max(drawn) <= MOST:
                    raise ValueError(f"{row.name!r} has no place on logarithmic axes")

    def check(self, verdicts: Iterable[RowVerdict]) -> None:
        """Raise ValueError for a row that contradicts its verdict, its floor or the bench."""
        is_judged = self.shape == DEFAULT_SHAPE and not (self.is_tiny or self.circumstances.is_cpu)
        for row, said in zip(self.rows, verdicts, strict=True):
            if said.is_met != row.is_met:
                raise ValueError(
                    f"{row.name!r} says is_met {_json(said.is_met)}, and its numbers give "
                    f"{_json(row.is_met)} (median {row.found.median:g}, target {row.target}, "
                    f"is_upper {_json(row.is_upper)})"
                )
            want = TARGETS.get(row.name)
            if row.target != want and (is_judged or row.target is not None):
                words = f"has the target {_json(row.target)}, and the bench's is {_json(want)}"
                raise ValueError(f"{row.name!r} {words}")
            _check_floor(row)

    @property
    def served(self) -> str:
        """What was measured."""
        return self.shape

    @property
    def lacks(self) -> str:
        """What is not there and without which there is nothing to show; empty: all is there."""
        return "" if self.rows else _with_reasons("no rows", self.failures)


@dataclass(frozen=True, slots=True)
class Replayed:
    """One rate; without a p50 most of it was never answered."""

    rate: Above
    p50_s: Above | None
    p99_s: Above | None
    hit_share: Share
    num_failed: int
    kept_up: bool

    def __post_init__(self) -> None:
        """Raise ValueError for a median above the 99th percentile."""
        p50_s, p99_s = (math.inf if x is None else x for x in (self.p50_s, self.p99_s))
        if p50_s > p99_s:
            raise ValueError(f"the replay at {self.rate:g}/s has its p50 above its p99")

    def holds(self, limit_s: float) -> bool:
        """Whether the server bore this rate, as `replay_caller.Replay` has it."""
        in_time = self.p50_s is not None and self.p50_s <= limit_s
        return in_time and self.kept_up and self.num_failed == 0


@dataclass(frozen=True, slots=True)
class Held:
    """The highest rate that held."""

    rate: Above
    p50_s: Above
    p99_s: Above
    hit_share: Share


@dataclass(frozen=True, slots=True)
class ReplayArm:
    """What was found of one arm."""

    mode: str
    replays: list[Replayed]
    best: Held | None
    saturated_per_s: NotBelow
    saturated_hit_share: Share
    cut_off: str = ""

    @property
    def has_answered(self) -> bool:
        """Whether anything was measured of it."""
        return bool(self.replays) or self.saturated_per_s > 0.0

    def check_best(self, limit_s: float) -> None:
        """Raise ValueError for a best that is not the highest of its rates that held."""
        held = [one for one in self.replays if one.holds(limit_s)]
        want = max(held, key=lambda one: one.rate, default=None)
        said, given = (
            one and (one.rate, one.p50_s, one.p99_s, one.hit_share) for one in (self.best, want)
        )
        if said != given:
            raise ValueError(
                f"{self.mode!r} says that its best (rate, p50, p99, cached) is {said or 'none'}, "
                f"and its replays at p50 <= {limit_s:g} s give {given or 'none'}"
            )


@dataclass(frozen=True, slots=True)
class Limit:
    """Of the plan, what pages tell."""

    limit_s: NotBelow


@dataclass(frozen=True, slots=True)
class ReplayBody:
    """replay.json."""

    bench: Literal["replay"]
    served: str
    plan: Limit
    circumstances: Circumstances
    arms: list[ReplayArm]
    is_tiny: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for an arm that contradicts itself."""
        for arm in self.arms:
            arm.check_best(self.plan.limit_s)

    @property
    def lacks(self) -> str:
        """What is not there and without which there is nothing to show; empty: all is there."""
        if any(arm.has_answered for arm in self.arms):
            return ""
        cut_off = [Failure(arm.mode, arm.cut_off or "not begun") for arm in self.arms]
        return _with_reasons("no arm that answered" if self.arms else "no arms", cut_off)

    @property
    def unfinished(self) -> list[str]:
        """Arms of which a rate was to be tried when the run was ended."""
        return [arm.mode for arm in self.arms if not arm.replays and not arm.cut_off]


@dataclass(frozen=True, slots=True)
class Said:
    """A verdict in words, and the numbers of its rule."""

    experiment: str
    rule: str
    found: Above | None  # none: it gave no right number
    limit: Above
    is_kept: bool | None
    says: str
    is_judged: bool = True  # false: a run that the rule is not of

    def __post_init__(self) -> None:
        """Raise ValueError for a verdict that its numbers do not give."""
        found = math.inf if self.found is None else self.found
        is_kept = found <= self.limit if self.is_judged else None
        word = "kept" if is_kept else "given up" if self.is_judged else "not judged here"
        # as `experiments.Verdict` says it
        says = f"{self.experiment}: {found:.2f}, {self.rule}: {word}"
        if (self.is_kept, self.says) != (is_kept, says):
            raise ValueError(
                f"{self.experiment!r} says {self.says!r} and is_kept {_json(self.is_kept)}, and "
                f"its numbers (found {found:g}, limit {self.limit:g}) give {says!r}"
            )


@dataclass(frozen=True, slots=True)
class Attention:
    """One arm of one scene."""

    scene: str
    arm: str
    us_a_layer: Spread
    over_private: Above
    with_placing_ms: Above
    copies_mib: NotBelow


@dataclass(frozen=True, slots=True)
class ExperimentsBody:
    """experiments.json."""

    bench: Literal["experiments"]
    shape: str
    circumstances: Circumstances
    verdicts: list[Said]
    timings: list[Attention]
    failures: list[Failure] = field(default_factory=list)
    is_tiny: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a time that is none."""
        for one in self.timings:
            _check_spread(f"{one.scene}, {one.arm}", one.us_a_layer)

    @property
    def served(self) -> str:
        """What was measured."""
        return self.shape

    @property
    def lacks(self) -> str:
        """What is not there and without which there is nothing to show; empty: all is there."""
        parts = (("no verdicts", self.verdicts), ("no timings", self.timings))
        words = ", ".join(word for word, found in parts if not found)
        return words and _with_reasons(words, self.failures)


@dataclass(frozen=True, slots=True)
class Results:
    """What is there, by bench."""

    serving: ServingBody | None = None
    replay: ReplayBody | None = None
    experiments: ExperimentsBody | None = None

    @property
    def names(self) -> list[str]:
        """Of the benches whose results are there."""
        found = {"serving": self.serving, "replay": self.replay, "experiments": self.experiments}
        return [name for name, body in found.items() if body is not None]


Body = TypeVar("Body", ServingBody, ReplayBody, ExperimentsBody)


def read(folder: Path, *, for_pages: bool = True) -> Results:
    """All results of a folder.

    Args:
        for_pages: refuse runs that no page may show.
    Raises:
        ConfigError: no such folder; a file that is no result of its bench, or has nothing to
            show; a run for no page.
    """
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}: name the one that benches wrote into with --out")
    return Results(
        _read(folder / "serving.json", ServingBody, for_pages=for_pages),
        _read(folder / "replay.json", ReplayBody, for_pages=for_pages),
        _read(folder / "experiments.json", ExperimentsBody, for_pages=for_pages),
    )


def _read(path: Path, kind: type[Body], *, for_pages: bool) -> Body | None:
    if not path.exists():
        return None
    again = measure_again(path.stem, path.parent)
    try:
        text = path.read_bytes()
        body = msgspec.json.decode(text, type=kind)
        if isinstance(body, ServingBody):
            body.check(msgspec.json.decode(text, type=RowVerdicts).rows)
    except (OSError, ValueError) as error:  # the latter is of msgspec, and of what is checked
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"{path} is no result of `hypic bench {path.stem}`: {reason}; take it away, or {again}"
        ) from error
    if body.lacks:
        raise ConfigError(f"{path} has nothing to publish: {body.lacks}; {again}")
    why = _unfit(body) if for_pages else ""
    if why:
        raise ConfigError(
            f"{path} is of a run that pages are not made of ({why}): {again}, or draw it elsewhere "
            "with --root and a folder that is no checkout"
        )
    return body


def _unfit(body: ServingBody | ReplayBody | ExperimentsBody) -> str:
    """Why no page may show it; empty: it may."""
    one = body.circumstances
    if body.is_tiny or body.served.partition(",")[0] in TINY_SHAPES:
        return "tiny: it shows that a bench works, and measures nothing"
    if one.is_cpu or one.torch.endswith("+cpu") or not one.hardware.strip():
        return f"on a CPU, {one.hardware}, torch {one.torch}"
    if isinstance(body, ReplayBody) and body.unfinished:
        return f"it was ended before these arms were measured: {', '.join(body.unfinished)}"
    return of_no_commit(one)


def of_no_commit(one: Circumstances) -> str:
    """Why nobody could find the code that ran; empty: it is that of a commit."""
    if one.is_of_commit and _COMMIT.fullmatch(one.commit):
        return ""
    return f"its code is that of no commit, {one.commit!r}"


def _with_reasons(words: str, failures: Iterable[Failure]) -> str:
    """These words, and why."""
    reasons = ", ".join(f"{one.name} ({one.reason})" for one in failures)
    return " ".join(f"{words}; failed: {reasons}".split()) if reasons else words


def _json(value: bool | float | None) -> str:
    """As the file has it."""
    return msgspec.json.encode(value).decode()


def _is_difference(row: Row) -> bool:
    """Of two times that are alike: it may honestly be below zero."""
    return row.unit == "%" or row.name == "each further 1k segment"


def _check_spread(name: str, one: Spread, *, is_difference: bool = False) -> None:
    if not one.minimum <= one.median <= one.maximum:
        raise ValueError(f"{name!r} has a median outside of its minimum and maximum")
    if one.minimum <= 0.0 and not is_difference:
        raise ValueError(f"{name!r} has a minimum of {one.minimum:g}: it has to be above zero")


def _check_floor(row: Row) -> None:
    """A floor is what nothing beats: no time lies below it, and no speed above it."""
    if row.floor is None:
        return
    best = row.found.minimum if row.is_upper else row.found.maximum
    if best < row.floor if row.is_upper else best > row.floor:
        words = "a time below" if row.is_upper else "a speed above"
        raise ValueError(f"{row.name!r} has {words} its floor: {best:g}, and {row.floor:g}")
