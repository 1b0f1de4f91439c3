"""Benches with hardly any time: each writes all it should, and goes on where it stopped."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hypic_sdk.bench import choices, fidelity, sweep
from hypic_sdk.bench.choices import run_choices_bench
from hypic_sdk.bench.fidelity import run_fidelity_bench
from hypic_sdk.bench.fidelity_arms import Bench
from hypic_sdk.bench.fidelity_cases import CUT
from hypic_sdk.bench.fidelity_docs import MAKERS
from hypic_sdk.bench.subject import load_subject
from hypic_sdk.bench.sweep import run_sweep_bench
from hypic_sdk.errors import ConfigError

NO_TIME_S = 1e-6


def run(name: str, model: str, folder: Path, **other) -> None:
    console = Console(quiet=True)
    more = {"model": model, "quick": True, "folder": folder, "seconds": NO_TIME_S}
    more |= {"device_name": "cpu", "per_count": 1, **other}
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
    planned = [body[key] for key in ("num_cases",) if key in body]
    planned += [one["num_cases"] for one in body.get("seams", [])]
    planned += [one["num_cases"] for one in body.get("shapes", {}).values()]
    assert planned
    assert min(planned) > 0
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
    for key in (
        "seams",
        "anchored",
        "ends",
        "shapes",
        "choices",
        "offsets",
        "summaries",
        "warm_cold",
    ):
        assert again.get(key) == body.get(key), key


class _Clock:
    """A limit whose time passes with the prompts that are begun."""

    def __init__(self, num_prompts: int) -> None:
        self._num_prompts, self.begun = num_prompts, 0

    @property
    def passed_s(self) -> float:
        return float(self.begun)

    def is_over(self, share: float = 1.0) -> bool:
        return self.begun >= share * self._num_prompts


def test_every_shape_of_a_sweep_gets_its_part_of_the_time(model, monkeypatch):
    clock = _Clock(13)
    plain = Bench.full

    def counted(*args):
        clock.begun += 1
        return plain(*args)

    monkeypatch.setattr(Bench, "full", counted)
    monkeypatch.setattr(sweep, "SEAMS_SHARE", 0.1)
    sizes = sweep.Sizes(20, ("8",), ((2, 60), (3, 60), (2, 70)), ("tally",))
    bench = Bench(load_subject(model, "cpu"), sweep.MIN_SEGMENT_TOKENS)
    found = sweep.Sweep(bench, sizes, lambda _: None, None, clock).measure()
    numbers = [one.em.num_items for one in found.shapes.values()]
    assert max(numbers) - min(numbers) <= 1, "none is left with what the others did not take"
    assert all(one.num_cases == 20 for one in found.shapes.values())
    assert found.seams[0].em.num_items == 2


@pytest.mark.parametrize("name", ["sweep", "choices"])
def test_a_run_that_is_killed_leaves_a_report_of_its_first_prompts(
    name, model, tmp_path, monkeypatch
):
    bench = {"sweep": sweep, "choices": choices}[name]
    monkeypatch.setattr(bench, "WRITE_EVERY", 2)
    monkeypatch.setattr(bench, "STRATA", ("two documents", "tally", "latest wins"))
    plain, begun = Bench.full, []

    def killed(*args):
        begun.append(args)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return plain(*args)

    monkeypatch.setattr(Bench, "full", killed)
    with pytest.raises(KeyboardInterrupt):
        run(name, model, tmp_path, seconds=None)
    body = json.loads((tmp_path / f"{name}.json").read_text())
    for file, make in MAKERS.values():
        if file == name:
            assert "2 of 3 prompts" in make(body)


@pytest.mark.parametrize("name", ["fidelity", "sweep", "choices"])
def test_strata_are_asked_for_by_name(name, model, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="no stratum"):
        run(name, model, tmp_path, strata=("cut sentences",))
    assert not list(tmp_path.iterdir())
    for bench in (sweep, choices):
        monkeypatch.setattr(bench, "STRATA", ())
    short = replace(fidelity.QUICK, strata=(), num_pure=1, num_warm=1, num_drift=1, num_norms=1)
    monkeypatch.setattr(fidelity, "QUICK", short)
    run(name, model, tmp_path, strata=(CUT,))
    rows = [json.loads(line) for line in lines(tmp_path)[f"{name}_rows.jsonl"][1:]]
    assert {row["stratum"] for row in rows} == {CUT}
    body = json.loads((tmp_path / f"{name}.json").read_text())
    if name == "fidelity":
        assert body["verdict"]["controls"][-1]["name"].endswith(f"{CUT}s")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fidelity", "sweep", "choices"])
def test_it_runs_on_a_gpu_as_well(name, model, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "STRATA", ("two documents",))
    run(name, model, tmp_path, device_name="cuda")
    rows = [json.loads(line) for line in lines(tmp_path)[f"{name}_rows.jsonl"][1:]]
    assert len({row["arm"] for row in rows}) > 5
    assert all(math.isfinite(row["kl"]) for row in rows)
    assert json.loads((tmp_path / f"{name}.json").read_text())["model"] == Path(model).name
