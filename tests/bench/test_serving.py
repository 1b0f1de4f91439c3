"""The serving bench on a small model: every row gives a number, and says what it is held to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from hypic_sdk.bench import serving, serving_model, serving_peer, serving_together
from hypic_sdk.bench.published import read
from hypic_sdk.bench.report import Spread
from hypic_sdk.bench.serving import run_serving_bench
from hypic_sdk.bench.serving_curves import SHAPES as CURVE_SHAPES
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_layer import cold_runs, first_recurrence
from hypic_sdk.bench.serving_model import TINY_SIZES, Bench, random_model
from hypic_sdk.bench.serving_peer import (
    LENGTHS,
    over_peer,
    own_prefill,
    peer_model,
    peer_prefill,
)
from hypic_sdk.bench.serving_profile import FEW, MANY, PROFILED, WALK, further_segment, gap_us
from hypic_sdk.bench.serving_report import Absent, Report, Row, line_of
from hypic_sdk.bench.serving_together import eight_together
from hypic_sdk.cli.app import app
from hypic_sdk.config import Determinism
from hypic_sdk.engine.engine import Engine
from hypic_sdk.errors import ConfigError
from hypic_sdk.kernels import live_scan
from tests.bench.test_serving_determinism import DETERMINED, one_at_a_time

CPU = torch.device("cpu")
# of design 13, those that one device and no server answer
TARGETS = {
    "bytes of a 1k segment": 112.0,
    "bytes of a 1k segment, 8-bit pair": 52.0,
    "TTFT, 4 x 4k all hits": 25.0,
    "each further 1k segment": 0.3,
    "eight requests assembled together, over one": 1.5,
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


def test_every_row_gives_a_number_and_is_written(tmp_path, monkeypatch):
    engines = one_at_a_time(monkeypatch)
    monkeypatch.setattr(Bench, "is_judged", True)
    for name in ("keep_heap", "let_heap_go"):  # each engine would look through this process
        monkeypatch.setattr(serving_model, name, lambda: None)
    done = CliRunner().invoke(
        app, ["bench", "serving", "--tiny", "--device", "cpu", "--out", str(tmp_path), "--profile"]
    )
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "serving.json").read_text())
    rows = {row["name"]: row for row in report["rows"]}
    assert report["failures"] == []
    told = read(tmp_path, for_pages=False).serving
    assert told is not None, "what is written is what pages are made of"
    assert [asdict(row) | {"is_met": row.is_met} for row in told.rows] == report["rows"]
    with pytest.raises(ConfigError, match="tiny"):
        read(tmp_path)
    assert {name: row["target"] for name, row in rows.items() if row["target"]} == TARGETS
    for row in rows.values():
        found = [row["found"][x] for x in ("minimum", "median", "maximum")]
        assert all(math.isfinite(x) for x in found), row
        assert found == sorted(found)
        assert row["floor"] is None, "the rates of a CPU are not known"
    assert [one["name"] for one in report["absent"]] == [
        "TTFT, 1 x 32 tokens, prefix_cache",
        "building (T, S), torch",
        "building (T, S), FLA way B",
    ]
    for name in ("building (T, S), one 4k segment", "building (T, S), eight 1k segments"):
        notes = rows[name]["notes"]
        assert 0 < notes["error_T"] < 1e-3  # T in fp16
        assert 0 < notes["error_S"] < 1e-5
        assert 0.1 < notes["norm_T_max"] <= 1.0
        assert math.isfinite(notes["percent_of_plain_scan"])
    places = {tuple(row["place"].values()) for row in rows.values() if row["place"]}
    for arm in ("transition_rope_recompute", "full_recompute", "prefix_cache"):
        for how_many, length in (*CURVE_SHAPES, (4, 4096)):
            place = (arm, how_many, TINY_SIZES.tokens(length))
            assert (place in places) == (how_many > 1 or arm != "prefix_cache")
    for base in DETERMINED:
        assert f"{base}, deterministic=all, measured again" in rows
        for mode in ("off", "entries"):
            assert f"{base}, deterministic={mode}" in rows
            share = rows[f"deterministic={mode} over all, {base}"]
            assert share["unit"] == "% of the time"
    assert {one.determinism for one in engines} == {None, *Determinism}
    errors = [row for name, row in rows.items() if name.startswith("layer-0")]
    assert all(row["is_met"] for row in errors if row["target"])
    assert all(0 < row["notes"]["error_T"] < 2e-2 for row in errors)
    (int8,) = (row for row in errors if not row["target"])
    assert 1e-4 < int8["found"]["median"] < 2e-2, "an 8-bit pair: docs/experiments.md"
    told = done.output.replace("\n", " ")
    for name in (name for requests in PROFILED.values() for name in requests):
        profile = json.loads((tmp_path / f"profile-{name}.json").read_text())
        assert profile["kernels"][0]["ms"] >= profile["kernels"][-1]["ms"] > 0
        assert profile["wall_ms"] >= profile["kernel_ms"] > 0, "one thread, one op at a time"
        assert profile["launches"] >= sum(one["calls"] for one in profile["kernels"])
        assert (tmp_path / f"profile-{name}-host.txt").stat().st_size > 0
        assert f"profile of {name}: " in told
    few, many, further = (
        json.loads((tmp_path / f"profile-{name}.json").read_text())
        for name in (f"hits_{FEW}x1k", f"hits_{MANY}x1k", "further_segment")
    )
    for key in ("wall_ms", "kernel_ms", "launches"):
        assert further[key] == pytest.approx((many[key] - few[key]) / (MANY - FEW))
    assert further["launches"] > 0, "run by run, on a CPU"
    assert "each further segment of these: " in told
    assert "a gap and its seam, in the walk of a linear layer: " in told
    for name in rows:
        assert name in told


def test_what_is_no_number_is_none_in_a_report(tmp_path):
    row = Row("r", "ms", Spread.of([1.0]), notes={"error": math.nan, "all": [math.inf, 2]})
    Report(tmp_path, "small", torch.device("cpu"), rows=[row]).write()
    told = read(tmp_path, for_pages=False).serving
    assert told is not None
    assert told.rows[0].notes == {"error": None, "all": [None, 2]}


def test_every_profile_belongs_to_a_row_that_is_measured_before_it():
    assert set(PROFILED) <= {serving.name_of(row) for row in serving.ROWS}
    names = [name for requests in PROFILED.values() for name in requests]
    assert len(names) == len(set(names)), "each has a file of its own"


def test_what_a_further_segment_adds_is_told_kernel_by_kernel():
    """One that grows, one that shrinks, one of each request alone."""

    def report(wall_ms: float, **kernels: tuple[float, int]) -> dict:
        rows = [{"name": name, "ms": ms, "calls": n} for name, (ms, n) in kernels.items()]
        whole = {"kernel_ms": sum(row["ms"] for row in rows), "launches": len(rows)}
        return {"row": "a request", "wall_ms": wall_ms, **whole, "kernels": rows}

    few = report(10.0, attention=(2.0, 10), walk=(1.0, 30), small_tiles=(3.0, 4))
    many = report(18.0, attention=(4.0, 10), walk=(0.5, 30), large_tiles=(5.0, 8))
    found = further_segment(few, many, 4)
    assert found["wall_ms"] == 2.0
    assert found["kernel_ms"] == pytest.approx((9.5 - 6.0) / 4)
    assert [(row["name"], row["ms"], row["calls"]) for row in found["kernels"]] == [
        ("large_tiles", 1.25, 2.0),
        ("attention", 0.5, 0.0),
        ("walk", -0.125, 0.0),
        ("small_tiles", -0.75, -1.0),
    ]
    assert sum(row["ms"] for row in found["kernels"]) == pytest.approx(found["kernel_ms"])


def test_a_gap_is_told_in_microseconds_of_one_layer():
    kernels = [("_walk_tiles_kernel", 0.1), ("_walk_kernel", 5.0), ("_attend_kernel", 0.2)]
    further = {"kernels": [{"name": name, "ms": ms, "calls": 1} for name, ms in kernels]}
    assert gap_us(further, 30) == pytest.approx(100 / 30)
    kernel = Path(live_scan.__path__[0], "tiles.py").read_text()
    assert f"def {WALK}" in kernel, "else no gap is found"


def test_profiled_requests_find_everything_cached(bench, monkeypatch):
    """As the rows before them left it; eight together are eight, each in its own order."""
    asked, honest = [], Bench.request

    def watched(self, prompt, **fields):
        asked.append([len(part.token_ids) for part in prompt.parts[1:-1]])
        return honest(self, prompt, **fields)

    reports, advance = [], Engine.step

    def stepped(self):
        events = advance(self)
        reports.extend(event.report for event in events if getattr(event, "report", None))
        return events

    segments = {f"hits_{FEW}x1k": FEW, f"hits_{MANY}x1k": MANY, "eight_together": 4}
    calls = {}
    for how_many, length in ((MANY, 1024), (4, 4096)):
        bench.warm(bench.engine(), bench.segments(10, how_many, TINY_SIZES.tokens(length)))
    for requests in PROFILED.values():
        calls |= {name: prepare(bench) for name, prepare in requests.items() if name in segments}
    monkeypatch.setattr(Bench, "request", watched)
    monkeypatch.setattr(Engine, "step", stepped)
    for name, call in calls.items():
        asked.clear()
        reports.clear()
        call()
        count = 8 if name == "eight_together" else 1
        assert [len(lengths) for lengths in asked] == [segments[name]] * count
        assert len(reports) == count
        assert not any(report.cold_tokens for report in reports)


def test_a_row_that_fails_is_named_and_the_others_are_there(tmp_path, monkeypatch):
    def failing(bench: Bench, floors: Floors) -> Iterator[Row]:
        yield Row("before", "ms", Spread.of([1.0]))
        raise RuntimeError("no memory")

    monkeypatch.setattr(serving, "ROWS", (failing, serving.segment_bytes))
    console = Console(quiet=True)
    assert not run_serving_bench(console, device_name="cpu", tiny=True, folder=tmp_path)
    report = json.loads((tmp_path / "serving.json").read_text())
    assert [row["name"] for row in report["rows"]] == [
        "before",
        "bytes of a 1k segment",
        "bytes of a 1k segment, 8-bit pair",
    ]
    assert report["failures"][0]["reason"] == "RuntimeError: no memory"


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


def test_the_first_layers_inputs_are_those_of_the_model(bench):
    recurrence = first_recurrence(bench, bench.tokens(1, 50))
    assert recurrence.value.shape == (50, 4, 16)
    assert recurrence.log_decay.max() < 0
    assert [run.row_start for run in cold_runs([20, 30], 5)] == [5, 25]


def test_the_arm_from_outside_runs_the_same_shapes(bench):
    model = peer_model("tiny", CPU)
    for length in LENGTHS:
        assert peer_prefill(model, bench, length).minimum > 0


def test_full_recompute_is_held_against_the_arm_from_outside_in_the_same_run(monkeypatch):
    bench = Bench(random_model("tiny", CPU), "tiny", CPU, TINY_SIZES)
    own = list(own_prefill(bench))
    assert [row.name for row in own] == [f"full recompute, prefill of {n}" for n in LENGTHS]
    peers = {n: Spread(1.0, own[i].found.median / 3, 2e9, 3) for i, n in enumerate(LENGTHS)}
    monkeypatch.setattr(serving_peer, "peer_prefill", lambda _, __, length: peers[length])
    rows = {row.name: row for row in over_peer(own, bench)}
    for length in LENGTHS:
        ratio = rows[f"full recompute over transformers, prefill of {length}"]
        assert ratio.found.median == pytest.approx(3.0)
        assert ratio.found.minimum < ratio.found.median < ratio.found.maximum
        # the bar is for long prompts alone
        assert (ratio.target, ratio.is_met) == ((2.0, True) if length > 8000 else (None, None))
        assert set(rows[f"transformers, prefill of {length}"].notes) == {
            "transformers",
            "flash-linear-attention",
            "causal-conv1d",
        }
    lonely = {row.name: row for row in over_peer(own[1:], bench)}
    ratio = lonely["full recompute over transformers, prefill of 16384"]
    assert isinstance(ratio, Absent)
    assert "prefill of 16384" in ratio.reason
    assert {name for name, row in lonely.items() if isinstance(row, Row)} == set(rows) - {
        ratio.name
    }


def test_own_prefill_runs_prompts_of_the_length_that_it_names(bench, monkeypatch):
    seen = []
    honest = Bench.first_token

    def watched(self, engine, prompt, *, reuse=True):
        seen.append((prompt.num_tokens, reuse))
        return honest(self, engine, prompt, reuse=reuse)

    monkeypatch.setattr(Bench, "first_token", watched)
    list(own_prefill(bench))
    assert {count for count, _ in seen} >= {TINY_SIZES.tokens(n) for n in LENGTHS[:2]}
    assert not any(reuse for _, reuse in seen)


def test_eight_requests_together_are_eight_answers_over_cached_documents(bench, monkeypatch):
    batches = []
    honest = serving_together.last_first_token

    def watched(bench, engine, orders, question):
        batches.append([tuple(part.token_ids for part in order) for order in orders])
        return honest(bench, engine, orders, question)

    monkeypatch.setattr(serving_together, "last_first_token", watched)
    [row] = eight_together(bench, Floors.of(bench))
    assert {len(batch) for batch in batches} == {1, 8}
    for batch in batches:
        assert len(set(batch)) == len(batch), "orders differ"
        assert len({frozenset(order) for order in batch}) == 1, "documents do not"
    assert row.target == 1.5
    assert row.notes["steps"] >= 1


def test_a_cold_document_among_the_eight_is_no_row(bench, monkeypatch):
    monkeypatch.setattr(Bench, "warm", lambda *_: 0.0)
    fresh = Bench(bench.model, "tiny", CPU, TINY_SIZES)
    with pytest.raises(AssertionError, match="in the pool"):
        list(eight_together(fresh, Floors.of(fresh)))


def test_what_is_not_here_is_named_and_no_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "ROWS", (lambda *_: iter([Absent("the row", "no such device")]),))
    assert run_serving_bench(Console(quiet=True), device_name="cpu", tiny=True, folder=tmp_path)
    report = json.loads((tmp_path / "serving.json").read_text())
    assert report["absent"] == [{"name": "the row", "reason": "no such device"}]
