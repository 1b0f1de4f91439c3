"""The serving bench on a small model: every row gives a number, and says what it is held to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from hypic_sdk.bench import serving
from hypic_sdk.bench.report import Spread
from hypic_sdk.bench.serving import Row, line_of, run_serving_bench
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_layer import cold_runs, first_recurrence, state_errors
from hypic_sdk.bench.serving_model import TINY_SIZES, Bench, random_model
from hypic_sdk.bench.serving_peer import peer_prefill
from hypic_sdk.cli.app import app

CPU = torch.device("cpu")
# of design 13, those that one device and no server answer
TARGETS = {
    "bytes of a 1k segment": 112.0,
    "TTFT, 4 x 4k all hits": 25.0,
    "each further 1k segment": 0.3,
    "building (T, S), one 4k segment": 2.0,
    "building (T, S), eight 1k segments": 2.0,
    "cold prefill, one text of 10k": 50_000.0,
    "cold prefill, 8 segments of 1.25k": 65_000.0,
    "decode step, batch 1, 4k of context": 4.0,
    "decode step, batch 32, 4k of context": 18.0,
    "layer-0 state error, fp32 with fp32 T": 1e-5,
    "layer-0 state error, fp32 with fp16 T": 3e-4,
    "layer-0 state error, kernels in 16 bits": 3e-3,
}


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(random_model("tiny", CPU), "tiny", CPU, TINY_SIZES)


def test_every_row_gives_a_number_and_is_written(tmp_path):
    done = CliRunner().invoke(
        app, ["bench", "serving", "--tiny", "--device", "cpu", "--out", str(tmp_path), "--profile"]
    )
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "serving.json").read_text())
    rows = {row["name"]: row for row in report["rows"]}
    assert report["failures"] == []
    assert {name: row["target"] for name, row in rows.items() if row["target"]} == TARGETS
    for row in rows.values():
        found = [row["found"][x] for x in ("minimum", "median", "maximum")]
        assert all(math.isfinite(x) for x in found), row
        assert found == sorted(found)
        assert row["floor"] is None, "the rates of a CPU are not known"
    errors = [row for name, row in rows.items() if name.startswith("layer-0")]
    assert all(row["is_met"] for row in errors)
    for name in ("hits_4x4k", "cold_segments"):
        profile = json.loads((tmp_path / f"profile-{name}.json").read_text())
        assert profile["kernels"][0]["ms"] >= profile["kernels"][-1]["ms"] > 0
        assert (tmp_path / f"profile-{name}-host.txt").stat().st_size > 0
    for name in rows:
        assert name in done.output.replace("\n", " ")


def test_a_row_that_fails_is_named_and_the_others_are_there(tmp_path, monkeypatch):
    def failing(bench: Bench, floors: Floors) -> Iterator[Row]:
        yield Row("before", "ms", Spread.of([1.0]))
        raise RuntimeError("no memory")

    monkeypatch.setattr(serving, "ROWS", (failing, serving.segment_bytes))
    console = Console(quiet=True)
    assert not run_serving_bench(console, device_name="cpu", tiny=True, folder=tmp_path)
    report = json.loads((tmp_path / "serving.json").read_text())
    assert [row["name"] for row in report["rows"]] == ["before", "bytes of a 1k segment"]
    assert report["failures"][0]["reason"] == "RuntimeError: no memory"


def test_rows_that_would_begin_too_late_are_named(tmp_path):
    console = Console(quiet=True)
    assert not run_serving_bench(
        console, device_name="cpu", tiny=True, folder=tmp_path, limit_s=-1.0
    )
    report = json.loads((tmp_path / "serving.json").read_text())
    assert report["rows"] == []
    assert len(report["failures"]) == len(serving.ROWS)


def test_a_row_says_whether_its_target_is_met():
    slow = Row("r", "ms", Spread.of([30.0]), target=25.0, floor=16.0)
    assert (slow.is_met, "MISSED" in line_of(slow)) == (False, True)
    fast = Row("r", "tokens/s", Spread.of([60_000.0]), target=50_000.0, is_upper=False)
    assert (fast.is_met, "(met)" in line_of(fast)) == (True, True)
    assert Row("r", "ms", Spread.of([1.0])).is_met is None


@given(rows=st.integers(1, 500), more=st.integers(0, 500))
def test_floors_rise_with_the_rows_and_stop_at_all_weights(bench, rows, more):
    floors = Floors.of(bench)
    few, many = floors.weights_bytes(rows), floors.weights_bytes(rows + more)
    every = floors.dense_bytes + floors.expert_bytes
    assert floors.dense_bytes < few <= many <= every
    embedding = bench.model.embedding.weight
    stored = sum(p.numel() * p.element_size() for p in bench.model.parameters())
    assert every == stored - embedding.numel() * embedding.element_size()


def test_the_state_error_sees_a_wrong_transition(bench, monkeypatch):
    from hypic_sdk.bench import serving_layer

    honest = {name: error for name, error, _ in state_errors(bench)}
    assert max(honest.values()) < 3e-3
    original = serving_layer.segment_scan

    def doubled(inputs, runs, states, transitions, **rest):
        original(inputs, runs, states, transitions, **rest)
        transitions *= 2

    monkeypatch.setattr(serving_layer, "segment_scan", doubled)
    assert min(error for _, error, _ in state_errors(bench)) > 1e-2


def test_the_first_layers_inputs_are_those_of_the_model(bench):
    recurrence = first_recurrence(bench, bench.tokens(1, 50))
    assert recurrence.value.shape == (50, 4, 16)
    assert recurrence.log_decay.max() < 0
    assert [run.row_start for run in cold_runs([20, 30], 5)] == [5, 25]


def test_the_arm_from_outside_runs_the_same_shapes():
    rows = list(peer_prefill("tiny", CPU, TINY_SIZES))
    assert [unit for _, unit, _ in rows] == ["tokens/s"] * 3
    assert all(found.minimum > 0 for _, _, found in rows)
