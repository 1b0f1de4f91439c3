"""Every op on its device: first against its definition, then against the clock.

The self-test runs each op at small shapes and compares each of its outputs with the reference's on
the CPU in fp64: a kernel that a compiler got wrong is refused by name and not timed.  Times are of
the device's own events, over inputs that take turns, so that none is read from a cache.  The report
is written after each case; one that fails says why and stops nobody else.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hypic_sdk.bench.kept_rows import finite
from hypic_sdk.bench.kernel_cases import kernel_cases
from hypic_sdk.bench.kernel_shapes import LARGE, SMALL, TINY, Case, Tensors
from hypic_sdk.bench.report import Circumstances, Spread, circumstances, write_whole
from hypic_sdk.bench.serving_report import Failure
from hypic_sdk.engine.opening import usable_device
from hypic_sdk.kernels.backend import Choice, picked_choices

if TYPE_CHECKING:
    from rich.console import Console

# measured on one H200 with torch: a device-to-device copy, read and written bytes counted, and a
# square bf16 product of random numbers
COPY_BYTES_PER_S = 4.3e12
PRODUCT_FLOPS_PER_S = 790e12
_CACHE_BYTES = 200 << 20  # inputs that take turns are as large as this together, or larger
_MAX_INPUTS = 4
_WARM_RUNS = 3
_MAX_RUNS = 30


@dataclass(frozen=True, slots=True)
class SelfTest:
    """One output of a case against its definition."""

    op: str
    name: str
    output: str
    implementation: str  # of the op on this device
    error: float  # relative RMS
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the error is a number within the bound."""
        return self.error <= self.bound

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "WRONG"
        numbers = f"error {self.error:.1e}, allowed {self.bound:.1e}"
        return f"{self.op} {self.name}, {self.output}: {numbers} ({self.implementation}): {verdict}"


@dataclass(frozen=True, slots=True)
class Timing:
    """One case against the clock."""

    op: str
    name: str
    implementation: str
    num_bytes: int
    num_flops: int
    us: Spread
    floor_us: float | None  # what no implementation beats; none where the device is not known

    @property
    def ratio(self) -> float | None:
        """Median over floor."""
        return None if self.floor_us is None else self.us.median / self.floor_us

    def __str__(self) -> str:
        line = f"{self.op} {self.name}: {self.us} us ({self.implementation})"
        if self.floor_us is None:
            return line
        return f"{line}, floor {self.floor_us:.1f} us, {self.ratio:.1f} times it"


def self_test(case: Case, device: torch.device) -> list[SelfTest]:
    """Run a case on the device in bf16, and its definition on the CPU over the same numbers.

    Returns:
        of each output, in the order of the case's bounds.
    """
    torch.manual_seed(0)
    inputs = case.draw(device, torch.bfloat16)
    wide = {name: _wide(x) for name, x in inputs.items()}
    want = case.bind(wide)()
    with picked_choices() as picked:
        got = case.bind(inputs)()
    runs_as = _implementation(case, picked)
    return [
        SelfTest(case.op, case.name, output, runs_as, _relative_rms(mine, right), bound)
        for (output, bound), mine, right in zip(case.bounds.items(), got, want, strict=True)
    ]


def _implementation(case: Case, picked: dict[str, Choice]) -> str:
    """What ran; a product of any rows is torch's own and nobody chooses."""
    return picked[case.op].implementation if case.op in picked else "torch"


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to("cpu", torch.float64 if x.is_floating_point() else x.dtype, copy=True)


def _relative_rms(got: torch.Tensor, want: torch.Tensor) -> float:
    """Infinite where a value was not written or is not finite, unless it is as wanted."""
    got, want = got.to("cpu", torch.float64), want.double()
    is_number = want.isfinite()  # a forbidden logit is none
    if got.shape != want.shape or not torch.equal(got[~is_number], want[~is_number]):
        return math.inf
    got, want = got[is_number], want[is_number]
    if not got.isfinite().all():
        return math.inf
    return float((got - want).norm() / want.norm().clamp_min(1e-12))


def time_case(case: Case, device: torch.device, seconds: float) -> Timing:
    """Time a case; `seconds` is about what it may take."""
    torch.manual_seed(0)
    first = case.draw(device, torch.bfloat16)
    size = sum(x.numel() * x.element_size() for x in first.values())
    count = max(1, min(_MAX_INPUTS, -(-_CACHE_BYTES // size)))
    inputs: list[Tensors] = [first]
    inputs += [case.draw(device, torch.bfloat16) for _ in range(count - 1)]
    calls = [case.bind(one) for one in inputs]
    with picked_choices() as picked:
        calls[0]()
    us = _microseconds(calls, device, seconds)
    return Timing(
        case.op,
        case.name,
        _implementation(case, picked),
        case.num_bytes,
        case.num_flops,
        Spread.of(us),
        _floor_us(case) if device.type == "cuda" else None,
    )


def _floor_us(case: Case) -> float:
    return 1e6 * max(case.num_bytes / COPY_BYTES_PER_S, case.num_flops / PRODUCT_FLOPS_PER_S)


def _microseconds(
    calls: Sequence[Callable[[], object]], device: torch.device, seconds: float
) -> list[float]:
    """Of each run, one after the other, inputs in turn."""
    for index in range(_WARM_RUNS):
        calls[index % len(calls)]()
    _wait(device)
    found: list[float] = []
    stop_s = time.monotonic() + seconds
    while len(found) < _MAX_RUNS and (len(found) < 3 or time.monotonic() < stop_s):
        found.append(_one_run(calls[len(found) % len(calls)], device))
    return found


def _one_run(call: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        start_s = time.perf_counter()
        call()
        return 1e6 * (time.perf_counter() - start_s)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return 1e3 * start.elapsed_time(stop)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(slots=True)
class Report:
    """What there is so far; written after every case."""

    folder: Path | None
    device: torch.device
    where: Circumstances
    tests: list[SelfTest] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def write(self) -> None:
        """kernels.json, whole at any time."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        report = {
            "device": str(self.device),
            "copy_bytes_per_s": COPY_BYTES_PER_S,
            "product_flops_per_s": PRODUCT_FLOPS_PER_S,
            "circumstances": asdict(self.where),
            "self_test": [asdict(test) for test in self.tests],
            "timings": [{**asdict(one), "ratio": one.ratio} for one in self.timings],
            "failures": [asdict(failure) for failure in self.failures],
        }
        text = json.dumps(finite(report), indent=1) + "\n"
        write_whole(self.folder / "kernels.json", text)


@dataclass(frozen=True, slots=True)
class Meter:
    """Takes cases one after the other, each told and written as it comes."""

    console: Console
    report: Report

    def take(self, name: str, measure: Callable[[], None]) -> bool:
        """Do one thing with one case; what it raises is a failure of it, and nobody else's.

        Returns:
            whether it raised nothing.
        """
        reason = ""
        try:
            if self.report.device.type == "cuda":
                torch.cuda.empty_cache()
            measure()
        except Exception as error:  # the other cases go on
            reason = f"{type(error).__name__}: {error}"[:500]
            self.report.failures.append(Failure(name, reason))
            self.say(f"{name}: {reason}", is_wrong=True)
        self.report.write()
        return not reason

    def test(self, case: Case) -> None:
        """The self-test of a case."""
        for test in self_test(case, self.report.device):
            self.report.tests.append(test)
            self.say(str(test), is_wrong=not test.passed)

    def time(self, case: Case, seconds: float) -> None:
        """Its time."""
        timing = time_case(case, self.report.device, seconds)
        self.report.timings.append(timing)
        self.say(str(timing))

    def say(self, text: str, *, is_wrong: bool = False) -> None:
        """A line whose numbers no width of a terminal cuts."""
        style = "red" if is_wrong else None
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def run_kernel_bench(
    console: Console,
    *,
    device_name: str = "auto",
    tiny: bool = False,
    folder: Path | None = None,
    seconds: float = 2.0,
) -> bool:
    """Print errors, then times; write both to `folder`/kernels.json.

    Args:
        tiny: small shapes, as on a CPU: to see that it works, not to measure.
        seconds: about what one case may take.
    Returns:
        whether every output passed its self-test, and no case failed.
    """
    device = usable_device(device_name)
    small, large = (TINY, TINY) if tiny or device.type == "cpu" else (SMALL, LARGE)
    report = Report(folder, device, circumstances(device))
    meter = Meter(console, report)
    with torch.inference_mode():
        meter.say("self-test: relative RMS errors of bf16 against the definition in fp64")
        refused = _tested(meter, kernel_cases(small))
        meter.say("times: minimum / median / maximum")
        for case in kernel_cases(large):
            if case.op not in refused:
                meter.take(f"time of {case}", partial(meter.time, case, seconds))
    for op, reason in sorted(refused.items()):
        meter.say(f"refused: {op} {reason} on this device and was not timed", is_wrong=True)
    return not refused and not report.failures


def _tested(meter: Meter, cases: Sequence[Case]) -> dict[str, str]:
    """Self-tests of all cases; the ops that are not to be timed, and why.

    A kernel that does not even compile fails where another one is wrong.
    """
    refused: dict[str, str] = {}
    for case in cases:
        if not meter.take(f"self-test of {case}", partial(meter.test, case)):
            refused.setdefault(case.op, "failed")
    refused |= {test.op: "is wrong" for test in meter.report.tests if not test.passed}
    return refused
