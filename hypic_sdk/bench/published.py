"""Results that pages are made of, read as what their benches write; anything else is refused.

Only what pages show is looked at.  A file that is broken, of another bench, without anything to
show, or of a run that no page may show is named, with what is wrong and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from hypic_sdk.bench.pages import measure_again
from hypic_sdk.bench.report import Circumstances, Spread
from hypic_sdk.bench.serving_report import Absent, Failure, Row
from hypic_sdk.errors import ConfigError

TINY_SHAPES = ("tiny", "tiny-8k")  # of `serving_model.SHAPES`: to see that it works

# as reports write it: its first digits, behind a tag's name where the checkout has one
_COMMIT = re.compile(r"(?:\S+-\d+-g)?[0-9a-f]{7,40}")

LEAST, MOST = 1e-12, 1e12  # of what has a place on a logarithmic axis, in any unit

Above = Annotated[float, msgspec.Meta(ge=LEAST, le=MOST)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


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
        """Raise ValueError for a row that is no measurement, or has no place on its axes."""
        _check_spreads((row.name, row.found) for row in self.rows)
        for row in self.rows:
            if row.place is not None:
                at = (row.place.num_segments, row.place.segment_tokens)
                drawn = (row.found.minimum, row.found.maximum, *at)
                if not LEAST <= min(drawn) <= max(drawn) <= MOST:
                    raise ValueError(f"{row.name!r} has no place on logarithmic axes")

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
    """One rate; without a p50 it was never answered."""

    rate: Above
    p50_s: Annotated[float, msgspec.Meta(ge=0.0, le=MOST)] | None


@dataclass(frozen=True, slots=True)
class Held:
    """The highest rate that held."""

    rate: Above
    p50_s: float
    p99_s: float
    hit_share: Share


@dataclass(frozen=True, slots=True)
class ReplayArm:
    """What was found of one arm."""

    mode: str
    replays: list[Replayed]
    best: Held | None
    saturated_per_s: float
    saturated_hit_share: Share
    cut_off: str = ""

    @property
    def has_answered(self) -> bool:
        """Whether anything was measured of it."""
        return bool(self.replays) or self.saturated_per_s > 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """Of the plan, what pages tell."""

    limit_s: float


@dataclass(frozen=True, slots=True)
class ReplayBody:
    """replay.json."""

    bench: Literal["replay"]
    served: str
    plan: Limit
    circumstances: Circumstances
    arms: list[ReplayArm]
    is_tiny: bool = False

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
    """A verdict in words."""

    says: str


@dataclass(frozen=True, slots=True)
class Attention:
    """One arm of one scene."""

    scene: str
    arm: str
    us_a_layer: Spread
    over_private: float
    with_placing_ms: float
    copies_mib: float


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
        _check_spreads((f"{one.scene}, {one.arm}", one.us_a_layer) for one in self.timings)

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
        body = msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
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


def _check_spreads(found: Iterable[tuple[str, Spread]]) -> None:
    for name, one in found:
        if not one.minimum <= one.median <= one.maximum:
            raise ValueError(f"{name!r} has a median outside of its minimum and maximum")
