"""Tables of docs pages: each has its place, and is made of what its bench writes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from hypic_sdk.bench.choices_report import report
from hypic_sdk.bench.choices_ways import WIDTHS, offset_arms, ways
from hypic_sdk.bench.fidelity_arms import FULL, Row
from hypic_sdk.bench.fidelity_docs import BEGIN, END, MAKERS, TITLES, main
from hypic_sdk.bench.report import circumstances
from hypic_sdk.bench.sweep import SEAMS, anchored_pairs, seam_arms, settings

DOCS = Path(__file__).parents[2] / "docs"


def row(arm: str, case: int, kl: float, live: int) -> Row:
    return Row(
        arm, case, "tally", f"world {case}", 4, 1.0, 1.0, 1.0, kl, kl, 1.0, True, 400, live, -1
    )


def rows_of(names: list[str]) -> list[Row]:
    return [
        row(name, case, 0.01 * at + case / 1e3, 50 + at)
        for at, name in enumerate(names)
        for case in range(4)
    ]


def measured(tmp_path: Path) -> None:
    """What `sweep` and `choices` leave, of rows that nobody measured."""
    about = {"model": "a model", "seed": 7, "circumstances": asdict(circumstances())}
    rows = rows_of([FULL, *(arm.name for arm in seam_arms())])
    sweep = {
        **about,
        "advice": "none",
        "seams": [asdict(one) for one in settings(rows, "8")],
        "anchored": [asdict(one) for one in anchored_pairs(rows)],
        "shapes": {"two": asdict(settings(rows, "8")[-1])},
    }
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    names = [FULL, *(way.name for way in ways()), *(arm.name for arm in offset_arms())]
    rows = rows_of(names)
    body = asdict(report("a model", rows, 5, circumstances()))
    (tmp_path / "choices.json").write_text(json.dumps(body))
    (tmp_path / "sweep_kl.svg").write_text("<svg/>")


def lines_between(page: str, name: str) -> list[str]:
    return page.split(f"{BEGIN} {name} -->\n")[1].split(f"{END} {name} -->")[0].splitlines()


def test_every_table_has_one_place_in_the_docs():
    pages = [(DOCS / title).read_text(encoding="utf-8") for title in TITLES]
    for name in MAKERS:
        assert sum(page.count(f"{BEGIN} {name} -->\n") for page in pages) == 1, name
        assert sum(page.count(f"{END} {name} -->\n") for page in pages) == 1, name


@pytest.mark.parametrize("of", ["", "judge"])
def test_a_folder_fills_its_tables_and_leaves_the_others(tmp_path, of):
    measured(tmp_path)
    pages = tmp_path / "docs"
    pages.mkdir()
    prefix = f"{of} " if of else ""
    for title in TITLES:
        marks = [f"{BEGIN} {prefix}{name} -->\nold\n{END} {prefix}{name} -->\n" for name in MAKERS]
        (pages / title).write_text("before\n" + "".join(marks) + "after\n")
    assert main([str(tmp_path), "--pages", str(pages), *(["--of", of] if of else [])]) == 0
    for title in TITLES:
        page = (pages / title).read_text()
        assert page.startswith("before\n")
        assert page.endswith("after\n")
        for name in ("fidelity", "divergence", "modes", "pairs"):
            assert lines_between(page, prefix + name) == ["old"]
        choices = "\n".join(lines_between(page, prefix + "choices"))
        assert all(f"| {way.name} |" in choices for way in ways())
        assert f"| fixed {WIDTHS[0]} | 51 | 51 |" in choices
        assert "4 of 5 prompts, seed 30000001" in choices
        shifted = lines_between(page, prefix + "offsets")
        assert sum(line.startswith("| ") for line in shifted) == 2 + len(offset_arms())
        anchored = "\n".join(lines_between(page, prefix + "anchored"))
        seams = "\n".join(lines_between(page, prefix + "sweep"))
        for arm in seam_arms():
            assert (f"| {arm.name} |" in anchored) or not arm.anchored
            assert (f"| {arm.name} |" in seams) is not arm.anchored
        assert all(f"| {seam} |" in seams for seam in SEAMS)
    assert len(list(pages.glob("*sweep_kl.svg"))) == 1
