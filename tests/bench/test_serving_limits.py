"""What keeps rows from being measured: time, context, pools; and targets that are of other runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from hypic_sdk.bench import (
    experiments,
    serving,
    serving_limits,
    serving_model,
    serving_peer,
    serving_rows,
)
from hypic_sdk.bench.published import read
from hypic_sdk.bench.report import Spread
from hypic_sdk.bench.serving import name_of, run_serving_bench
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_limits import Needs, Room, TimeLimit
from hypic_sdk.bench.serving_model import (
    DEFAULT_SHAPE,
    FULL_SIZES,
    SHAPES,
    TINY_SIZES,
    Bench,
    Sizes,
    random_model,
)
from hypic_sdk.bench.serving_peer import over_peer, own_prefill
from hypic_sdk.bench.serving_profile import PROFILED
from hypic_sdk.bench.serving_report import Absent, Row
from hypic_sdk.cli.app import app, main
from hypic_sdk.config import StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.engine.engine import Engine
from hypic_sdk.errors import ConfigError, WorkerError

CPU = torch.device("cpu")
MEASURES: dict[str, Callable[[Bench, Floors], Iterator[Row | Absent]]] = {
    **{name_of(measure): measure for measure in serving.ROWS},
    "own_prefill": lambda bench, _: own_prefill(bench),
    "transformers": lambda bench, _: over_peer([], bench),
}
# that ask an engine for nothing, or nothing that a context limits
WITHOUT_PROMPTS = {"segment_bytes", "layer_zero", "pair_by_torch", "pair_by_fla", "transformers"}


@pytest.fixture(scope="module")
def model():
    return random_model("tiny", CPU)


@pytest.fixture(autouse=True)
def _heap_alone(monkeypatch):
    """Each engine would look through all objects of this process."""
    monkeypatch.setattr(serving_model, "keep_heap", lambda: None)
    monkeypatch.setattr(serving_model, "let_heap_go", lambda: None)


def refused(*_, **__):
    raise AssertionError("nothing may begin")


def nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines, the first layer alone and the arm from outside fail from here on."""
    for name in ("submit", "warm", "step"):
        monkeypatch.setattr(Engine, name, refused)
    for name in ("_composed", "segment_scan"):
        monkeypatch.setattr(f"hypic_sdk.bench.serving_layer.{name}", refused)
    monkeypatch.setattr("hypic_sdk.bench.serving_pairs.times", refused)
    monkeypatch.setattr(serving_peer, "peer_model", refused)
    monkeypatch.setattr(serving_peer, "peer_prefill", refused)


@pytest.mark.parametrize("name", MEASURES)
def test_no_row_begins_when_the_time_is_over(name, model, monkeypatch):
    bench = Bench(model, "tiny", CPU, TINY_SIZES, TimeLimit(-1.0))
    floors = Floors.of(bench)
    nothing_begins(monkeypatch)
    rows = list(MEASURES[name](bench, floors))
    assert rows
    for row in rows:
        assert isinstance(row, Absent), row
    is_asked = name not in {"pair_by_torch", "pair_by_fla"}  # not on a CPU at all
    assert any("not begun within -1 s (--seconds)" in row.reason for row in rows) == is_asked
    assert bench.limit.was_reached == is_asked


@pytest.mark.parametrize("name", MEASURES)
def test_no_further_row_begins_when_the_time_ends_with_one(name, model, monkeypatch):
    limit = TimeLimit()
    bench = Bench(model, "tiny", CPU, TINY_SIZES, limit)
    rows, heard = MEASURES[name](bench, Floors.of(bench)), []
    with torch.inference_mode():
        for row in rows:
            heard.append(row)
            if isinstance(row, Row) and limit.limit_s == math.inf:
                limit.limit_s = -1.0
                nothing_begins(monkeypatch)
    measured = [row for row in heard if isinstance(row, Row)]
    # what follows from rows that were there is no measurement
    assert not [row for row in measured[1:] if row.unit != "x"]
    names = [row.name for row in heard]
    assert len(names) == len(set(names)), "each row is told once"


def test_a_run_tells_what_had_no_time_and_is_no_whole_one(tmp_path, monkeypatch):
    nothing_begins(monkeypatch)
    console = Console(record=True, width=200)
    assert not run_serving_bench(
        console, device_name="cpu", tiny=True, folder=tmp_path, limit_s=0.0, profile=True,
        transformers=True,
    )  # fmt: skip
    report = json.loads((tmp_path / "serving.json").read_text())
    assert (report["rows"], report["failures"]) == ([], [])
    profiles = {f"profile of {name}" for name in PROFILED}
    assert {one["name"] for one in report["absent"]} == {*MEASURES, *profiles}
    assert all("not begun within 0 s" in one["reason"] for one in report["absent"])
    assert "transformers: not measured, not begun within 0 s" in console.export_text()


def test_time_that_ends_behind_the_last_row_cuts_nothing_off(tmp_path, monkeypatch):
    def slow(bench: Bench, floors: Floors) -> Iterator[Row]:
        yield Row("r", "ms", Spread.of([1.0]))
        bench.limit.limit_s = -1.0

    monkeypatch.setattr(serving, "ROWS", (slow,))
    assert run_serving_bench(Console(quiet=True), device_name="cpu", tiny=True, folder=tmp_path)


def test_a_row_that_was_not_measured_has_no_profile(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "ROWS", (serving_rows.hits_4x4k,))
    monkeypatch.setattr(serving, "write_profiles", refused)
    monkeypatch.setattr(Room, "lacks_slots", lambda *_: "needs more")
    assert run_serving_bench(
        Console(quiet=True), device_name="cpu", tiny=True, folder=tmp_path, profile=True
    )
    report = json.loads((tmp_path / "serving.json").read_text())
    assert report["absent"] == [
        {"name": "TTFT, 4 x 4k all hits", "reason": "needs more"},
        {"name": "profile of hits_4x4k", "reason": "its row was not measured"},
    ]


@pytest.mark.parametrize("name", MEASURES)
def test_rows_over_more_tokens_than_the_model_takes_say_so(name, monkeypatch):
    monkeypatch.setitem(SHAPES, "short", {**SHAPES["tiny"], "max_position_embeddings": 31})
    bench = Bench(random_model("short", CPU), "short", CPU, TINY_SIZES)
    floors = Floors.of(bench)
    for method in ("submit", "warm"):
        monkeypatch.setattr(Engine, method, refused)
    with torch.inference_mode():
        rows = list(MEASURES[name](bench, floors))
    absent = [row for row in rows if isinstance(row, Absent)]
    lacking = [row for row in absent if "the model takes 31 (max_context_tokens)" in row.reason]
    assert bool(lacking) == (name not in WITHOUT_PROMPTS)
    for row in lacking:
        assert "needs" in row.reason
    if name not in WITHOUT_PROMPTS:
        assert not [row for row in rows if isinstance(row, Row)]


@pytest.mark.parametrize("budget_kib", [160, 500])
@pytest.mark.parametrize("name", MEASURES)
def test_rows_that_find_no_room_in_the_pools_say_so(name, budget_kib, model):
    """Whatever is begun also ends: with a number."""
    bench = Bench(model, "tiny", CPU, Sizes(32, budget_kib << 10, 1))
    with torch.inference_mode():
        rows = list(MEASURES[name](bench, Floors.of(bench)))
    assert rows
    lacking = [row for row in rows if isinstance(row, Absent) and "the pools have" in row.reason]
    for row in lacking:
        assert "needs" in row.reason
        assert f"(budget_bytes {budget_kib << 10:,})" in row.reason
    assert lacking or name != "decode_32"


@pytest.mark.parametrize("name", ["decode_32", "further_1k", "eight_together"])
def test_pools_grow_where_only_whether_it_works_is_asked(name, model):
    bench = Bench(model, "tiny", CPU, Sizes(32, 1000, 1, grows=True))
    with torch.inference_mode():
        rows = list(MEASURES[name](bench, Floors.of(bench)))
    assert not [row for row in rows if isinstance(row, Absent)]


def test_steps_in_which_not_all_have_a_token_are_told(model, monkeypatch):
    bench = Bench(model, "tiny", CPU, TINY_SIZES)
    monkeypatch.setattr(serving_rows, "DECODE_TOKENS", 2)
    with pytest.raises(WorkerError, match=r"of 8 requests a token.*at most \d requests decoded"):
        list(serving_rows.decode_steps(8)(bench, Floors.of(bench)))


@given(
    documents=st.integers(0, 9), length=st.integers(1, 300), requests=st.integers(0, 9),
    budget_kib=st.integers(200, 4000),
)  # fmt: skip
def test_what_grew_has_room(model, documents, length, requests, budget_kib):
    room = Room.of(model, StoreConfig(budget_bytes=budget_kib << 10, expected_segment_tokens=32))
    needs = Needs(documents * length + 1, 5, requests, documents, length)
    larger = room.with_room_for(needs)
    assert larger.lacks_slots(needs) == ""
    assert (larger is room) == (room.lacks_slots(needs) == "")


# -- targets


@pytest.mark.parametrize(
    ("shape", "device", "sizes", "is_judged"),
    [
        (DEFAULT_SHAPE, "cuda", FULL_SIZES, True),
        (DEFAULT_SHAPE, "cpu", FULL_SIZES, False),
        (DEFAULT_SHAPE, "cuda", TINY_SIZES, False),
        ("tiny", "cuda", FULL_SIZES, False),
        ("tiny", "cpu", TINY_SIZES, False),
    ],
)
def test_targets_are_of_one_shape_in_full_on_a_gpu(model, shape, device, sizes, is_judged):
    assert Bench(model, shape, torch.device(device), sizes).is_judged == is_judged


def test_what_targets_are_not_of_is_measured_and_not_judged(tmp_path, monkeypatch):
    """Rows of one engine, and the ratio over transformers."""

    def slow(bench: Bench, floors: Floors) -> Iterator[Row]:
        yield Row("slow", "ms", Spread.of([30.0]), target=25.0)

    monkeypatch.setattr(serving, "ROWS", (slow,))
    console = Console(record=True, width=300)
    assert run_serving_bench(
        console, device_name="cpu", tiny=True, folder=tmp_path, transformers=True
    )
    told = read(tmp_path, for_pages=False).serving
    assert told is not None
    assert {row.name for row in told.rows} >= {
        "slow",
        "full recompute over transformers, prefill of 16384",
    }
    for row in told.rows:
        assert (row.target, row.is_met) == (None, None), row
    words = console.export_text()
    assert f"targets are of {DEFAULT_SHAPE} on a GPU: none is judged here" in words
    assert "full recompute over transformers, prefill of 16384: " in words
    assert not [word for word in ("MISSED", "(met)", "target >=", "target <=") if word in words]


def test_an_experiments_row_is_not_judged_on_a_cpu(tmp_path, monkeypatch):
    row = Row("eight", "x", Spread.of([9.0]), target=1.5)
    monkeypatch.setattr(experiments, "eight_together", lambda *_: iter([row]))
    monkeypatch.setattr(experiments, "_shared_keys", lambda *_, **__: None)
    console = Console(record=True, width=300)
    assert experiments.run_experiments(console, device_name="cpu", tiny=True, folder=tmp_path)
    report = json.loads((tmp_path / "experiments.json").read_text())
    assert [one["target"] for one in report["rows"]] == [None]
    assert "MISSED" not in console.export_text()
    assert report["verdicts"][0]["limit"] == 1.5, "the rule stays"


# -- options that name what is measured twice


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("serving", ("--tiny", "--shapes tiny")),
        ("serving", ("--tiny", f"--shapes {DEFAULT_SHAPE}")),
        ("serving", ("--model somewhere", "--shapes tiny")),
        ("experiments", ("--tiny", "--shapes tiny-8k")),
        ("experiments", ("--tiny", f"--shapes {DEFAULT_SHAPE}")),
    ],
)
def test_two_options_for_what_is_measured_are_refused_by_name(tmp_path, command, words):
    given = [word for pair in words for word in pair.split()]
    out = ["--device", "cpu", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["bench", command, *given, *out])
    assert done.exit_code != 0
    told = " ".join(f"{done.output} {done.exception}".split())
    for pair in words:
        assert pair in told
    assert not (tmp_path / "out" / f"{command}.json").exists()


def test_no_shape_is_the_one_of_the_targets():
    shape_of = partial(serving_model.shape_of, tiny=False)
    assert shape_of(None) == DEFAULT_SHAPE
    assert shape_of("tiny") == "tiny"
    assert serving_model.shape_of(None, tiny=True) == "tiny"


def never(*_, **__):
    raise AssertionError("no weights may be made")


@pytest.mark.parametrize("free", [0, 65_000_000_000])
def test_weights_that_find_no_room_are_refused_before_they_are_made(free, monkeypatch, capsys):
    """The 35 billion parameters of the default shape on a machine of 60 GiB."""
    monkeypatch.setattr(serving_limits, "available_bytes", lambda _: free)
    monkeypatch.setattr(serving_model, "fill_decays", never)
    monkeypatch.setattr(serving_model, "_fill", never)
    monkeypatch.setattr("sys.argv", ["hypic", "bench", "serving", "--device", "cpu"])
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code not in (None, 0)
    told = capsys.readouterr().err
    assert "Traceback" not in told
    (needed,) = re.findall(f"the weights of {DEFAULT_SHAPE} take ([0-9,]+) bytes", told)
    assert 65e9 < int(needed.replace(",", "")) < 75e9, "2 bytes each"
    assert f"{free:,} are free on cpu" in told
    assert "--tiny" in told


@pytest.mark.parametrize("kind", ["shape", "folder"])
def test_weights_need_no_more_memory_than_they_take(kind, monkeypatch):
    folder = reader_path() if kind == "folder" else None
    model = serving_model.model_of("tiny", folder, CPU)
    kept = (*model.parameters(), *model.buffers())
    needed = sum(x.numel() * x.element_size() for x in kept)
    for free in (needed, None):
        monkeypatch.setattr(serving_limits, "available_bytes", lambda _, free=free: free)
        assert serving_model.model_of("tiny", folder, CPU)
    monkeypatch.setattr(serving_limits, "available_bytes", lambda _: needed - 1)
    for name in ("_fill", "load_model"):
        monkeypatch.setattr(serving_model, name, never)
    with pytest.raises(ConfigError, match=f"take {needed:,} bytes, and {needed - 1:,} are free"):
        serving_model.model_of("tiny", folder, CPU)


def test_profiles_without_a_folder_are_refused_before_a_model_is_made(monkeypatch):
    monkeypatch.setattr(serving, "model_of", never)
    with pytest.raises(ConfigError, match=r"--profile .* --out"):
        run_serving_bench(Console(quiet=True), device_name="cpu", tiny=True, profile=True)
