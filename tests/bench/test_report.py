"""Numbers come with their circumstances."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hypic_sdk.bench import (
    choices,
    divergence,
    experiments,
    fidelity,
    kernels,
    modes,
    serving_report,
    sweep,
)
from hypic_sdk.bench.report import Spread, append_json_line, circumstances
from tests.source_tree import PACKAGE, parsed

GPU = "NVIDIA H200"


@given(values=st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20))
def test_a_spread_is_ordered_and_counts_its_runs(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread.minimum <= spread.median <= spread.maximum
    assert spread.num_runs == len(values)


def test_circumstances_name_machine_versions_and_commit() -> None:
    where = circumstances("cpu")
    assert where.hardware
    assert where.num_threads >= 1
    for word in (where.python, where.torch, where.hypic_sdk, where.commit):
        assert word
        assert word in str(where)


def test_rows_are_json_lines_with_circumstances(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for number in (1, 2):
        append_json_line(path, {"bench": "x", "number": number}, circumstances("cpu"))
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [row["number"] for row in rows] == [1, 2]
    assert all(row["circumstances"]["commit"] for row in rows)


@pytest.fixture
def _a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"{GPU} {device}")


@pytest.mark.usefixtures("_a_gpu")
@pytest.mark.parametrize("setting", ["cpu", "auto", "cuda", "cuda:1"])
def test_the_hardware_is_the_devices(setting: str) -> None:
    is_cpu = setting == "cpu"
    assert circumstances(setting).is_cpu is is_cpu
    if setting != "auto":
        where = circumstances(torch.device(setting))
        assert where == circumstances(setting)
        assert where.hardware.endswith(" cores)" if is_cpu else setting)


def test_without_a_gpu_the_hardware_is_the_processor(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert circumstances("auto") == circumstances("cpu")


def calls_of_circumstances(tree: ast.AST) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("circumstances")
    ]


def takes_a_device(tree: ast.AST) -> bool:
    """Whether whoever calls a bench says where it runs."""
    return any(
        arg.arg in ("device", "device_name")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for arg in (*node.args.args, *node.args.kwonlyargs)
    )


BENCHES = [
    path
    for path in sorted((PACKAGE / "bench").glob("*.py"))
    if calls_of_circumstances(parsed(path))
]


@pytest.mark.parametrize("path", BENCHES, ids=lambda path: path.stem)
def test_every_bench_says_which_device_its_numbers_are_of(path: Path) -> None:
    for call in calls_of_circumstances(parsed(path)):
        assert len(call.args) == 1, f"{path.name}:{call.lineno} names no device"
        is_fixed = isinstance(call.args[0], ast.Constant)
        assert not (is_fixed and takes_a_device(parsed(path))), (
            f"{path.name}:{call.lineno} names a device, whichever the bench was run on"
        )


def test_the_benches_were_found() -> None:
    assert {"fidelity", "sweep", "choices", "modes", "divergence", "kernels", "serving"} <= {
        path.stem for path in BENCHES
    }


RUNS = {
    "fidelity": (fidelity.run_fidelity_bench, {"quick": True, "seconds": 1e-6}),
    "sweep": (sweep.run_sweep_bench, {"quick": True, "seconds": 1e-6}),
    "choices": (choices.run_choices_bench, {"quick": True, "seconds": 1e-6}),
    "modes": (modes.run_modes_bench, {"servers": ()}),
    "divergence": (divergence.run_divergence_bench, {}),
}


@pytest.mark.usefixtures("_a_gpu")
@pytest.mark.parametrize("name", RUNS)
def test_a_bench_of_the_processor_names_it_where_a_gpu_is(name, model, tmp_path, monkeypatch):
    for bench in (sweep, choices, modes, divergence):
        monkeypatch.setattr(bench, "STRATA", ("tally",))
    short = fidelity.Plan(
        fidelity.CaseSizes(1, (2,), (100,), 1), ("tally",), num_pure=1, num_warm=1, num_drift=1,
        num_norms=1,
    )  # fmt: skip
    monkeypatch.setattr(fidelity, "QUICK", short)
    run, more = RUNS[name]
    console = Console(record=True, width=400)
    run(console, model=model, per_count=1, folder=tmp_path, device_name="cpu", **more)
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written["circumstances"]["hardware"].endswith(" cores)")
    assert GPU not in console.export_text()
    assert all(GPU not in path.read_text() for path in tmp_path.iterdir())


def _kernels(folder: Path) -> None:
    kernels.Report(folder, torch.device("cpu"), circumstances("cpu")).write()


def _experiments(folder: Path) -> None:
    experiments.Results().write(folder, "tiny", torch.device("cpu"))


def _serving(folder: Path) -> None:
    serving_report.Report(folder, "tiny", torch.device("cpu")).write()


@pytest.mark.parametrize(
    ("name", "write"),
    [("kernels", _kernels), ("experiments", _experiments), ("serving", _serving)],
)
def test_a_run_that_is_killed_while_it_writes_leaves_the_report_before_whole(
    name: str, write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    path = tmp_path / f"{name}.json"
    before = path.read_text()
    assert json.loads(before)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    honest = Path.write_text

    def killed(self: Path, text: str, **options: str) -> int:
        honest(self, text[: len(text) // 2], **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path)
    assert path.read_text() == before
