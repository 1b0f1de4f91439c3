"""`hypic bench kernels` at tiny shapes on the CPU: what it refuses, and what it writes."""

from __future__ import annotations

import ast
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from hypic_sdk import kernels as kernel_ops
from hypic_sdk.bench import kernels
from hypic_sdk.bench.kernel_cases import kernel_cases
from hypic_sdk.bench.kernel_shapes import LARGE, SMALL, TINY, Case, Tensors
from hypic_sdk.bench.kernels import Timing, run_kernel_bench, self_test, time_case
from hypic_sdk.bench.report import Spread
from hypic_sdk.cli.app import app
from hypic_sdk.kernels.backend import picked_choices
from hypic_sdk.kernels.norm import op as norm

CPU = torch.device("cpu")


CASES = kernel_cases(TINY)
# states and transitions are kept in these; a hundredth is many of their roundings
KEPT_DTYPES = (torch.float32, torch.float16)


def outputs(cases: list[Case]) -> list:
    """Each output of each case, by name."""
    return [pytest.param(case, x, id=f"{case}, {x}") for case in cases for x in case.bounds]


def altered(x: torch.Tensor) -> torch.Tensor:
    """An output of a kernel that is a little wrong."""
    if x.dtype == torch.bool:
        return ~x
    if not x.is_floating_point():
        return x + 1
    return (x * (1.01 if x.dtype in KEPT_DTYPES else 1.05)).to(x.dtype)


def with_fault(case: Case, output: str, fault: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    """The case with one output at fault, but for the definition in fp64."""

    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        call = case.bind(t)
        if any(x.dtype == torch.float64 for x in t.values()):
            return call
        return lambda: [
            fault(x) if name == output else x for name, x in zip(case.bounds, call(), strict=True)
        ]

    return replace(case, bind=bind)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_output_passes_on_a_cpu(case):
    """bf16 errors: there is one to see, and it is within the bound."""
    tests = self_test(case, CPU)
    assert [test.output for test in tests] == list(case.bounds)
    for test in tests:
        assert test.passed, test
        assert test.implementation == "torch"
        assert (test.error > 0.0) == (test.bound > 0.0), test


@pytest.mark.parametrize(("case", "output"), outputs(CASES))
def test_an_output_that_is_a_little_wrong_is_seen_and_no_other_one(case, output):
    tests = self_test(with_fault(case, output, altered), CPU)
    assert {test.output for test in tests if not test.passed} == {output}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("case", "output"), outputs(CASES))
def test_one_element_that_is_no_number_is_seen(case, output, value):
    def fault(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return altered(x)
        x = x.clone()
        x.view(-1)[x.view(-1).isfinite().nonzero()[-1]] = value
        return x

    tests = self_test(with_fault(case, output, fault), CPU)
    assert {test.output for test in tests if not test.passed} == {output}


def chosen_ops() -> set[str]:
    """The ops of all folders that choose an implementation, by the name that they ask for."""
    found = set()
    for path in sorted(Path(kernel_ops.__path__[0]).glob("*/op.py")):
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "backend.select"
        ]
        assert calls, f"{path} chooses nothing"
        for call in calls:
            assert isinstance(call.args[0], ast.Constant), f"{path}: its name is not written out"
            found.add(call.args[0].value)
    return found


@pytest.mark.parametrize("shapes", [TINY, SMALL, LARGE], ids=["tiny", "small", "large"])
def test_every_op_that_chooses_an_implementation_has_a_case(shapes):
    assert {case.op for case in kernel_cases(shapes)} == chosen_ops()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_runs_the_op_that_it_is_named_after(case):
    with picked_choices() as picked:
        case.bind(case.draw(CPU, torch.bfloat16))()
    assert case.op in picked or str(case) == "linear any rows"


@pytest.mark.parametrize("shapes", [TINY, SMALL, LARGE], ids=["tiny", "small", "large"])
def test_every_case_has_a_floor(shapes):
    names = [(case.op, case.name) for case in kernel_cases(shapes)]
    assert len(set(names)) == len(names)
    for case in kernel_cases(shapes):
        assert case.num_bytes > 0
        floor_us = kernels._floor_us(case)
        assert math.isclose(floor_us, 1e6 * max(case.num_bytes / 4.3e12, case.num_flops / 790e12))


def test_the_floor_of_a_decode_step_is_that_of_reading_and_writing_the_states():
    """64 requests, 32 heads of 128 x 128 in fp32: 268 MB, 62 us at 4.3 TB/s."""
    case = next(c for c in kernel_cases(LARGE) if (c.op, c.name) == ("live_scan", "decode"))
    assert 62.0 < kernels._floor_us(case) < 65.0


def test_it_prints_and_writes_what_it_found(tmp_path):
    told = io.StringIO()
    passed = run_kernel_bench(
        Console(file=told, width=200), tiny=True, folder=tmp_path / "new", seconds=0.01
    )
    assert passed
    report = json.loads((tmp_path / "new" / "kernels.json").read_text())
    ops = {case.op for case in CASES}
    tested = [(test["op"], test["name"], test["output"]) for test in report["self_test"]]
    assert tested == [(case.op, case.name, output) for case in CASES for output in case.bounds]
    assert report["failures"] == []
    assert {one["op"] for one in report["timings"]} == ops
    for one in report["timings"]:
        us = one["us"]
        assert 0.0 < us["minimum"] <= us["median"] <= us["maximum"]
        assert us["num_runs"] >= 3
        assert one["floor_us"] is None, "the floor is that of another device"
    assert report["circumstances"]["torch"] == torch.__version__
    for op in ops:
        assert op in told.getvalue()


@pytest.mark.parametrize("fault", ["wrong", "unwritten", "broken"])
def test_an_op_that_is_wrong_is_refused_by_name_and_not_timed(monkeypatch, tmp_path, fault):
    right = norm.reference.rms_norm

    def faulty(x, weight, **options):
        if x.dtype == torch.float64:
            return right(x, weight, **options)
        if fault == "broken":
            raise ValueError("it does not compile")
        out = right(x, weight, **options)
        if fault == "wrong":
            return out * 1.1
        out[-1, -1] = torch.nan
        return out

    monkeypatch.setattr(norm.reference, "rms_norm", faulty)
    told = io.StringIO()
    console = Console(file=told, width=200)
    assert not run_kernel_bench(console, tiny=True, folder=tmp_path, seconds=0.01)
    report = json.loads((tmp_path / "kernels.json").read_text())
    assert "rms_norm" not in {one["op"] for one in report["timings"]}
    assert "gated_rms_norm" in {one["op"] for one in report["timings"]}
    verdict = "failed" if fault == "broken" else "is wrong"
    assert f"refused: rms_norm {verdict} on this device and was not timed" in told.getvalue()
    names = {one["name"] for one in report["failures"]}
    assert ("self-test of rms_norm hidden rows" in names) == (fault == "broken")
    assert {one["reason"] for one in report["failures"]} <= {"ValueError: it does not compile"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_that_fails_while_it_is_timed_leaves_the_others(monkeypatch, tmp_path, case):
    """Out of memory at the large shapes, say."""
    monkeypatch.setattr(kernels, "self_test", lambda *_: [])
    written = []

    def timed(one, device, seconds):
        if (tmp_path / "kernels.json").exists():
            written.append(json.loads((tmp_path / "kernels.json").read_text())["timings"])
        if one.op == case.op and one.name == case.name:
            raise torch.OutOfMemoryError("tried to allocate 20 GiB")
        return Timing(one.op, one.name, "torch", 1, 0, Spread.of([1.0]), None)

    monkeypatch.setattr(kernels, "time_case", timed)
    told = io.StringIO()
    assert not run_kernel_bench(Console(file=told, width=200), tiny=True, folder=tmp_path)
    report = json.loads((tmp_path / "kernels.json").read_text())
    timed_cases = [(one["op"], one["name"]) for one in report["timings"]]
    assert timed_cases == [(c.op, c.name) for c in CASES if str(c) != str(case)]
    reason = "OutOfMemoryError: tried to allocate 20 GiB"
    assert report["failures"] == [{"name": f"time of {case}", "reason": reason}]
    assert f"time of {case}: {reason}" in told.getvalue()
    assert len(written[-1]) >= len(CASES) - 2, "written after each case"


def test_a_case_that_fails_is_told_by_the_exit_status(monkeypatch, tmp_path):
    def failing(*_):
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")

    monkeypatch.setattr(kernels, "time_case", failing)
    done = CliRunner().invoke(app, ["bench", "kernels", "--tiny", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert done.exception is None or isinstance(done.exception, SystemExit)
    report = json.loads((tmp_path / "kernels.json").read_text())
    assert len(report["failures"]) == len(CASES)
    assert report["self_test"], "what was found before is kept"


@pytest.mark.parametrize("width", [20, 80])
def test_no_number_is_cut_by_a_narrow_terminal(monkeypatch, width):
    us = Spread.of([10072.3, 123456.7, 1234567.8])
    monkeypatch.setattr(
        kernels,
        "time_case",
        lambda one, *_: Timing(one.op, one.name, "torch", 1, 0, us, 54321.9),
    )
    told = io.StringIO()
    assert run_kernel_bench(Console(file=told, width=width), tiny=True)
    lines = told.getvalue().splitlines()
    for case in CASES:
        assert f"{case}: {us} us (torch), floor 54321.9 us, 2.3 times it" in lines
    errors = [line for line in lines if "allowed" in line]
    assert len(errors) == sum(len(case.bounds) for case in CASES)
    assert all(re.search(r"error \d\.\de[+-]\d\d, allowed \d\.\d", line) for line in errors)


def test_a_case_is_timed_over_inputs_that_take_turns(monkeypatch):
    seen = []
    case = next(case for case in kernel_cases(TINY) if case.op == "rms_norm")
    monkeypatch.setattr(kernels, "_CACHE_BYTES", 1 << 40)
    right = norm.reference.rms_norm

    def watched(x, weight, **options):
        seen.append(x.data_ptr())
        return right(x, weight, **options)

    monkeypatch.setattr(norm.reference, "rms_norm", watched)
    timing = time_case(case, CPU, 0.0)
    assert timing.us.num_runs == 3
    assert len(set(seen)) == kernels._MAX_INPUTS - 1
    assert seen[-3] != seen[-2] != seen[-1]
