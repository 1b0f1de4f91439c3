"""Experiments: arms are held against the definition, and a rule says what becomes of them."""

from __future__ import annotations

import io
import json
import math
import re

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from hypic_sdk.bench import experiments, replays, shared_keys
from hypic_sdk.bench.experiments import Verdict, run_experiments
from hypic_sdk.bench.kernel_shapes import TINY
from hypic_sdk.bench.published import read
from hypic_sdk.bench.report import Spread
from hypic_sdk.bench.serving_model import Bench
from hypic_sdk.bench.serving_report import Row
from hypic_sdk.bench.shared_keys import SCENES, TINY_SCENES, Slabs, Timing, checks
from hypic_sdk.cli.app import app
from hypic_sdk.errors import ConfigError

CPU = torch.device("cpu")
NAMES = [
    "a segment's own keys, the query turned",
    "a segment's own keys, the key turned",
    "eight requests assembled together, over one",
]


@pytest.fixture(autouse=True)
def few_runs(monkeypatch):
    monkeypatch.setattr(replays, "NUM_RUNS", 3)


def test_one_command_gives_rows_and_verdicts(tmp_path):
    done = CliRunner().invoke(
        app, ["bench", "experiments", "--tiny", "--device", "cpu", "--out", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "experiments.json").read_text())
    assert all(0 < check["error"] < 2**-7 for check in report["checks"])
    assert {(x["scene"], x["arm"]) for x in report["timings"]} == {
        (scene.name, arm) for scene in TINY_SCENES for arm in ("private", "query", "key")
    }
    for one in report["timings"]:
        assert 0 < one["us_a_layer"]["minimum"] <= one["us_a_layer"]["maximum"]
        assert (one["over_private"] == 1.0) == (one["arm"] == "private")
        assert (one["copies_mib"] > 0.0) == (one["arm"] == "private")
    assert [one["experiment"] for one in report["verdicts"]] == NAMES
    for one in report["verdicts"]:
        assert (one["is_kept"], one["is_judged"]) == (None, False)
        assert one["says"].endswith(": not judged here")
        assert one["says"] in done.output.splitlines()
    assert "given up" not in done.output
    told = read(tmp_path, for_pages=False).experiments
    assert told is not None, "what is written is what pages are made of"
    assert [one.says for one in told.verdicts] == [one["says"] for one in report["verdicts"]]
    with pytest.raises(ConfigError, match="tiny"):
        read(tmp_path)


@pytest.mark.parametrize("scene", TINY_SCENES, ids=lambda scene: scene.name)
@pytest.mark.parametrize("fault", ["place", "rotate_live", "rotate_cached"])
def test_the_checks_see_keys_that_are_not_where_they_belong(scene, fault, monkeypatch):
    assert all(check.passed for check in checks(scene, TINY, CPU))
    monkeypatch.setattr(Slabs, fault, lambda _: None)
    wrong = {check.arm for check in checks(scene, TINY, CPU) if not check.passed}
    told = {"place": {"private"}, "rotate_cached": {"query"}}
    assert wrong == told.get(fault, {"private", "key", "query"})


def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the sizes of a large model, on a GPU."""
    monkeypatch.setattr(experiments, "rules_apply", lambda *_, **__: True)
    monkeypatch.setattr(Bench, "is_judged", True)


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_rules_are_of_a_large_model_on_a_gpu(device, tiny):
    wanted = (device, tiny) == ("cuda", False)
    assert experiments.rules_apply(torch.device(device), tiny=tiny) == wanted


@pytest.mark.parametrize("width", [20, 80])
def test_no_number_is_cut_by_a_narrow_terminal(monkeypatch, width):
    us = Spread.of([10072.3, 123456.7, 1234567.8])
    timing = Timing("a scene", "key", us, 12345.67, 98765.432, 123456.7)
    monkeypatch.setattr(shared_keys, "timings", lambda *_: [timing])
    monkeypatch.setattr(experiments, "eight_together", lambda *_: iter([]))
    told = io.StringIO()
    assert run_experiments(Console(file=told, width=width), device_name="cpu", tiny=True)
    numbers = f"{us} us a layer, 12345.67 times private, 98765.432 ms"
    assert any(numbers in line for line in told.getvalue().splitlines())
    errors = re.findall(r"error \d\.\de-\d\d, allowed 7\.8e-03: ok", told.getvalue())
    assert len(errors) == 3 * len(TINY_SCENES)


def test_a_way_that_is_wrong_or_fails_is_not_timed_and_given_up(tmp_path, monkeypatch):
    judged(monkeypatch)
    honest = shared_keys.shared_attention

    def faulty(query, *arguments, turn, **options):
        if turn == "key":
            raise RuntimeError("it does not compile")
        return honest(query * 1.5, *arguments, turn=turn, **options)

    monkeypatch.setattr(shared_keys, "shared_attention", faulty)
    row = Row(NAMES[2], "x", Spread.of([1.2]), target=1.5)
    monkeypatch.setattr(experiments, "eight_together", lambda *_: iter([row]))
    console = Console(quiet=True)
    assert not run_experiments(console, device_name="cpu", tiny=True, folder=tmp_path)
    report = json.loads((tmp_path / "experiments.json").read_text())
    assert {one["arm"] for one in report["timings"]} == {"private"}
    assert all(x["is_judged"] for x in report["verdicts"])
    assert [(x["found"], x["is_kept"]) for x in report["verdicts"]] == [
        (None, False), (None, False), (1.2, True),
    ]  # fmt: skip


def test_an_experiment_that_fails_leaves_the_other(tmp_path, monkeypatch):
    judged(monkeypatch)
    monkeypatch.setattr(shared_keys, "TINY_SCENES", (None,))
    row = Row(NAMES[2], "x", Spread.of([1.6]), target=1.5)
    monkeypatch.setattr(experiments, "eight_together", lambda *_: iter([row]))
    console = Console(quiet=True)
    assert not run_experiments(console, device_name="cpu", tiny=True, folder=tmp_path)
    report = json.loads((tmp_path / "experiments.json").read_text())
    assert [failure["name"] for failure in report["failures"]] == ["shared keys"]
    assert [one["is_kept"] for one in report["verdicts"]] == [False]


def test_the_worst_case_decides():
    assert Verdict("e", "r", 1.1, 1.1).is_kept
    assert not Verdict("e", "r", 1.11, 1.1).is_kept
    assert not Verdict("e", "r", math.inf, 1.1).is_kept
    assert Verdict("e", "r", 1.0, 1.1, is_judged=False).is_kept is None
    assert str(Verdict("e", "at most 1.1", 1.2, 1.1)) == "e: 1.20, at most 1.1: given up"


def test_the_scenes_are_those_of_the_design():
    """Cached and live tokens of each, and where they lie."""
    found = {x.name: (x.num_requests * x.num_cached, x.num_live) for x in SCENES}
    assert found["4 x 4k, 64 rows and seams"] == (4 * 4088, 24 + 4 * 8 + 64)
    assert found["12 x 1k, 64 rows and seams"] == (12 * 1016, 24 + 12 * 8 + 64)
    assert found["decode, batch 32, 4k each"] == (32 * 4088, 24 + 8 + 64)
    # two layers, keys and values, two heads of 24 in fp32
    assert Slabs(TINY_SCENES[1], TINY, CPU, torch.float32).copies_bytes == 2 * 2 * 5 * 2 * 2 * 192
    slabs = Slabs(TINY_SCENES[0], TINY, CPU, torch.float32)
    assert slabs.num_rows == 3 * 8 + 5
    assert len(slabs.private_runs()) == len(slabs.shared_runs()) == 4
    kinds = torch.cat((slabs.cached.flatten(), slabs.live.flatten(), slabs.copies.flatten()))
    assert torch.equal(kinds, torch.arange(slabs.keys.shape[1]))
