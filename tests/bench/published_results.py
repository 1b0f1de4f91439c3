"""Results of three benches, pages for them, and `hypic bench figures` over both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hypic_sdk.bench.figures import BLOCKS, PAGES
from hypic_sdk.bench.serving_targets import TARGETS
from hypic_sdk.cli.app import main

WHERE = {
    "hardware": "a device", "num_threads": 3, "python": "3.11", "torch": "2.13",
    "transformers": "5", "hypic_sdk": "0.1", "commit": "0123456789ab",
}  # fmt: skip


def row(name: str, median: float, place: tuple[str, int, int] | None = None) -> dict[str, Any]:
    arm_and_place = place and dict(
        zip(("arm", "num_segments", "segment_tokens"), place, strict=True)
    )
    target = TARGETS.get(name)
    return {
        "name": name, "unit": "ms", "target": target, "is_upper": True,
        "is_met": None if target is None else median <= target,
        "found": {"minimum": median / 2, "median": median, "maximum": 2 * median, "num_runs": 3},
        "floor": None, "notes": {}, "place": arm_and_place,
    }  # fmt: skip


def verdict(experiment: str, found: float, limit: float) -> dict[str, Any]:
    rule, word = f"at most {limit}", "kept" if found <= limit else "given up"
    return {
        "experiment": experiment, "rule": rule, "found": found, "limit": limit,
        "is_kept": found <= limit, "says": f"{experiment}: {found:.2f}, {rule}: {word}",
    }  # fmt: skip


def replayed(rate: float, p50_s: float | None, *, kept_up: bool = True) -> dict[str, Any]:
    return {
        "rate": rate, "p50_s": p50_s, "p99_s": p50_s and 2 * p50_s, "hit_share": 0.5,
        "num_failed": int(p50_s is None), "kept_up": kept_up,
    }  # fmt: skip


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def write_results(tmp_path: Path) -> Path:
    """A folder with those of all three benches, with what happens in each."""
    bodies = {
        "serving": {
            "bench": "serving", "shape": "small", "circumstances": WHERE,
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
            "bench": "replay", "served": "small", "circumstances": WHERE, "plan": {"limit_s": 1.0},
            "arms": [
                {
                    "mode": "ours", "best": None, "saturated_per_s": 4.0,
                    "saturated_hit_share": 0.61, "cut_off": "",
                    "replays": [replayed(2.0, 0.5, kept_up=False), replayed(4.0, None)],
                },
                {
                    "mode": "late", "best": None, "saturated_per_s": 0.0,
                    "saturated_hit_share": 0.0, "cut_off": "start", "replays": [],
                },
            ],
        },
        "experiments": {
            "bench": "experiments", "shape": "small", "circumstances": WHERE,
            "verdicts": [verdict("it", 1.2, 1.1)],
            "timings": [
                {
                    "scene": "s", "arm": "key", "over_private": 1.2, "with_placing_ms": 0.3,
                    "copies_mib": 0.0,
                    "us_a_layer": {
                        "minimum": 1.0, "median": 2.0, "maximum": 3.0, "num_runs": 3
                    },
                }
            ],
        },
    }  # fmt: skip
    folder = tmp_path / "results"
    folder.mkdir()
    for name, body in bodies.items():
        (folder / f"{name}.json").write_text(json.dumps(body))
    return folder


def begin(name: str) -> str:
    return f"<!-- begin {name} -->\n"


def end(name: str) -> str:
    return f"<!-- end {name} -->\n"


BROKEN: dict[str, tuple[Callable[[str, str], str], Callable[[str], str]]] = {
    "no end": (lambda one, other: begin(one) + other, end),
    "no begin": (lambda one, other: other + end(one), begin),
    "twice": (lambda one, other: 2 * (begin(one) + end(one)) + other, begin),
    "begun twice": (lambda one, other: 2 * begin(one) + end(one) + other, begin),
    "ended twice": (lambda one, other: begin(one) + 2 * end(one) + other, end),
    "the wrong way round": (lambda one, other: end(one) + begin(one) + other, end),
    "around another": (lambda one, other: begin(one) + other + end(one), begin),
    "over another's end": (
        lambda one, other: begin(one) + other.replace("\n<", f"\n{end(one)}<", 1), begin,
    ),
    "in a line": (lambda one, other: f"word {begin(one)}{end(one)}{other}", begin),
    "with a word behind": (
        lambda one, other: begin(one) + end(one).replace("\n", " word\n") + other, end,
    ),
    "with a space behind": (
        lambda one, other: begin(one).replace("\n", " \n") + end(one) + other, begin,
    ),
    "torn": (lambda one, other: begin(one) + f"<!-- end {one}\n" + other, end),
    "otherwise spaced": (lambda one, other: f"<!--begin  {one}-->\n" + end(one) + other, begin),
}  # fmt: skip
"""Of a part and all others of a page: marks that will not do, and the one to be told of."""


def part(name: str) -> str:
    return f"{begin(name)}old\n{end(name)}"


def broken(why: str, name: str, names: Iterable[str]) -> tuple[str, str]:
    """A page of these parts in which the marks of one are broken, and the mark to be told of."""
    make, mark = BROKEN[why]
    others = "".join(part(one) for one in names if one != name)
    return f"before\n{make(name, others)}after\n", mark(name).strip()


def written_pages(root: Path) -> list[Path]:
    (root / "docs").mkdir()
    marks = "".join(map(part, BLOCKS))
    for page in PAGES:
        (root / page).write_text(f"before\n{marks}after\n")
    return [root / page for page in PAGES]


def command(folder: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit status of `hypic bench figures`, and what it says of an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["hypic", "bench", "figures", str(folder), "--root", str(root)])
        patch.setenv("COLUMNS", "1000")
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0), capsys.readouterr().err
    raise AssertionError("a command ends by its status")


def everything(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def is_refused(folder: Path, root: Path, capsys: pytest.CaptureFixture[str], *said: str) -> None:
    """One line with the file's name and these words, status 2, and nothing written."""
    before = everything(root)
    status, told = command(folder, root, capsys)
    assert status == 2, told
    assert told.startswith("hypic: config_error: ")
    assert told.count("\n") == 1, told
    for word in said:
        assert word in told
    assert everything(root) == before
