"""Benches that go on where they stopped do so for the same run, and refuse any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from hypic_sdk.bench import choices, fidelity, sweep
from hypic_sdk.bench.choices import run_choices_bench
from hypic_sdk.bench.destination import claimed
from hypic_sdk.bench.fidelity import run_fidelity_bench
from hypic_sdk.bench.sweep import run_sweep_bench
from hypic_sdk.demo import reader_path
from hypic_sdk.demo.export import save_reader
from hypic_sdk.demo.reader_model import Reader, ReaderConfig
from hypic_sdk.errors import ConfigError

RUNS = {"fidelity": run_fidelity_bench, "sweep": run_sweep_bench, "choices": run_choices_bench}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[str]:
    """Two folders with the same sizes and other random weights."""
    config = ReaderConfig(
        hidden_size=48, intermediate_size=64, num_layers=4, full_layers=(2,), num_heads=2,
        num_kv_heads=1, head_dim=16, rotary_dim=8, num_key_heads=1, num_value_heads=2, key_dim=8,
        value_dim=12,
    )  # fmt: skip
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        folder = tmp_path_factory.mktemp("model")
        save_reader(Reader(config), reader_path(), folder)
        found.append(str(folder))
    return found


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    for bench in (sweep, choices):
        monkeypatch.setattr(bench, "STRATA", ("tally",))
    sizes = replace(fidelity.QUICK.sizes, counts=(2,))
    short = replace(fidelity.QUICK, sizes=sizes, strata=("tally",), num_pure=1, num_warm=1,
                    num_drift=1, num_norms=1)  # fmt: skip
    monkeypatch.setattr(fidelity, "QUICK", short)


def run(name: str, model: str, folder: Path, per_count: int = 1) -> None:
    RUNS[name](
        Console(quiet=True), model=model, quick=True, folder=folder, seconds=1e-6,
        device_name="cpu", per_count=per_count,
    )  # fmt: skip


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("name", RUNS)
def test_another_run_is_refused_before_anything_is_written(name, models, tmp_path, monkeypatch):
    run(name, models[0], tmp_path)
    before = files(tmp_path)
    assert f"{name}.json" in before
    with pytest.raises(ConfigError, match=r"another sizes\).*--overwrite"):
        run(name, models[0], tmp_path, per_count=2)
    with pytest.raises(ConfigError, match="another fingerprint"):
        run(name, models[1], tmp_path)
    monkeypatch.setattr("hypic_sdk.bench.report._commit", lambda: "another")
    with pytest.raises(ConfigError, match="another commit"):
        run(name, models[0], tmp_path)
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_ended_at_once_can_be_gone_on_with(name, models, tmp_path, monkeypatch):
    """Rows have their place before the first report is written."""
    bench = {"fidelity": fidelity, "sweep": sweep, "choices": choices}[name]

    def ended(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bench, "measure_rows", ended)
        with pytest.raises(KeyboardInterrupt), claimed(tmp_path, name, resumes=True):
            run(name, models[0], tmp_path)
    with claimed(tmp_path, name, resumes=True):
        run(name, models[0], tmp_path)
    assert f"{name}.json" in files(tmp_path)
