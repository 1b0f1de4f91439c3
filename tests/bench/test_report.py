"""Numbers come with their circumstances."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.bench.report import Spread, append_json_line, circumstances


@given(values=st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20))
def test_a_spread_is_ordered_and_counts_its_runs(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread.minimum <= spread.median <= spread.maximum
    assert spread.num_runs == len(values)


def test_circumstances_name_machine_versions_and_commit() -> None:
    where = circumstances()
    assert where.hardware
    assert where.num_threads >= 1
    for word in (where.python, where.torch, where.hypic_sdk, where.commit):
        assert word
        assert word in str(where)


def test_rows_are_json_lines_with_circumstances(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for number in (1, 2):
        append_json_line(path, {"bench": "x", "number": number}, circumstances())
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [row["number"] for row in rows] == [1, 2]
    assert all(row["circumstances"]["commit"] for row in rows)
