"""`hypic bench kernels` at tiny shapes on the CPU: what it refuses, and what it writes."""

from __future__ import annotations

import io
import json
import math

import pytest
import torch
from rich.console import Console

from hypic_sdk.bench import kernels
from hypic_sdk.bench.kernel_cases import kernel_cases
from hypic_sdk.bench.kernel_shapes import LARGE, SMALL, TINY
from hypic_sdk.bench.kernels import run_kernel_bench, self_test, time_case
from hypic_sdk.kernels.norm import op as norm

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", kernel_cases(TINY), ids=lambda case: f"{case.op} {case.name}")
def test_every_case_passes_on_a_cpu(case):
    """bf16 errors: there is one to see, and it is within the bound."""
    test = self_test(case, CPU)
    assert test.passed, test
    assert test.implementation == "torch"
    assert test.error > 0.0 or case.op == "place_entries"


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
    ops = {case.op for case in kernel_cases(TINY)}
    assert {test["op"] for test in report["self_test"]} == ops
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
    assert "refused: rms_norm is wrong" in told.getvalue()


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
