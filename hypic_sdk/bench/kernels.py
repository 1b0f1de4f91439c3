"""Every op on its device: first against its definition, then against the clock.

The self-test runs each op at small shapes and compares it with the reference on the CPU in fp64: a
kernel that a compiler got wrong is refused by name and not timed.  Times are of the device's own
events, over inputs that take turns, so that none is read from a cache.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.table import Table

from hypic_sdk.bench.kernel_cases import kernel_cases
from hypic_sdk.bench.kernel_shapes import LARGE, SMALL, TINY, Case, Shapes, Tensors
from hypic_sdk.bench.report import Spread, circumstances
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
    """One case against its definition."""

    op: str
    name: str
    implementation: str  # of the op on this device
    error: float  # relative RMS, the worst of what it wrote
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the error is a number within the bound."""
        return self.error <= self.bound


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


def self_test(case: Case, device: torch.device) -> SelfTest:
    """Run a case on the device in bf16, and its definition on the CPU over the same numbers."""
    torch.manual_seed(0)
    inputs = case.draw(device, torch.bfloat16)
    wide = {name: _wide(x) for name, x in inputs.items()}
    want = case.bind(wide)()
    with picked_choices() as picked:
        got = case.bind(inputs)()
    error = max(_relative_rms(a, b) for a, b in zip(got, want, strict=True))
    return SelfTest(case.op, case.name, _implementation(case, picked), error, case.bound)


def _implementation(case: Case, picked: dict[str, Choice]) -> str:
    """What ran; a product of any rows is torch's own and nobody chooses."""
    return picked[case.op].implementation if case.op in picked else "torch"


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to("cpu", torch.float64 if x.is_floating_point() else x.dtype, copy=True)


def _relative_rms(got: torch.Tensor, want: torch.Tensor) -> float:
    """Infinite where a value was not written or is not finite."""
    got, want = got.to("cpu", torch.float64), want.double()
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


def run_kernel_bench(
    console: Console,
    *,
    device_name: str = "auto",
    tiny: bool = False,
    folder: Path | None = None,
    seconds: float = 2.0,
) -> bool:
    """Print both tables; write them to `folder`/kernels.json.

    Args:
        tiny: small shapes, as on a CPU: to see that it works, not to measure.
        seconds: about what one case may take.
    Returns:
        whether every op passed its self-test.
    """
    device = usable_device(device_name)
    small, large = (TINY, TINY) if tiny or device.type == "cpu" else (SMALL, LARGE)
    with torch.inference_mode():
        tests = [_tested(case, device) for case in kernel_cases(small)]
        console.print(_tests_table(tests))
        refused = {test.op for test in tests if not test.passed}
        timings = _timings(large, device, refused, seconds)
    console.print(_timings_table(timings))
    for op in sorted(refused):
        console.print(f"refused: {op} is wrong on this device and was not timed", style="red")
    if folder is not None:
        _write(folder, device, tests, timings)
    return not refused


def _tested(case: Case, device: torch.device) -> SelfTest:
    """The self-test; a kernel that does not even compile has an infinite error."""
    try:
        return self_test(case, device)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        return SelfTest(case.op, case.name, reason, math.inf, case.bound)


def _timings(
    shapes: Shapes, device: torch.device, refused: set[str], seconds: float
) -> list[Timing]:
    timings = []
    for case in kernel_cases(shapes):
        if case.op not in refused:
            timings.append(time_case(case, device, seconds))
            if device.type == "cuda":
                torch.cuda.empty_cache()
    return timings


def _tests_table(tests: Sequence[SelfTest]) -> Table:
    table = Table(title="self-test, bf16 against the definition in fp64")
    table.add_column("op", no_wrap=True)
    for column in ("runs as", "error", "allowed", ""):
        table.add_column(column)
    for test in tests:
        verdict = "ok" if test.passed else "WRONG"
        numbers = f"{test.error:.1e}", f"{test.bound:.1e}"
        table.add_row(f"{test.op} {test.name}", test.implementation, *numbers, verdict)
    return table


def _timings_table(timings: Sequence[Timing]) -> Table:
    table = Table(title="microseconds: minimum / median / maximum")
    table.add_column("op", no_wrap=True)
    for column in ("runs as", "time", "floor", "ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in timings:
        floor = "-" if one.floor_us is None else f"{one.floor_us:.1f}"
        ratio = "-" if one.ratio is None else f"{one.ratio:.1f}"
        table.add_row(f"{one.op} {one.name}", one.implementation, str(one.us), floor, ratio)
    return table


def _write(
    folder: Path, device: torch.device, tests: Sequence[SelfTest], timings: Sequence[Timing]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        "device": str(device),
        "copy_bytes_per_s": COPY_BYTES_PER_S,
        "product_flops_per_s": PRODUCT_FLOPS_PER_S,
        "circumstances": asdict(circumstances(device)),
        # JSON knows no infinity
        "self_test": [
            {**asdict(test), "error": test.error if math.isfinite(test.error) else None}
            for test in tests
        ],
        "timings": [{**asdict(one), "ratio": one.ratio} for one in timings],
    }
    text = json.dumps(report, indent=1) + "\n"
    (folder / "kernels.json").write_text(text, encoding="utf-8")
