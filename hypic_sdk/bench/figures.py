"""Figures of the time to the first token, and the docs' tables, from what benches have written.

    hypic bench figures [FOLDER] [--root .]

FOLDER (docs/bench) holds what `hypic bench serving`, `replay` and `experiments` wrote with `--out`.
What is there is drawn into docs/ and written between marks of the pages; what is not there leaves
its figure and its part of a page as they are.  No figure in these parts is typed by hand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypic_sdk.bench.fidelity_docs import filled
from hypic_sdk.bench.serving_docs import (
    experiments_table,
    replay_table,
    serving_summary,
    serving_table,
)
from hypic_sdk.bench.svg_figure import Curve, Point, curves

if TYPE_CHECKING:
    from rich.console import Console

RESULTS = Path("docs/bench")
FIGURES = Path("docs")
PAGES = (Path("README.md"), Path("docs/performance.md"), Path("docs/experiments.md"))
# name of a block: the bench whose results it is made of, and how
BLOCKS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "serving": ("serving", serving_table),
    "serving summary": ("serving", serving_summary),
    "replay": ("replay", replay_table),
    "experiments": ("experiments", experiments_table),
}


def loaded(folder: Path) -> dict[str, Mapping[str, Any]]:
    """What is there, by bench."""
    names = dict.fromkeys(bench for bench, _ in BLOCKS.values())
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name in names
        if (path := folder / f"{name}.json").is_file()
    }


def texts(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What stands between the marks of each block whose results are there."""
    return {
        name: make(results[bench]) for name, (bench, make) in BLOCKS.items() if bench in results
    }


def figures(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """SVG by file name, of all results that have points for it."""
    found: dict[str, str] = {}
    if "serving" in results:
        rows = [row for row in results["serving"]["rows"] if row.get("place")]
        found |= _by_length(rows) | _by_count(rows)
    if "replay" in results:
        found |= _by_rate(results["replay"])
    return found


def _curves(rows: list[Mapping[str, Any]], axis: str) -> list[Curve]:
    """One for each arm, in the order of the rows; the last of several rows at a place counts."""
    by_arm: dict[str, dict[float, Point]] = {}
    for row in rows:
        place, found = row["place"], row["found"]
        spread = (found[name] for name in ("median", "minimum", "maximum"))
        point = Point("", place[axis], *spread)
        by_arm.setdefault(place["arm"], {})[place[axis]] = point
    return [Curve(arm, tuple(points.values())) for arm, points in by_arm.items()]


def _drawn(name: str, rows: list[Mapping[str, Any]], axis: str, same: str) -> dict[str, str]:
    """Rows that are equal in what most of them have in common."""
    if not rows:
        return {}
    common = Counter(row["place"][same] for row in rows).most_common(1)[0][0]
    own = [row for row in rows if row["place"][same] == common]
    words = {"num_segments": "segments", "segment_tokens": "tokens a segment"}
    title = f"Time to the first token, {common} {words[same]}"
    drawn = curves(_curves(own, axis), title, words[axis], "ms: minimum, median, maximum")
    return {name: drawn}


def _by_length(rows: list[Mapping[str, Any]]) -> dict[str, str]:
    return _drawn("ttft_length.svg", rows, "segment_tokens", "num_segments")


def _by_count(rows: list[Mapping[str, Any]]) -> dict[str, str]:
    return _drawn("ttft_count.svg", rows, "num_segments", "segment_tokens")


def _by_rate(body: Mapping[str, Any]) -> dict[str, str]:
    """Medians; what was never answered (null) has no point."""
    lines = []
    for arm in body["arms"]:
        points = [
            Point("", one["rate"], one["p50_s"], one["p50_s"], one["p50_s"])
            for one in arm["replays"]
            if one["p50_s"] is not None and one["p50_s"] > 0
        ]
        if points:
            lines.append(Curve(arm["mode"], tuple(points)))
    if not lines:
        return {}
    title = "Time to the first token by rate of requests"
    return {"ttft_rate.svg": curves(lines, title, "requests a second", "median, s")}


def update(console: Console, *, folder: Path = RESULTS, root: Path = Path()) -> list[Path]:
    """Draw figures and fill pages under `root`.

    Returns:
        what was written; nothing where there are no results.
    """
    results = loaded(folder)
    written = []
    for name, text in figures(results).items():
        path = root / FIGURES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    for page in PAGES:
        path = root / page
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        after = filled(before, texts(results))
        if after != before:
            path.write_text(after, encoding="utf-8")
            written.append(path)
    console.print(f"{folder}: {', '.join(results) or 'no results'}", highlight=False)
    for path in written:
        console.print(f"written: {path}", highlight=False, soft_wrap=True)
    return written
