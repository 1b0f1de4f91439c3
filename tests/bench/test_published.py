"""Published pages keep what they tell: a run that has less of it is refused, and says of what."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hypic_sdk.bench.experiments import Verdict
from hypic_sdk.bench.figures import BLOCKS
from hypic_sdk.bench.pages import filled
from hypic_sdk.bench.published import read
from hypic_sdk.bench.serving_peer import LENGTHS
from hypic_sdk.bench.serving_targets import DEFAULT_SHAPE, TARGETS
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
    replayed,
    row,
    verdict,
    write_results,
    written_pages,
)
from tests.bench.test_serving import TARGETS as OF_ROWS
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
    more = verdict("other", 1.0, 1.5)
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


# -- results that contradict themselves

MET, MISSED, SPEED = "TTFT, 4 x 4k all hits", "each further 1k segment", "cold prefill"


def test_targets_are_those_of_the_benchs_rows():
    """`OF_ROWS` is what every row of a run is held to."""
    ratios = {n: f"full recompute over transformers, prefill of {n}" for n in LENGTHS}
    assert {ratios[n]: 2.0 for n in LENGTHS if n >= 8_192} | OF_ROWS == TARGETS
    assert DEFAULT_SHAPE == "qwen3.5-35b-a3b"


def spread_of(*values: float) -> dict[str, Any]:
    return dict(zip(("minimum", "median", "maximum"), values, strict=True)) | {"num_runs": 3}


# the row, what its file has of it otherwise, and what is said
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "the other side, met": (row(MET, 20.0), {"is_upper": False}, ("is_met true", "false")),
    "the other side, missed": (row(MISSED, 40.0), {"is_upper": False}, ("is_met false", "true")),
    "the other side, above a floor": (
        row(MET, 20.0) | {"floor": 5.0}, {"is_upper": False}, ("is_met true", "false"),
    ),
    "a missed row met": (row(MISSED, 40.0), {"is_met": True}, ("is_met true", "false")),
    "a met row missed": (row(MET, 20.0), {"is_met": False}, ("is_met false", "true")),
    "a verdict taken away": (row(MISSED, 40.0), {"is_met": None}, ("is_met null", "false")),
    "a verdict without a target": (row("b", 1.0), {"is_met": True}, ("is_met true", "null")),
    "a target taken away": (row(MISSED, 40.0), {"target": None}, ("is_met false", "null")),
    "another number": (
        row(MISSED, 40.0), {"found": spread_of(0.1, 0.2, 0.3)}, ("is_met false", "true"),
    ),
    "a target raised": (row(MISSED, 40.0), {"target": 50.0, "is_met": True}, ("50.0", "0.3")),
    "a target of its own": (row("b", 1.0), {"target": 50.0, "is_met": True}, ("50.0", "null")),
    "below zero": (row("b", 1.0), {"found": spread_of(-3.0, -2.0, -1.0)}, ("minimum of -3",)),
    "zero": (row("b", 1.0), {"found": spread_of(0.0, 2.0, 3.0)}, ("minimum of 0",)),
    "out of order": (row("b", 1.0), {"found": spread_of(1.0, 4.0, 3.0)}, ("median outside",)),
    "a time below its floor": (row("b", 1.0), {"floor": 0.75}, ("below its floor", "0.75")),
    "a speed above its floor": (
        row(SPEED, 1.0), {"unit": "tokens/s", "is_upper": False, "floor": 1.5},
        ("above its floor", "1.5"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", ROWS)
def test_a_row_that_contradicts_itself_is_refused_by_name(why, results, tmp_path, capsys):
    one, fields, said = ROWS[why]
    path = results / "serving.json"
    written_pages(tmp_path)
    others = [row(name, 0.2) for name in (MET, MISSED) if name != one["name"]]
    change(path, rows=[*others, one])
    assert command(results, tmp_path, capsys) == (0, "")
    change(path, rows=[*others, one | fields])
    is_refused(results, tmp_path, capsys, str(path), repr(one["name"]), *said, "measure again")


def test_a_target_that_the_benchs_row_has_is_not_taken_away(results, tmp_path, capsys):
    """From the shape that targets are of; runs of others are not judged."""
    path = results / "serving.json"
    rows = [one | {"target": None, "is_met": None} for one in (row(MET, 20.0), row("b", 1.0))]
    written_pages(tmp_path)
    change(path, rows=rows)
    assert command(results, tmp_path, capsys) == (0, "")
    change(path, rows=rows, shape=DEFAULT_SHAPE)
    is_refused(results, tmp_path, capsys, str(path), repr(MET), "25.0")
    # on a CPU nothing is judged
    change(path, circumstances=WHERE | {"hardware": "AMD EPYC (2 cores)"})
    assert command(results, tmp_path, capsys) == (0, "")


@pytest.mark.parametrize("one", [row(MISSED, 40.0), row("building", 40.0) | {"unit": "%"}])
def test_a_difference_of_two_times_may_be_below_zero(one, results, tmp_path, capsys):
    below = {"found": spread_of(-3.0, -2.0, -1.0), "is_met": one["target"] and True}
    change(results / "serving.json", rows=[row(MET, 20.0), one | below])
    written_pages(tmp_path)
    assert command(results, tmp_path, capsys) == (0, "")


VERDICTS: dict[str, tuple[dict[str, Any], str]] = {
    "other words": ({"says": "it: 2.20, at most 1.1: kept"}, "'it: 2.20, at most 1.1: kept'"),
    "words of another number": ({"says": "it: 1.20, at most 1.1: given up"}, "it: 1.20"),
    "kept": ({"is_kept": True}, "is_kept true"),
    "no verdict": ({"is_kept": None}, "is_kept null"),
    "judged by no rule": ({"is_judged": False}, "not judged here"),
    "another limit": ({"limit": 3.0}, "limit 3"),
    "another number": ({"found": 1.0}, "found 1,"),
    "no number": ({"found": None}, "found inf"),
}


@pytest.mark.parametrize("why", VERDICTS)
def test_a_verdict_that_its_numbers_do_not_give_is_refused(why, results, tmp_path, capsys):
    fields, said = VERDICTS[why]
    path = results / "experiments.json"
    written_pages(tmp_path)
    change(path, verdicts=[verdict("it", 2.2, 1.1)])
    assert command(results, tmp_path, capsys) == (0, "")
    change(path, verdicts=[verdict("it", 2.2, 1.1) | fields])
    is_refused(results, tmp_path, capsys, str(path), "'it'", said, "it: ")


@pytest.mark.parametrize("is_judged", [True, False])
@pytest.mark.parametrize(("found", "limit"), [(1.1, 1.1), (1.104, 1.1), (0.5, 2), (None, 1.1)])
def test_a_verdict_is_told_in_the_words_of_its_bench(found, limit, is_judged, results):
    one = Verdict("it", "at most", math.inf if found is None else found, limit, is_judged)
    told = {**asdict(one), "found": found, "is_kept": one.is_kept, "says": str(one)}
    change(results / "experiments.json", verdicts=[told])
    body = read(results).experiments
    assert body is not None
    assert [said.says for said in body.verdicts] == [str(one)]


@pytest.mark.parametrize("key", ["over_private", "with_placing_ms", "copies_mib", "us_a_layer"])
def test_a_time_below_zero_is_none(key, results, tmp_path, capsys):
    path = results / "experiments.json"
    [one] = json.loads(path.read_text())["timings"]
    below = spread_of(-3.0, -2.0, -1.0) if key == "us_a_layer" else -1.0
    written_pages(tmp_path)
    change(path, timings=[one | {key: below}])
    is_refused(results, tmp_path, capsys, str(path), "measure again")


HELD = [replayed(2.0, 0.5), replayed(4.0, 0.9), replayed(6.0, 1.5), replayed(8.0, None)]
BEST: dict[str, tuple[dict[str, Any] | None, str]] = {
    "a rate that was never replayed": (replayed(5.0, 0.9), "(5.0, "),
    "a p50 over the limit": (HELD[2], "(6.0, 1.5"),
    "another p50": (replayed(4.0, 0.7), "(4.0, 0.7"),
    "another p99": (HELD[1] | {"p99_s": 0.95}, "0.95"),
    "another share": (HELD[1] | {"hit_share": 0.9}, "0.9)"),
    "a lower rate": (HELD[0], "(2.0, "),
    "none": (None, "is none"),
}


@pytest.mark.parametrize("why", BEST)
def test_a_best_that_the_replays_do_not_give_is_refused(why, results, tmp_path, capsys):
    best, said = BEST[why]
    path = results / "replay.json"
    arm = {**ARM, "cut_off": "", "replays": HELD, "best": HELD[1]}
    written_pages(tmp_path)
    change(path, arms=[arm])
    assert command(results, tmp_path, capsys) == (0, "")
    change(path, arms=[arm | {"best": best}])
    is_refused(results, tmp_path, capsys, str(path), "'ours'", said, "(4.0, 0.9, 1.8, 0.5)")


NO_REPLAY = {
    "p50 below zero": {"p50_s": -0.5},
    "p99 below p50": {"p99_s": 0.1},
    "no rate": {"rate": 0.0},
    "share above one": {"hit_share": 1.5},
}


@pytest.mark.parametrize("why", NO_REPLAY)
def test_a_replay_that_can_not_be_is_refused(why, results, tmp_path, capsys):
    one = replayed(2.0, 0.5) | NO_REPLAY[why]
    written_pages(tmp_path)
    change(results / "replay.json", arms=[{**ARM, "cut_off": "", "replays": [one], "best": one}])
    is_refused(results, tmp_path, capsys, "replay.json", "measure again")
