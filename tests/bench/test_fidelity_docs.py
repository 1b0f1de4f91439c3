"""Tables of fidelity pages keep what they tell; what is no result is refused by its file's name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypic_sdk.bench import fidelity_docs
from hypic_sdk.bench.fidelity_docs import FIGURES, FIGURES_PART, MAKERS, READER, TITLES
from hypic_sdk.bench.report import CHANGED, UNKNOWN
from tests.bench.published_results import (
    BROKEN,
    WHERE,
    begin,
    broken,
    change,
    end,
    everything,
    part,
)

BETWEEN = {"mean": 0.5, "low": 0.25, "high": 0.75, "num_items": 4}
SETTING = {
    "live_tokens": 80.0, "live_share": 0.1, "num_cases": 5, "em": BETWEEN, "em_loss": BETWEEN,
    "kl": BETWEEN, "em_more": BETWEEN, "kl_more": BETWEEN,
}  # fmt: skip


def check(name: str) -> dict[str, Any]:
    return {"name": name, "measured": "1", "wanted": "2", "passed": True}


def summary(arm: str, stratum: str) -> dict[str, Any]:
    losses = dict.fromkeys(("em", "em_loss", "f1_loss", "rouge_l_loss", "kl"), BETWEEN)
    shares = {"kl_p99": 0.1, "top1": 0.9, "same_reply": 0.8}
    return {"arm": arm, "stratum": stratum, "live_tokens": 80.0, "prompt_tokens": 400.0,
            **losses, **shares}  # fmt: skip


def bodies() -> dict[str, dict[str, Any]]:
    """What each bench writes, two of everything."""
    arms, found = ("all", "ours"), {"model": READER, "seed": 7, "circumstances": WHERE}
    drift = {"relative_l2": 0.1, "degrees": 2.0}
    return {
        "fidelity": found | {
            "seconds": 3.0, "num_cases": 5,
            "plan": {"sizes": {"per_count": 1, "num_orders": 1, "counts": [2, 4]}},
            "verdict": {
                "qualifies": True,
                **{part: [check(f"{part} {one}") for one in "ab"]
                   for part in ("qualification", "rungs", "targets", "controls")},
            },
            "summaries": [summary(arm, stratum) for arm in arms for stratum in ("all", "tally")],
            "drift": [
                {"arm": arm, "attention": on, "layer": layer, **drift}
                for arm in arms for on in (True, False) for layer in (0, 1)
            ],
        },
        "divergence": found | {
            "arms": [
                {"arm": arm, "first_layer": "0 linear", "first_counts": {"0 linear": 3},
                 "num_prompts": 4, "relative_l2": [0.1, 0.2], "logits_kl": 0.1,
                 "layers": ["0 linear", "1 linear"]}
                for arm in arms
            ],
        },
        "sweep": found | {
            "strata": ["tally"], "advice": "none",
            "seams": [
                SETTING | {"name": name}
                for name in ("full", "8", "8, anchored", "4", "4, anchored")
            ],
            "anchored": [
                {"name": f"{name}, anchored", "other": name, "em_more": BETWEEN, "kl_more": BETWEEN}
                for name in ("8", "4")
            ],
            "ends": [],
            "shapes": {"two": SETTING, "four": SETTING},
        },
        "modes": found | {
            "arms": [
                {"arm": arm, "em": BETWEEN, "f1": BETWEEN, "rouge_l": BETWEEN, "same_reply": 0.9,
                 "kl": BETWEEN, "live_tokens": 80.0,
                 "ttft_ms": {"minimum": 1.0, "median": 2.0, "maximum": 3.0}}
                for arm in arms
            ],
        },
        "choices": found | {
            "num_prompts": 4, "num_cases": 5, "prompt_tokens": 400.0, "full_em": BETWEEN,
            "paying": "none",
            "choices": [
                {"name": name, "live_tokens": 80.0, "all_tokens": 90.0, "em": BETWEEN,
                 "kl": BETWEEN, "kl_to_control": None, "rival": "", "kl_to_rival": None,
                 "em_to_rival": None}
                for name in ("fixed 8", "fixed 16")
            ],
            "offsets": [
                {"name": name, "em": BETWEEN, "kl": BETWEEN, "top1": 0.9, "kl_more": None,
                 "em_more": None}
                for name in ("0", "64 further on")
            ],
        },
        "pairs": found | {
            "frontier": [["fp32", "fp32"]],
            "ways": [
                {"transition": way, "state": "fp32", "num_bytes": 2048, "share": 0.5, "median": 0.1,
                 "worst": 0.2}
                for way in ("fp32", "int8")
            ],
        },
    }  # fmt: skip


PARTS = [*MAKERS, FIGURES_PART]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    for name, body in bodies().items():
        (folder / f"{name}.json").write_text(json.dumps(body))
    for name in FIGURES:
        (folder / name).write_text("<svg/>")
    return folder


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    marks = "".join(map(part, PARTS))
    for title in TITLES:
        (folder / title).write_text(f"before\n{marks}after\n")
    return folder


def status(results: Path, pages: Path, *more: str) -> int:
    try:
        return fidelity_docs.main([str(results), "--pages", str(pages), *more])
    except SystemExit as ended:
        return int(ended.code or 0)


def is_refused(
    results: Path, pages: Path, capsys: pytest.CaptureFixture[str], *said: str, more: Any = ()
) -> None:
    """Status 2, these words, and nothing written."""
    before = everything(pages)
    capsys.readouterr()
    assert status(results, pages, *more) == 2
    told = capsys.readouterr().err
    for word in said:
        assert word in told, (word, told)
    assert everything(pages) == before


def put(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    copied = inside = json.loads(json.dumps(value))
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = other
    return copied


def test_everything_is_filled_in(results, pages, capsys):
    assert status(results, pages) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in PARTS)
    for title in TITLES:
        assert "old" not in (pages / title).read_text()
    assert {path.name for path in pages.glob("*.svg")} == set(FIGURES)


LISTS = [
    ("fidelity", ("summaries",)), ("fidelity", ("drift",)),
    ("fidelity", ("verdict", "qualification")), ("fidelity", ("verdict", "controls")),
    ("divergence", ("arms",)), ("sweep", ("seams",)), ("sweep", ("anchored",)),
    ("sweep", ("shapes",)), ("modes", ("arms",)), ("choices", ("choices",)),
    ("choices", ("offsets",)), ("pairs", ("ways",)),
]  # fmt: skip


@pytest.mark.parametrize(("bench", "place"), LISTS)
def test_a_result_with_nothing_to_tell_empties_no_page(bench, place, results, pages, capsys):
    path = results / f"{bench}.json"
    body = json.loads(path.read_text())
    inside = body
    for key in place:
        inside = inside[key]
    path.write_text(json.dumps(put(body, place, type(inside)())))
    is_refused(
        results, pages, capsys, str(path), f"hypic bench {bench} --out {results} --overwrite"
    )


def test_a_sweep_without_its_figures_empties_no_page(results, pages, capsys):
    for name in FIGURES:
        (results / name).unlink()
    is_refused(
        results, pages, capsys, str(results), f"'{FIGURES_PART}'", "no figure", "hypic bench sweep"
    )


NOT_JSON = (b"", b"{", b"null", b"[]", b"3", b'"x"', b"{}", b"\xff\xfe", b"[" * 100_000)


@pytest.mark.parametrize("bench", bodies())
def test_what_is_no_result_is_refused_by_name(bench, results, pages, capsys):
    path = results / f"{bench}.json"
    whole = path.read_text()
    others = [body for name, body in bodies().items() if name != bench]
    for text in (*NOT_JSON, *(json.dumps(body).encode() for body in others)):
        path.write_bytes(text)
        is_refused(results, pages, capsys, str(path), f"no result of `hypic bench {bench}`")
    path.unlink()
    path.mkdir()
    is_refused(results, pages, capsys, str(path), f"no result of `hypic bench {bench}`")
    path.rmdir()
    path.write_text(whole)
    assert status(results, pages) == 0


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a JSON, of a list to its first."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for key, one in items:
        yield (*at, key)
        if isinstance(one, dict | list):
            yield from places(one, (*at, key))


@pytest.mark.parametrize("bench", bodies())
def test_any_value_is_told_or_refused_and_no_page_is_torn(bench, results, pages, capsys):
    for name in bodies():
        if name != bench:
            (results / f"{name}.json").unlink()
    path = results / f"{bench}.json"
    body = bodies()[bench]
    for place in places(body):
        for value in (None, f"a\n{end(bench)}", [], 1e308):
            path.write_text(json.dumps(put(body, place, value)))
            before = everything(pages)
            capsys.readouterr()
            ended = status(results, pages)
            if ended:
                assert ended == 2
                assert everything(pages) == before
                assert str(results) in capsys.readouterr().err
            page = (pages / TITLES[0]).read_text()
            assert all(page.count(mark(name)) == 1 for mark in (begin, end) for name in PARTS)


ROWS = [
    ("fidelity", ("verdict", "controls", 1), "controls b"), ("fidelity", ("summaries", 2), "ours"),
    ("divergence", ("arms", 1), "ours"), ("sweep", ("anchored", 0), "8, anchored"),
    ("sweep", ("shapes", "four"), "four"), ("modes", ("arms", 0), "all"),
    ("choices", ("choices", 1), "fixed 16"), ("choices", ("offsets", 0), "0"),
    ("pairs", ("ways", 1), "int8, fp32"),
]  # fmt: skip


def without(value: Any, place: tuple[Any, ...]) -> Any:
    copied = inside = json.loads(json.dumps(value))
    for key in place[:-1]:
        inside = inside[key]
    del inside[place[-1]]
    return copied


@pytest.mark.parametrize(("bench", "place", "name"), ROWS)
def test_a_run_that_lacks_what_a_page_tells_is_refused(
    bench, place, name, results, pages, capsys, tmp_path
):
    (tmp_path / "pyproject.toml").write_text("")
    assert status(results, pages) == 0
    path = results / f"{bench}.json"
    path.write_text(json.dumps(without(json.loads(path.read_text()), place)))
    is_refused(results, pages, capsys, str(path), str(pages / TITLES[0]), name, "would lose")
    (tmp_path / "pyproject.toml").unlink()
    assert status(results, pages) == 0
    assert name in capsys.readouterr().out


def test_a_figure_that_a_page_shows_is_not_lost(results, pages, capsys, tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    assert status(results, pages) == 0
    gone = next(iter(FIGURES))
    (results / gone).unlink()
    is_refused(results, pages, capsys, gone, "would lose")


@pytest.mark.parametrize("why", BROKEN)
def test_a_page_whose_marks_are_broken_is_refused(why, results, pages, capsys):
    for title in TITLES:
        whole = (pages / title).read_text()
        for name in PARTS:
            text, mark = broken(why, name, PARTS)
            (pages / title).write_text(text)
            is_refused(results, pages, capsys, str(pages / title), mark)
        (pages / title).write_text(whole)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_reader_without_a_place_is_not_passed_over(name, results, pages, capsys):
    for title in TITLES:
        text = (pages / title).read_text().replace(part(name), "")
        (pages / title).write_text(text)
    is_refused(results, pages, capsys, begin(name).strip(), str(pages / TITLES[1]))


def test_of_a_named_model_pages_tell_what_they_will_and_something(results, pages, capsys):
    for bench, body in bodies().items():
        (results / f"{bench}.json").write_text(json.dumps(body | {"model": "judge"}))
    is_refused(results, pages, capsys, begin("judge fidelity").strip(), more=("--of", "judge"))
    page = pages / TITLES[0]
    page.write_text(page.read_text() + begin("judge pairs") + end("judge pairs"))
    capsys.readouterr()
    assert status(results, pages, "--of", "judge") == 0
    told = capsys.readouterr().out.splitlines()
    assert f"{pages}: judge pairs filled in" in told
    assert "no page has a place for: judge fidelity" in told
    assert not list(pages.glob("*.svg")), "which no page shows"


@pytest.mark.parametrize("bench", bodies())
@pytest.mark.parametrize("commit", [f"0123456789ab{CHANGED}", UNKNOWN, "1234abc with changes", ""])
def test_pages_of_a_checkout_are_of_a_commit(commit, bench, results, pages, capsys, tmp_path):
    change(results / f"{bench}.json", circumstances=WHERE | {"commit": commit})
    (tmp_path / ".git").mkdir()
    is_refused(results, pages, capsys, str(results / f"{bench}.json"), repr(commit))
    (tmp_path / ".git").rmdir()
    assert status(results, pages) == 0


def test_places_that_are_not_there_are_named(results, pages, capsys, tmp_path):
    is_refused(tmp_path / "nowhere", pages, capsys, "nowhere", "--out")
    is_refused(results, tmp_path / "no pages", capsys, str(tmp_path / "no pages" / TITLES[0]))
    (pages / TITLES[1]).unlink()
    is_refused(results, pages, capsys, str(pages / TITLES[1]), "--pages")


def test_figures_that_can_not_be_written_are_named_before_a_page_is(results, pages, capsys):
    (pages / next(iter(FIGURES))).mkdir()
    is_refused(results, pages, capsys, next(iter(FIGURES)))
