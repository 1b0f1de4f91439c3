"""The row of two devices runs on a CPU with small shapes: equal tokens, equal entries, a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from hypic_sdk.bench.scatter_shapes import NUM_DOCUMENTS, run_scatter_shapes
from hypic_sdk.errors import ConfigError


def test_every_row_gives_a_number_and_two_workers_give_what_one_gives(tmp_path: Path) -> None:
    console = Console(record=True, width=200)
    assert run_scatter_shapes(console, shape="tiny", device="cpu", folder=tmp_path)
    report = json.loads((tmp_path / "scatter.json").read_text(encoding="utf-8"))
    assert report["failures"] == []
    rows = {row["name"]: row for row in report["rows"]}
    ratio = rows["11 cold documents, 2 workers over 1"]
    assert ratio["notes"]["same_tokens"]
    # six of eleven are made where the answer is, five by the other
    of_one = ratio["notes"]["cold_tokens_at_the_answering"][0] / -(-NUM_DOCUMENTS // 2)
    assert of_one == 75
    assert rows["equal tokens of 1 and 2 workers, deterministic=all"]["found"]["minimum"] == 1.0
    assert rows["entries of the same bytes on both"]["found"]["minimum"] == 1.0
    assert rows["combine, 2 workers"]["found"]["median"] > 0
    assert rows["first token over one document, pulled"]["found"]["median"] > 0
    assert sum(one["num_fetched"] for one in report["workers"].values()) > 0
    assert sum(one["num_not_fetched"] for one in report["workers"].values()) == 0


def test_a_run_without_time_names_what_it_left_out(tmp_path: Path) -> None:
    console = Console(record=True, width=200)
    assert not run_scatter_shapes(
        console, shape="tiny", device="cpu", folder=tmp_path, limit_s=0.0, start_limit_s=120.0
    )
    report = json.loads((tmp_path / "scatter.json").read_text(encoding="utf-8"))
    assert report["rows"] == []
    assert len(report["failures"]) == 5
    assert all("not begun" in failure["reason"] for failure in report["failures"])


def test_a_shape_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="tiny"):
        run_scatter_shapes(Console(), shape="huge")
