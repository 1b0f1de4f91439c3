"""Rows of `bench serving`: what was found beside target and floor, as lines and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypic_sdk.bench.kept_rows import finite
from hypic_sdk.bench.report import Spread, circumstances, write_whole

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row of the time to the first token stands in a figure."""

    arm: str
    num_segments: int
    segment_tokens: int


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement beside its target and its floor."""

    name: str
    unit: str
    found: Spread
    target: float | None = None
    is_upper: bool = True  # the target is a limit that is not to be passed; else one to be reached
    floor: float | None = None  # in the row's unit: what no implementation beats
    notes: dict[str, Any] = field(default_factory=dict)
    place: Place | None = None  # in a figure

    @property
    def is_met(self) -> bool | None:
        """Whether the median is within the target; none without one."""
        if self.target is None:
            return None
        return (
            self.found.median <= self.target
            if self.is_upper
            else (self.found.median >= self.target)
        )


def over(above: Spread, below: Spread) -> Spread:
    """Ratios of two measurements that were not made in pairs: the widest that they allow."""
    return Spread(
        above.minimum / below.maximum,
        above.median / below.median,
        above.maximum / below.minimum,
        min(above.num_runs, below.num_runs),
    )


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that gave no number."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Absent:
    """A row that could not be measured here: no library, device, room or time for it."""

    name: str
    reason: str


@dataclass(slots=True)
class Report:
    """What there is so far; written after every row."""

    folder: Path | None
    shape: str  # or the model's name
    device: torch.device
    is_tiny: bool = False  # short documents: to see that it works
    rows: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def write(self) -> None:
        """serving.json, whole at any time."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        report = {
            "bench": "serving",
            "shape": self.shape,
            "is_tiny": self.is_tiny,
            "circumstances": asdict(circumstances(self.device)),
            "rows": [{**asdict(row), "is_met": row.is_met} for row in self.rows],
            "failures": [asdict(failure) for failure in self.failures],
            "absent": [asdict(one) for one in self.absent],
            "seconds": self.seconds,
        }
        text = json.dumps(finite(report), indent=1) + "\n"
        write_whole(self.folder / "serving.json", text)


def line_of(row: Row) -> str:
    """A row as one line."""
    spread = " / ".join(number(x) for x in (row.found.minimum, row.found.median, row.found.maximum))
    line = f"{row.name}: {spread} {row.unit}"
    if row.target is not None:
        verdict = "met" if row.is_met else "MISSED"
        line += f", target {'<=' if row.is_upper else '>='} {row.target:g} ({verdict})"
    if row.floor is not None:
        line += f", floor {number(row.floor)}"
    return line + (f"  {row.notes}" if row.notes else "")


def number(x: float) -> str:
    """Short enough for a table."""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}" if abs(x) < 1 else f"{x:.1f}"
