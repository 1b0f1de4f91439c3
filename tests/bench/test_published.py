"""Published pages keep what they tell: a run that has less of it is refused, and says of what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hypic_sdk.bench.figures import BLOCKS
from hypic_sdk.bench.pages import filled
from hypic_sdk.cli.app import app
from tests.bench.published_results import (
    BROKEN,
    WHERE,
    begin,
    broken,
    change,
    command,
    is_refused,
    part,
    row,
    write_results,
    written_pages,
)
from tests.source_tree import REPOSITORY

ARM = {"mode": "ours", "best": None, "saturated_per_s": 0.0, "saturated_hit_share": 0.0,
       "cut_off": "start", "replays": []}  # fmt: skip
FAILED = [{"name": "keys", "reason": "no memory"}]
NOTHING: dict[str, tuple[str, dict[str, Any], str]] = {
    "no row": ("serving", {"rows": []}, "no rows; failed: f (no memory)"),
    "no row of README": ("serving", {"rows": [row("b", 1.0)]}, "'serving summary'"),
    "no arm": ("replay", {"arms": []}, "no arms"),
    "no arm that answered": (
        "replay",
        {"arms": [ARM]},
        "no arm that answered; failed: ours (start)",
    ),
    "no verdict": ("experiments", {"verdicts": []}, "no verdicts"),
    "no time": ("experiments", {"timings": []}, "no timings"),
    "neither": (
        "experiments",
        {"verdicts": [], "timings": [], "failures": FAILED},
        "no verdicts, no timings; failed: keys (no memory)",
    ),
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write_results(tmp_path)


@pytest.mark.parametrize("is_checkout", [False, True])
@pytest.mark.parametrize("why", NOTHING)
def test_a_result_with_nothing_to_tell_empties_no_page(why, is_checkout, results, tmp_path, capsys):
    bench, fields, said = NOTHING[why]
    path = results / f"{bench}.json"
    change(path, **fields)
    written_pages(tmp_path)
    if is_checkout:
        (tmp_path / "pyproject.toml").write_text("")
    again = f"hypic bench {bench} --out {results} --overwrite"
    is_refused(results, tmp_path, capsys, str(path), said, again)


LISTS = (("serving", "rows"), ("replay", "arms"), ("experiments", "verdicts"),
         ("experiments", "timings"))  # fmt: skip


def two_of_each(results: Path) -> None:
    """So that one may be left out."""
    body = json.loads((results / "experiments.json").read_text())
    more = {"says": "other: 1.00, at most 1.5: kept"}
    like = body["timings"][0] | {"arm": "query"}
    change(results / "experiments.json", verdicts=[more, *body["verdicts"]],
           timings=[*body["timings"], like])  # fmt: skip
    [ours, late] = json.loads((results / "replay.json").read_text())["arms"]
    change(results / "replay.json", arms=[ours, late, ours | {"mode": "other"}])


def name_of(one: dict[str, Any]) -> str:
    """As a page tells it apart."""
    names = [one[key] for key in ("name", "mode", "scene", "arm") if key in one]
    return ", ".join(names) or one["says"].partition(": ")[0]


@pytest.mark.parametrize(("bench", "of"), LISTS)
def test_a_run_that_lacks_what_a_page_tells_is_refused(bench, of, results, tmp_path, capsys):
    two_of_each(results)
    pages = written_pages(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    assert command(results, tmp_path, capsys) == (0, "")
    path = results / f"{bench}.json"
    whole = json.loads(path.read_text())[of]
    assert len(whole) > 1
    for one in whole:
        change(path, **{of: [other for other in whole if other is not one]})
        is_refused(
            results, tmp_path, capsys, str(path), name_of(one), str(pages[0]), "measure again"
        )
    # what is not measured any more is taken out of the pages first
    words = name_of(one).replace(", ", " | ") if of == "timings" else name_of(one)
    for page in pages:
        lines = page.read_text().splitlines(keepends=True)
        others = [line for line in lines if not line.startswith((f"| {words}", f"- {words}"))]
        page.write_text("".join(others))
    assert command(results, tmp_path, capsys) == (0, "")


@pytest.mark.parametrize(("bench", "of"), LISTS)
def test_a_copy_may_be_looked_at_with_less_and_says_what_it_lacks(
    bench, of, results, tmp_path, monkeypatch
):
    two_of_each(results)
    pages = written_pages(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    words = ["bench", "figures", str(results), "--root", str(tmp_path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    path = results / f"{bench}.json"
    [*rest, gone] = json.loads(path.read_text())[of]
    change(path, **{of: rest})
    before = [page.read_text() for page in pages]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert name_of(gone) in done.output
    assert [page.read_text() for page in pages] != before


def test_rows_that_nothing_here_can_give_may_be_lost(results, tmp_path, capsys):
    """A device or an optional library that is not there: the page says so where the row was."""
    path = results / "serving.json"
    rows = json.loads(path.read_text())["rows"]
    optional = [row(f"building, {size}, way B", 1.0) for size in ("one", "eight")]
    change(path, rows=[*rows, row("two GPUs", 1.0), *optional])
    pages = written_pages(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    assert command(results, tmp_path, capsys) == (0, "")
    absent = [{"name": name, "reason": "not here"} for name in ("two GPUs", "building, way B")]
    change(path, rows=rows)
    is_refused(results, tmp_path, capsys, "two GPUs", "building, one, way B")
    change(path, absent=absent)
    assert command(results, tmp_path, capsys) == (0, "")
    assert "Not measured: two GPUs (not here); building, way B (not here)." in pages[0].read_text()


def test_readmes_rows_that_are_not_there_are_named(results, tmp_path, monkeypatch):
    written_pages(tmp_path)
    monkeypatch.setenv("COLUMNS", "5000")
    words = ["bench", "figures", str(results), "--root", str(tmp_path)]
    said = CliRunner().invoke(app, words).output
    assert "of README's rows: TTFT, 4 x 4k full recompute; " in said, "the first is there"
    assert "; cold prefill, one text of 10k; " in said


def test_an_experiment_that_failed_is_told(results, tmp_path, capsys):
    pages = written_pages(tmp_path)
    change(results / "experiments.json", failures=FAILED)
    assert command(results, tmp_path, capsys) == (0, "")
    assert "Failed: keys (no memory)." in pages[0].read_text()


def test_an_arm_that_was_never_begun_is_of_a_run_that_was_ended(results, tmp_path, capsys):
    arms = json.loads((results / "replay.json").read_text())["arms"]
    change(results / "replay.json", arms=[*arms, ARM | {"mode": "third", "cut_off": ""}])
    written_pages(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    is_refused(results, tmp_path, capsys, "replay.json", "third", "ended")


@pytest.mark.parametrize(("bench", "of"), LISTS)
def test_nothing_is_told_twice(bench, of, results, tmp_path, capsys):
    path = results / f"{bench}.json"
    [one, *rest] = json.loads(path.read_text())[of]
    change(path, **{of: [one, *rest, one]})
    written_pages(tmp_path)
    is_refused(results, tmp_path, capsys, str(path), f"{name_of(one)} twice")


@pytest.mark.parametrize("commit", ["0123456", "0123456789ab", "0123456789" * 4])
def test_a_commit_is_known_by_its_digits(commit, results, tmp_path, capsys):
    for path in results.iterdir():
        change(path, circumstances=WHERE | {"commit": commit})
    (tmp_path / "pyproject.toml").write_text("")
    written_pages(tmp_path)
    assert command(results, tmp_path, capsys) == (0, "")


@pytest.mark.parametrize("mark", [".git", "pyproject.toml"])
@pytest.mark.parametrize("below", ["", "docs", "docs/deeper", "new/folder", "link"])
def test_a_checkout_is_known_from_any_folder_of_it(mark, below, results, tmp_path, capsys):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    written_pages(checkout)
    (checkout / mark).write_text("")
    (checkout / "link").symlink_to(checkout / "docs")
    change(results / "serving.json", is_tiny=True)
    is_refused(results, checkout / below, capsys, "serving.json", "tiny")


@pytest.mark.parametrize("linked", ["docs", "README.md"])
def test_a_copy_that_leads_into_a_checkout_is_one(linked, results, tmp_path, capsys):
    checkout, copy = tmp_path / "checkout", tmp_path / "copy"
    for root in (checkout, copy):
        root.mkdir()
    written_pages(checkout)
    (checkout / "pyproject.toml").write_text("")
    (copy / linked).symlink_to(checkout / linked)
    change(results / "serving.json", is_tiny=True)
    is_refused(results, copy, capsys, "serving.json", "tiny")


@pytest.mark.parametrize("why", BROKEN)
def test_a_page_whose_marks_are_broken_is_refused(why, results, tmp_path, capsys):
    for path in written_pages(tmp_path):
        whole = path.read_text()
        for name in BLOCKS:
            text, mark = broken(why, name, BLOCKS)
            path.write_text(text)
            is_refused(results, tmp_path, capsys, str(path), mark)
        path.write_text(whole)


def test_marks_of_the_docs_are_in_order():
    for path in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        assert filled(text, {}, path) == text


@pytest.mark.parametrize("name", BLOCKS)
def test_a_result_without_a_place_is_not_passed_over(name, results, tmp_path, capsys):
    for path in written_pages(tmp_path):
        path.write_text(path.read_text().replace(part(name), ""))
    # a folder that is in no checkout may be without pages at all
    assert command(results, tmp_path, capsys) == (0, "")
    (tmp_path / "pyproject.toml").write_text("")
    is_refused(results, tmp_path, capsys, begin(name).strip(), str(tmp_path))
    (results / f"{BLOCKS[name]}.json").unlink()
    assert command(results, tmp_path, capsys) == (0, "")
