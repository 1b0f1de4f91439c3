"""Tables of docs pages: each has its place, and is made of what its bench writes."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from hypic_sdk.bench.choices_report import report
from hypic_sdk.bench.choices_ways import WIDTHS, offset_arms, ways
from hypic_sdk.bench.fidelity_arms import FULL, Row
from hypic_sdk.bench.fidelity_docs import (
    BEGIN,
    END,
    FIGURES,
    FIGURES_PART,
    MAKERS,
    READER,
    TITLES,
    main,
)
from hypic_sdk.bench.report import circumstances
from hypic_sdk.bench.sweep import SEAMS, STRATA, seam_arms, settings
from hypic_sdk.bench.sweep_report import BOTH_ENDS, write_sweep
from hypic_sdk.bench.sweep_report import report as sweep_report

DOCS = Path(__file__).parents[2] / "docs"
PARTS = (*MAKERS, FIGURES_PART)
# parts that a page may have of a model other than the packaged reader
OF_JUDGE = ("fidelity", "divergence", "sweep", FIGURES_PART, "anchored", "choices", "offsets")
OF_ANOTHER = ("choices", "offsets")  # of a judge that is gone, as its page says
BLOCK = re.compile(rf"{BEGIN} ([\w ]+) -->\n(.*?){END} \1 -->\n", re.DOTALL)
NOTHING = "<!-- nothing is measured yet -->\n"
SHOWN = re.compile(r"!\[[^]]*\]\(([\w./]+)\)")


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


def measured(tmp_path: Path, model: str = READER) -> None:
    """What `sweep` and `choices` leave, of rows that nobody measured."""
    rows = rows_of([FULL, *(arm.name for arm in seam_arms())])
    shapes = {"two": settings(rows, "8", 6)[-1]}
    write_sweep(
        sweep_report(model, 7, STRATA, circumstances("cpu"), rows, 9, shapes, "8"), tmp_path
    )
    names = [FULL, *(way.name for way in ways()), *(arm.name for arm in offset_arms())]
    body = asdict(report(model, rows_of(names), 5, circumstances("cpu")))
    (tmp_path / "choices.json").write_text(json.dumps(body))


def lines_between(page: str, name: str) -> list[str]:
    return page.split(f"{BEGIN} {name} -->\n")[1].split(f"{END} {name} -->")[0].splitlines()


def docs_blocks() -> list[tuple[str, str, str]]:
    """Model, part and text of each block that these benches fill."""
    text = "".join((DOCS / title).read_text(encoding="utf-8") for title in TITLES)
    found = []
    for name, inside in BLOCK.findall(text):
        model, _, part = name.partition(" ") if name not in PARTS else ("", "", name)
        if part in PARTS:
            found.append((model, part, inside))
    return found


def test_every_table_has_one_place_in_the_docs():
    blocks = [(model, part) for model, part, _ in docs_blocks()]
    assert len(set(blocks)) == len(blocks)
    assert {part for model, part in blocks if not model} == set(PARTS)
    assert {part for model, part in blocks if model} == set(OF_JUDGE)
    assert {model for model, _ in blocks} == {"", "judge"}
    pages = "".join((DOCS / title).read_text(encoding="utf-8") for title in TITLES)
    for model, part in blocks:
        name = f"{model} {part}".strip()
        assert pages.count(f"{BEGIN} {name} -->\n") == pages.count(f"{END} {name} -->\n") == 1, name


def test_a_table_is_of_its_model_or_says_nothing():
    for model, part, inside in docs_blocks():
        shown = SHOWN.findall(inside)
        assert all((DOCS / name).is_file() for name in shown), part
        assert all(name.startswith(f"{model}_sweep" if model else "sweep") for name in shown)
        if inside == NOTHING or part == FIGURES_PART:
            assert inside == NOTHING or shown
            continue
        named = set(re.findall(r"^`([\w-]+)`", inside, re.MULTILINE))
        if model:
            assert named == {model}, part
        elif part not in OF_ANOTHER:
            assert named <= {READER}, part


def blank_pages(tmp_path: Path) -> Path:
    pages = tmp_path / "docs"
    pages.mkdir()
    names = [f"{model}{part}" for model in ("", "judge ") for part in PARTS]
    marks = [f"{BEGIN} {name} -->\nold\n{END} {name} -->\n" for name in names]
    for title in TITLES:
        (pages / title).write_text("before\n" + "".join(marks) + "after\n")
    return pages


@pytest.mark.parametrize("of", ["", "judge"])
def test_a_folder_fills_its_tables_and_leaves_the_others(tmp_path, of):
    measured(tmp_path, of or READER)
    pages = blank_pages(tmp_path)
    more = ["--of", of] if of else []
    prefix, other = (f"{of} ", "") if of else ("", "judge ")
    assert main([str(tmp_path), "--pages", str(pages), *more]) == 0
    for title in TITLES:
        page = (pages / title).read_text()
        assert page.startswith("before\n")
        assert page.endswith("after\n")
        for name in ("fidelity", "divergence", "modes", "pairs"):
            assert lines_between(page, prefix + name) == ["old"]
        for name in PARTS:
            assert lines_between(page, other + name) == ["old"]
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
        assert all(f"| {ends} | {head} |" in seams for ends, head in BOTH_ENDS.items())
        assert "4 of 9 prompts, seed 7" in seams
        assert "4 of 9 prompts, seed 7" in anchored
        assert "| 4 of 6 |" in seams, "a shape has its own number of prompts"
        shown = SHOWN.findall("\n".join(lines_between(page, prefix + FIGURES_PART)))
        assert shown == [f"{prefix.replace(' ', '_')}{name}" for name in FIGURES]
    assert {path.name for path in pages.glob("*.svg")} == set(shown)
    assert all("<circle" in (pages / name).read_text() for name in shown)
    before = [(pages / title).read_text() for title in TITLES]
    main([str(tmp_path), "--pages", str(pages), *more])
    assert [(pages / title).read_text() for title in TITLES] == before, "the same again"


@pytest.mark.parametrize(("model", "of"), [("judge", ""), (READER, "judge"), ("other", "judge")])
def test_results_of_another_model_fill_nothing(tmp_path, capsys, model, of):
    measured(tmp_path, model)
    pages = blank_pages(tmp_path)
    before = {path: path.read_bytes() for path in pages.iterdir()}
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--pages", str(pages), *(["--of", of] if of else [])])
    assert f"is of {model!r}" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in pages.iterdir()} == before


def test_a_quick_run_has_no_table_of_ends_and_figures_it_lacks_are_not_shown(tmp_path):
    measured(tmp_path)
    body = json.loads((tmp_path / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps({**body, "ends": []}))
    (tmp_path / "sweep_top1.svg").unlink()
    pages = blank_pages(tmp_path)
    main([str(tmp_path), "--pages", str(pages)])
    page = (pages / TITLES[0]).read_text()
    assert "both ends" not in "\n".join(lines_between(page, "sweep"))
    assert len(SHOWN.findall("\n".join(lines_between(page, FIGURES_PART)))) == len(FIGURES) - 1
