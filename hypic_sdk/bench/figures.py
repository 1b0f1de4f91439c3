"""Figures of the time to the first token, and the docs' tables, from what benches have written.

    hypic bench figures [FOLDER] [--root .]

FOLDER (docs/bench) holds what `hypic bench serving`, `replay` and `experiments` wrote with `--out`.
What is there is drawn into docs/ and written between marks of the pages; what is not there leaves
its figure and its part of a page as they are.  No figure in these parts is typed by hand, and none
is of a run that was tiny, on a CPU, or of files that differ from a commit, and no page loses a row
that it has: those are refused, but for a `--root` that is in no checkout, where they may be looked
at.  A result that has nothing to show is refused everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hypic_sdk.bench.pages import Part, Renewed, is_in_checkout, no_place, renewed, write_all
from hypic_sdk.bench.published import ReplayBody, Results, read
from hypic_sdk.bench.serving_docs import (
    experiments_table,
    missing_of_summary,
    replay_table,
    serving_summary,
    serving_table,
)
from hypic_sdk.bench.serving_report import Place, Row
from hypic_sdk.bench.svg_figure import Curve, Point, curves

if TYPE_CHECKING:
    from rich.console import Console

RESULTS = Path("docs/bench")
FIGURES = Path("docs")
PAGES = (Path("README.md"), Path("docs/performance.md"), Path("docs/experiments.md"))
BLOCKS = {
    "serving": "serving",
    "serving summary": "serving",
    "replay": "replay",
    "experiments": "experiments",
}
"""The name of a block, and the bench whose results it is made of."""

Axis = Literal["num_segments", "segment_tokens"]
WORDS: dict[Axis, str] = {"num_segments": "segments", "segment_tokens": "tokens a segment"}


def texts(results: Results) -> dict[str, str]:
    """What stands between the marks of each block whose results are there."""
    found: dict[str, str] = {}
    if results.serving is not None:
        found["serving"] = serving_table(results.serving)
        found["serving summary"] = serving_summary(results.serving)
    if results.replay is not None:
        found["replay"] = replay_table(results.replay)
    if results.experiments is not None:
        found["experiments"] = experiments_table(results.experiments)
    return found


def figures(results: Results) -> dict[str, str]:
    """SVG by file name, of all results that have points for it."""
    found: dict[str, str] = {}
    if results.serving is not None:
        rows = [(row.place, row) for row in results.serving.rows if row.place is not None]
        found |= _drawn("ttft_length.svg", rows, "segment_tokens", "num_segments")
        found |= _drawn("ttft_count.svg", rows, "num_segments", "segment_tokens")
    if results.replay is not None:
        found |= _by_rate(results.replay)
    return found


def _curves(rows: Sequence[tuple[Place, Row]], axis: Axis) -> list[Curve]:
    """One for each arm, in the order of the rows; the last of several rows at a place counts."""
    by_arm: dict[str, dict[float, Point]] = {}
    for place, row in rows:
        at, found = _along(place, axis), row.found
        point = Point("", at, found.median, found.minimum, found.maximum)
        by_arm.setdefault(place.arm, {})[at] = point
    return [Curve(arm, tuple(points.values())) for arm, points in by_arm.items()]


def _along(place: Place, axis: Axis) -> int:
    return place.num_segments if axis == "num_segments" else place.segment_tokens


def _drawn(name: str, rows: Sequence[tuple[Place, Row]], axis: Axis, same: Axis) -> dict[str, str]:
    """Rows that are equal in what most of them have in common."""
    if not rows:
        return {}
    common = Counter(_along(place, same) for place, _ in rows).most_common(1)[0][0]
    own = [(place, row) for place, row in rows if _along(place, same) == common]
    title = f"Time to the first token, {common} {WORDS[same]}"
    drawn = curves(_curves(own, axis), title, WORDS[axis], "ms: minimum, median, maximum")
    return {name: drawn}


def _by_rate(body: ReplayBody) -> dict[str, str]:
    """Medians; what was never answered (null) has no point."""
    lines = []
    for arm in body.arms:
        points = [
            Point("", one.rate, one.p50_s, one.p50_s, one.p50_s)
            for one in arm.replays
            if one.p50_s is not None
        ]
        if points:
            lines.append(Curve(arm.mode, tuple(points)))
    if not lines:
        return {}
    title = "Time to the first token by rate of requests"
    return {"ttft_rate.svg": curves(lines, title, "requests a second", "median, s")}


def update(console: Console, *, folder: Path = RESULTS, root: Path = Path()) -> list[Path]:
    """Draw figures and fill pages under `root`.

    Returns:
        what was written; nothing where there are no results.
    Raises:
        ConfigError: a file that is no result or has nothing to show, a run that the pages of a
            checkout are not made of, a page that can not be filled in, or a place that can not be
            written; nothing is written then.
    """
    in_checkout = is_in_checkout(*(root / place for place in (FIGURES, *PAGES)))
    results = read(folder, for_pages=in_checkout)
    found = _pages(results, folder, root, in_checkout=in_checkout)
    new = {root / FIGURES / name: text for name, text in figures(results).items()} | found.pages
    write_all(new)
    console.print(f"{folder}: {', '.join(results.names) or 'no results'}", highlight=False)
    for said in _left_out(results, found):
        console.print(said, highlight=False, markup=False, soft_wrap=True)
    for path in new:
        console.print(f"written: {path}", highlight=False, soft_wrap=True)
    return list(new)


def _pages(results: Results, folder: Path, root: Path, *, in_checkout: bool) -> Renewed:
    """Those of `root`, filled in.  Raises ConfigError, in a checkout also for what has no place."""
    absent = tuple(one.name for one in results.serving.absent) if results.serving else ()
    parts = [
        Part(name, text, folder / f"{BLOCKS[name]}.json", BLOCKS[name], absent)
        for name, text in texts(results).items()
    ]
    pages = [root / page for page in PAGES]
    found = renewed(filter(Path.is_file, pages), parts, in_checkout=in_checkout)
    without = [part for part in parts if part.name not in found.placed]
    if without and in_checkout:
        raise no_place(without[0], pages)
    return found


def _left_out(results: Results, found: Renewed) -> list[str]:
    """What pages could tell and these results do not, in sentences."""
    missing = missing_of_summary(results.serving) if results.serving is not None else []
    said = f"not measured, of README's rows: {'; '.join(missing)}"
    return [*found.fewer, *([said] if missing else [])]
