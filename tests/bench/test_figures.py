"""Figures and tables of the docs are made of committed results, and of nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hypic_sdk.bench import figures
from hypic_sdk.bench.figures import BLOCKS, FIGURES, PAGES, RESULTS, loaded, texts, update
from hypic_sdk.bench.svg_figure import Curve, Point, curves
from hypic_sdk.cli.app import app
from tests.source_tree import REPOSITORY

BLOCK = re.compile(r"<!-- begin ([\w ]+) -->\n(.*?)<!-- end \1 -->", re.DOTALL)
WHERE = {
    "hardware": "a device", "num_threads": 3, "python": "3.11", "torch": "2.13",
    "transformers": "5", "hypic_sdk": "0.1", "commit": "abc",
}  # fmt: skip


def blocks(page: str) -> dict[str, str]:
    return {name: text for name, text in BLOCK.findall(page) if name in BLOCKS}


def test_the_docs_say_what_the_committed_results_say():
    results = loaded(REPOSITORY / RESULTS)
    want = texts(results)
    found: dict[str, list[str]] = {name: [] for name in BLOCKS}
    for page in PAGES:
        for name, text in blocks((REPOSITORY / page).read_text(encoding="utf-8")).items():
            found[name].append(text)
    for name, told in found.items():
        # without results a block is empty; with them, each is theirs
        assert all(text == want.get(name, "") for text in told), name
    for name, (bench, _) in BLOCKS.items():
        assert found[name] or bench not in results, f"{bench}.json has no place for {name!r}"
    for name, drawing in figures.figures(results).items():
        assert (REPOSITORY / FIGURES / name).read_text(encoding="utf-8") == drawing


def row(name: str, median: float, place: tuple[str, int, int] | None = None) -> dict[str, Any]:
    arm_and_place = place and dict(
        zip(("arm", "num_segments", "segment_tokens"), place, strict=True)
    )
    return {
        "name": name, "unit": "ms", "target": 25.0, "is_upper": True, "is_met": median <= 25,
        "found": {"minimum": median / 2, "median": median, "maximum": 2 * median, "num_runs": 3},
        "floor": None, "notes": {}, "place": arm_and_place,
    }  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Of all three benches, with what happens in each."""
    bodies = {
        "serving": {
            "shape": "small", "circumstances": WHERE,
            "rows": [
                row("TTFT, 4 x 4k all hits", 20.0, ("ours", 4, 4096)),
                row("b", 10.0, ("ours", 4, 512)),
                row("c", 90.0, ("full", 4, 4096)),
                row("d", 30.0, ("ours", 1, 1024)),
                row("e", 8.0, ("ours", 4, 1024)),
                row("each further 1k segment", 40.0),
            ],
            "failures": [{"name": "f", "reason": "no memory"}],
            "absent": [{"name": "g", "reason": "no library"}],
        },
        "replay": {
            "served": "small", "circumstances": WHERE, "plan": {"limit_s": 1.0},
            "arms": [
                {
                    "mode": "ours", "best": None, "saturated_per_s": 4.0,
                    "saturated_hit_share": 0.61, "cut_off": "",
                    "replays": [{"rate": 2.0, "p50_s": 0.5}, {"rate": 4.0, "p50_s": None}],
                },
                {
                    "mode": "late", "best": None, "saturated_per_s": 0.0,
                    "saturated_hit_share": 0.0, "cut_off": "start", "replays": [],
                },
            ],
        },
        "experiments": {
            "shape": "small", "circumstances": WHERE,
            "verdicts": [{"says": "it: 1.20, at most 1.1: given up"}],
            "timings": [
                {
                    "scene": "s", "arm": "key", "over_private": 1.2, "with_placing_ms": 0.3,
                    "copies_mib": 0.0,
                    "us_a_layer": {"minimum": 1.0, "median": 2.0, "maximum": 3.0},
                }
            ],
        },
    }  # fmt: skip
    folder = tmp_path / "results"
    folder.mkdir()
    for name, body in bodies.items():
        (folder / f"{name}.json").write_text(json.dumps(body))
    return folder


def written_pages(root: Path) -> list[Path]:
    (root / "docs").mkdir()
    marks = "".join(f"<!-- begin {name} -->\nold\n<!-- end {name} -->\n" for name in BLOCKS)
    for page in PAGES:
        (root / page).write_text(f"before\n{marks}after\n")
    return [root / page for page in PAGES]


def test_one_command_draws_and_fills(results, tmp_path):
    pages = written_pages(tmp_path)
    done = CliRunner().invoke(app, ["bench", "figures", str(results), "--root", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for page in pages:
        text = page.read_text()
        assert text.startswith("before\n")
        assert text.endswith("after\n")
        assert blocks(text) == texts(loaded(results))
        assert "| TTFT, 4 x 4k all hits | ms | 10.0 / 20.0 / 40.0 | <= 25 |" in text
        assert "<= 25 (**missed**)" in text
        assert "Failed: f (no memory)." in text
        assert "Not measured: g (no library)." in text
        assert "- it: 1.20, at most 1.1: given up" in text
        assert "| ours | none held | - | - | - | 4 | 61% |" in text
        assert "| late | - | - | - | - | - | - |" in text
        assert "Out of time: late (start)." in text
        assert "commit abc" in text
    names = {path.name for path in (tmp_path / FIGURES).glob("*.svg")}
    assert names == {"ttft_length.svg", "ttft_count.svg", "ttft_rate.svg"}
    # four segments have the most rows in common; of the rate, what was answered
    length = (tmp_path / FIGURES / "ttft_length.svg").read_text()
    assert "4 segments" in length
    assert (length.count("<circle"), length.count("<polyline")) == (4, 2)
    assert (tmp_path / FIGURES / "ttft_rate.svg").read_text().count("<circle") == 1


def test_another_number_is_another_table(results):
    before = texts(loaded(results))
    body = json.loads((results / "serving.json").read_text())
    body["rows"][0]["found"]["median"] += 1
    (results / "serving.json").write_text(json.dumps(body))
    after = texts(loaded(results))
    assert {name for name in before if before[name] != after[name]} == {
        "serving",
        "serving summary",
    }


def test_without_results_nothing_is_touched(tmp_path):
    pages = written_pages(tmp_path)
    before = [page.read_text() for page in pages]
    assert update(Console(quiet=True), folder=tmp_path / "none", root=tmp_path) == []
    assert [page.read_text() for page in pages] == before
    assert not list((tmp_path / "docs").glob("*.svg"))


def test_curves_rise_with_their_values_and_need_some():
    line = Curve("a & b", (Point("", 4, 10, 5, 20), Point("", 1, 100, 90, 120)))
    drawing = curves([line], "t", "x", "y")
    assert "a &amp; b" in drawing
    [points] = re.findall(r'<polyline points="([^"]+)"', drawing)
    (x1, y1), (x2, y2) = (map(float, one.split(",")) for one in points.split())
    assert x1 < x2, "in order of x"
    assert y1 < y2, "more is further up"
    with pytest.raises(ValueError, match="no points"):
        curves([], "t", "x", "y")
    with pytest.raises(ValueError, match="zero"):
        curves([Curve("a", (Point("", 0, 1, 1, 1),))], "t", "x", "y")
