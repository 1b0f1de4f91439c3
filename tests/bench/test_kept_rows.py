"""Rows outlive the run that was cut off, and cases come in turns."""

from __future__ import annotations

import json
import math

import pytest

from hypic_sdk.bench.fidelity_arms import FULL, Row
from hypic_sdk.bench.fidelity_cases import CaseSizes, make_cases
from hypic_sdk.bench.fidelity_rows import in_turns, measure_rows, rows_of
from hypic_sdk.bench.kept_rows import KeptRows, TimeLimit
from hypic_sdk.errors import ConfigError

ABOUT = {"model": "one", "sizes": (1, 2)}
CASES = make_cases(CaseSizes(2, (2, 3), (100,), 2), ("two documents", "latest wins"))


def test_rows_are_read_again_by_a_run_about_the_same(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    first = KeptRows(path, ABOUT)
    first.add({"case": 1, "kl": 0.5})
    first.add({"case": 2, "kl": math.inf})
    assert KeptRows(path, ABOUT).rows == [{"case": 1, "kl": 0.5}, {"case": 2, "kl": None}]
    before = path.read_text()
    for others, named in (
        ({"model": "other"}, "another model"),
        ({"sizes": (1, 3), "seed": 2}, "another seed, sizes"),
    ):
        with pytest.raises(ConfigError, match=rf"{named}\).*--overwrite"):
            KeptRows(path, {**ABOUT, **others})
    assert path.read_text() == before, "nothing is lost"
    assert len(KeptRows(path, ABOUT).rows) == 2


@pytest.mark.parametrize("head", ["", "[1]", '{"about": 3}', '{"case": 1}', "no JSON"])
def test_a_file_that_is_none_of_rows_is_refused(tmp_path, head):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{head}\nmore\n")
    with pytest.raises(ConfigError, match="another kind of file"):
        KeptRows(path, ABOUT)
    assert path.read_text() == f"{head}\nmore\n"


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_row_that_was_being_written_is_left_out_and_the_file_goes_on(tmp_path, cut):
    path = tmp_path / "rows.jsonl"
    kept = KeptRows(path, ABOUT)
    for case in range(3):
        kept.add({"case": case, "name": "a name that is long enough"})
    path.write_text(path.read_text()[:-cut])
    again = KeptRows(path, ABOUT)
    # without its line end alone a row is whole
    assert [row["case"] for row in again.rows] == ([0, 1, 2] if cut == 1 else [0, 1])
    again.add({"case": 9})
    assert [row["case"] for row in KeptRows(path, ABOUT).rows][-1] == 9
    for line in path.read_text().splitlines():
        json.loads(line)


def test_any_beginning_of_the_cases_is_like_the_whole():
    turns = in_turns(CASES)
    assert sorted(number for number, _ in turns) == list(range(len(CASES)))
    assert all(CASES[number] is case for number, case in turns)
    worlds = list(dict.fromkeys(case.world for _, case in turns))
    kinds = [world.rpartition("/")[0] for world in worlds]
    assert len(set(kinds[:4])) == 4, "each stratum with each number of documents comes first"
    strata = [kind.rpartition("/")[0] for kind in kinds]
    assert len(set(strata[:2])) == 2, "and before that each stratum once"
    places = [worlds.index(case.world) for _, case in turns]
    assert places == sorted(places), "a world's orders stand together"


class _Reply:
    def __init__(self, number, case):
        self.number, self.case = number, case


class _Bench:
    """Counts what it is asked, and may be cut off in the middle of a case."""

    subject = None

    def __init__(self, stop_after=None):
        self.asked, self.stop_after = [], stop_after

    def full(self, case, number):
        return _Reply(number, case)

    def rows(self, full):
        for arm in ("one", "two"):
            if self.stop_after is not None and len(self.asked) == self.stop_after:
                raise KeyboardInterrupt
            self.asked.append((full.number, arm))
            yield _row(arm, full)


def _row(arm, full):
    return Row(
        arm, full.number, full.case.stratum, full.case.world, 2, 1.0, 1.0, 1.0, 0.1, 0.2, 1.0, True,
        9, 3, -1,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _full_rows(monkeypatch):
    name = "hypic_sdk.bench.fidelity_rows.full_row"
    monkeypatch.setattr(name, lambda subject, full: _row(FULL, full))


def run(bench, path, **more):
    kept = KeptRows(path, ABOUT)
    limit = more.pop("limit", TimeLimit())
    return measure_rows(bench, CASES, bench.rows, kept, lambda _: None, limit=limit, **more)


@pytest.mark.parametrize("stop_after", [1, 2, 7])
def test_a_run_that_was_cut_off_goes_on_and_ends_with_the_same_rows(tmp_path, stop_after):
    whole = run(_Bench(), tmp_path / "whole.jsonl")
    assert len(whole) == 3 * len(CASES)
    assert [row.arm for row in whole[: len(CASES)]] == [FULL] * len(CASES)
    cut = _Bench(stop_after)
    with pytest.raises(KeyboardInterrupt):
        run(cut, tmp_path / "rows.jsonl")
    again = _Bench()
    assert run(again, tmp_path / "rows.jsonl") == whole
    finished = stop_after // 2
    assert len(again.asked) == 2 * (len(CASES) - finished), "finished cases are not run again"
    assert run(_Bench(0), tmp_path / "rows.jsonl") == whole, "nothing is left to run"


def test_a_run_without_time_has_one_case_of_everything():
    rows = run(_Bench(), None, limit=TimeLimit(1e-9))
    assert [row.arm for row in rows] == [FULL, "one", "two"]


def test_rows_of_a_case_that_was_not_finished_do_not_count():
    kept = KeptRows(None, {})
    full = _Reply(4, CASES[0])
    kept.add({**_fields(_row(FULL, full)), "last": False})
    assert list(rows_of(kept)) == []


def _fields(row):
    return {name: getattr(row, name) for name in Row.__slots__}
