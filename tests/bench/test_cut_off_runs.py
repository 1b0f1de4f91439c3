"""Benches with hardly any time: each writes all it should, and goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from hypic_sdk.bench import choices, sweep
from hypic_sdk.bench.choices import run_choices_bench
from hypic_sdk.bench.fidelity import run_fidelity_bench
from hypic_sdk.bench.fidelity_arms import Bench
from hypic_sdk.bench.fidelity_docs import MAKERS
from hypic_sdk.bench.sweep import run_sweep_bench
from hypic_sdk.demo import reader_path
from hypic_sdk.demo.export import save_reader
from hypic_sdk.demo.reader_model import Reader, ReaderConfig

NO_TIME_S = 1e-6


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A folder with random weights: quick, and says nothing right."""
    torch.manual_seed(1)
    config = ReaderConfig(
        hidden_size=48, intermediate_size=64, num_layers=4, full_layers=(2,), num_heads=2,
        num_kv_heads=1, head_dim=16, rotary_dim=8, num_key_heads=1, num_value_heads=2, key_dim=8,
        value_dim=12,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    save_reader(Reader(config), reader_path(), folder)
    return str(folder)


def run(name: str, model: str, folder: Path) -> None:
    console = Console(quiet=True)
    more = {"model": model, "quick": True, "folder": folder, "seconds": NO_TIME_S}
    more |= {"device_name": "cpu", "per_count": 1}
    runs = {"fidelity": run_fidelity_bench, "sweep": run_sweep_bench, "choices": run_choices_bench}
    runs[name](console, **more)


def lines(folder: Path) -> dict[str, list[str]]:
    return {path.name: path.read_text().splitlines() for path in folder.glob("*.jsonl")}


@pytest.mark.parametrize("name", ["fidelity", "sweep", "choices"])
def test_one_prompt_of_everything_then_nothing_more(name, model, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "STRATA", ("two documents",))
    monkeypatch.setattr(choices, "STRATA", ("two documents", "tally"))
    run(name, model, tmp_path)
    body = json.loads((tmp_path / f"{name}.json").read_text())
    assert body["model"] == Path(model).name
    for file, make in MAKERS.values():
        if file == name:
            assert "nan" not in make(body)
    before = lines(tmp_path)
    cases = [json.loads(row)["case"] for row in before[f"{name}_rows.jsonl"][1:]]
    assert len(set(cases)) == 1
    if name != "fidelity":  # whose last rung keeps no rows

        def refuse(*args):
            raise AssertionError("a prompt is run again")

        monkeypatch.setattr(Bench, "full", refuse)
    run(name, model, tmp_path)
    assert lines(tmp_path) == before
    again = json.loads((tmp_path / f"{name}.json").read_text())
    for key in ("seams", "anchored", "choices", "offsets", "summaries", "warm_cold"):
        assert again.get(key) == body.get(key), key
