"""Figures and tables of the docs are made of committed results, and of nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from hypic_sdk.bench import figures
from hypic_sdk.bench.fidelity_docs import filled
from hypic_sdk.bench.figures import BLOCKS, FIGURES, PAGES, RESULTS, texts, update
from hypic_sdk.bench.published import TINY_SHAPES, Results, read
from hypic_sdk.bench.report import CHANGED, UNKNOWN, circumstances
from hypic_sdk.bench.serving_model import SHAPES
from hypic_sdk.bench.svg_figure import Curve, Point, curves
from hypic_sdk.cli.app import app
from hypic_sdk.errors import ConfigError
from tests.bench.published_results import (
    WHERE,
    command,
    is_refused,
    write_results,
    written_pages,
)
from tests.source_tree import REPOSITORY

BLOCK = re.compile(r"<!-- begin ([\w ]+) -->\n(.*?)<!-- end \1 -->", re.DOTALL)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write_results(tmp_path)


def blocks(page: str) -> dict[str, str]:
    return {name: text for name, text in BLOCK.findall(page) if name in BLOCKS}


def test_the_docs_say_what_the_committed_results_say():
    results = read(REPOSITORY / RESULTS)
    want = texts(results)
    found: dict[str, list[str]] = {name: [] for name in BLOCKS}
    for page in PAGES:
        for name, text in blocks((REPOSITORY / page).read_text(encoding="utf-8")).items():
            found[name].append(text)
    for name, told in found.items():
        # without results a block is empty; with them, each is theirs
        assert all(text == want.get(name, "") for text in told), name
    for name, bench in BLOCKS.items():
        assert found[name] or bench not in results.names, f"{bench}.json has no place for {name!r}"
    for name, drawing in figures.figures(results).items():
        assert (REPOSITORY / FIGURES / name).read_text(encoding="utf-8") == drawing


def test_one_command_draws_and_fills(results, tmp_path):
    pages = written_pages(tmp_path)
    done = CliRunner().invoke(app, ["bench", "figures", str(results), "--root", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for page in pages:
        text = page.read_text()
        assert text.startswith("before\n")
        assert text.endswith("after\n")
        assert blocks(text) == texts(read(results))
        assert "| TTFT, 4 x 4k all hits | ms | 10.0 / 20.0 / 40.0 | <= 25 |" in text
        assert "<= 0.3 (**missed**)" in text
        assert "Failed: f (no memory)." in text
        assert "Not measured: g (no library)." in text
        assert "- it: 1.20, at most 1.1: given up" in text
        assert "| ours | none held | - | - | - | 4 | 61% |" in text
        assert "| late | - | - | - | - | - | - |" in text
        assert "Out of time: late (start)." in text
        assert "commit 0123456789ab" in text
    names = {path.name for path in (tmp_path / FIGURES).glob("*.svg")}
    assert names == {"ttft_length.svg", "ttft_count.svg", "ttft_rate.svg"}
    # four segments have the most rows in common; of the rate, what was answered
    length = (tmp_path / FIGURES / "ttft_length.svg").read_text()
    assert "4 segments" in length
    assert (length.count("<circle"), length.count("<polyline")) == (4, 2)
    assert (tmp_path / FIGURES / "ttft_rate.svg").read_text().count("<circle") == 1


def test_another_number_is_another_table(results):
    before = texts(read(results))
    body = json.loads((results / "serving.json").read_text())
    body["rows"][0]["found"]["median"] += 1
    (results / "serving.json").write_text(json.dumps(body))
    after = texts(read(results))
    assert {name for name in before if before[name] != after[name]} == {
        "serving",
        "serving summary",
    }


def test_without_results_nothing_is_touched(tmp_path):
    pages = written_pages(tmp_path)
    before = [page.read_text() for page in pages]
    (tmp_path / "none").mkdir()
    assert update(Console(quiet=True), folder=tmp_path / "none", root=tmp_path) == []
    assert [page.read_text() for page in pages] == before
    assert not list((tmp_path / "docs").glob("*.svg"))


NOT_JSON = (
    b'"\\ud800"',
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'{"a": NaN}',
    b"[" * 100_000,
    b"3",
    b'"x"',
)


@pytest.mark.parametrize("bench", sorted(set(BLOCKS.values())))
def test_what_is_no_result_is_refused_by_name(bench, results, tmp_path, capsys):
    written_pages(tmp_path)
    path = results / f"{bench}.json"
    body = json.loads(path.read_text())
    foreign = {"bench": "other"}, {**body, "bench": "other"}, {"circumstances": WHERE}
    without = [{k: v for k, v in body.items() if k != key} for key in ("bench", "circumstances")]
    for text in (*NOT_JSON, *(json.dumps(one).encode() for one in (*foreign, *without))):
        path.write_bytes(text)
        is_refused(results, tmp_path, capsys, str(path), f"hypic bench {bench}", "take it away")
    path.unlink()
    path.mkdir()
    is_refused(results, tmp_path, capsys, str(path))


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in items:
        yield (*at, key)
        if isinstance(one, dict | list):
            yield from places(one, (*at, key))


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30), st.just([]),
    st.just({}), st.lists(st.integers(), max_size=3), st.just("<!-- end serving -->"),
    st.just("a | b\nc"),
)  # fmt: skip


def check_told(folder: Path, path: Path) -> None:
    """Results are told on whole pages, or refused by the name of their file."""
    found, told = None, str(path)
    try:
        found = read(folder)
    except ConfigError as error:
        told = error.message
    assert str(path) in told
    for name, text in texts(found).items() if found is not None else ():
        page = filled(f"<!-- begin {name} -->\n<!-- end {name} -->", {name: text})
        assert BLOCK.findall(page) == [(name, text)]
        tables = [line for line in text.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in tables}) == 1
    figures.figures(found or Results())


def put(body: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at a place."""
    copied = inside = json.loads(json.dumps(body))
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return copied


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_in_a_result_is_told_or_refused_by_the_files_name(data, results):
    """A file is read as what it is made of: no traceback, and no page that is torn by a word."""
    bench = data.draw(st.sampled_from(sorted(set(BLOCKS.values()))))
    path = results / f"{bench}.json"
    whole = path.read_text()
    body = json.loads(whole)
    place = data.draw(st.sampled_from(list(places(body))))
    try:
        path.write_text(json.dumps(put(body, place, data.draw(ANYTHING))))
        check_told(results, path)
    finally:
        path.write_text(whole)


@pytest.mark.parametrize("name", BLOCKS)
def test_no_word_and_no_number_tears_a_page(name, results):
    """Each in turn, as `test_any_value..` does by chance."""
    path = results / f"{BLOCKS[name]}.json"
    body = json.loads(path.read_text())
    for place in places(body):
        for value in (f"a | b\n<!-- end {name} -->", 0, -1, 1e308, 5e-324, None):
            path.write_text(json.dumps(put(body, place, value)))
            check_told(results, path)


UNFIT = {
    "tiny": ({"shape": "tiny", "served": "tiny-8k, cache of 1 GiB"}, {}),
    "tiny, of a model": ({"is_tiny": True}, {}),
    "on a CPU": ({}, {"hardware": "AMD EPYC (2 cores)"}),
    "on a CPU, by its torch": ({}, {"torch": "2.13.0+cpu"}),
    "on nothing": ({}, {"hardware": " "}),
    **{
        f"of {commit!r}": ({}, {"commit": commit})
        for commit in (
            f"0123456789ab{CHANGED}", UNKNOWN, "", "1234abc with changes", "0123456789ab ",
            "0123456789ab+", "0123456789AB", "abc", "main", "v0.1.0", "0123456789ab\n",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("bench", sorted(set(BLOCKS.values())))
@pytest.mark.parametrize("why", UNFIT)
def test_pages_of_a_checkout_are_of_no_such_run(bench, why, results, tmp_path, capsys):
    path = results / f"{bench}.json"
    body = json.loads(path.read_text())
    fields, where = UNFIT[why]
    body |= {key: value for key, value in fields.items() if key in body or key == "is_tiny"}
    path.write_text(json.dumps({**body, "circumstances": WHERE | where}))
    written_pages(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    is_refused(results, tmp_path, capsys, str(path), "--root", f"hypic bench {bench}")
    # a copy may be looked at
    (tmp_path / "pyproject.toml").unlink()
    status, told = command(results, tmp_path, capsys)
    assert (status, told) == (0, "")
    assert all(texts(read(results, for_pages=False)) == blocks(text)
               for text in ((tmp_path / page).read_text() for page in PAGES))  # fmt: skip


def test_what_a_run_here_writes_is_known_as_one_of_this_machine(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert circumstances("auto").is_cpu
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA H200")
    assert not circumstances("auto").is_cpu
    assert not circumstances(torch.device("cuda")).is_cpu
    assert circumstances(torch.device("cpu")).is_cpu, "where a GPU is beside it, too"
    assert set(TINY_SHAPES) == {shape for shape in SHAPES if shape.startswith("tiny")}
    assert read(REPOSITORY / RESULTS).names, "what is committed may be shown"


def test_a_folder_that_is_not_there_is_named(tmp_path, capsys):
    is_refused(tmp_path / "nowhere", tmp_path, capsys, "nowhere", "--out")


def test_a_figure_that_can_not_be_written_is_named_before_a_page_is(results, tmp_path, capsys):
    written_pages(tmp_path)
    (tmp_path / FIGURES / "ttft_rate.svg").mkdir()
    is_refused(results, tmp_path, capsys, "ttft_rate.svg")


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
