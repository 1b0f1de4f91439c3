"""Where the time of a row goes: kernels by their time on the device, and what the host adds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from hypic_sdk.bench.serving_model import Bench

SHOWN = 12
KEPT = 60


def _hits(bench: Bench) -> Callable[[], object]:
    """The prompt of four long documents, which are all there by now."""
    engine, segments = bench.engine(), bench.segments(10, 4, bench.sizes.tokens(4096))
    return lambda: bench.first_token(engine, bench.prompt(segments, 9001))


def _cold(bench: Bench) -> Callable[[], object]:
    """Eight documents that nobody has seen."""
    engine, segments = bench.engine(), bench.segments(9100, 8, bench.sizes.tokens(1250))
    return lambda: bench.first_token(engine, bench.prompt(segments, 9002))


def _text(bench: Bench) -> Callable[[], object]:
    """As many tokens as one text, all of it live."""
    engine, segments = bench.engine(), bench.segments(9200, 8, bench.sizes.tokens(1250))
    return lambda: bench.first_token(engine, bench.prompt(segments, 9004), reuse=False)


def _decode(batch: int) -> Callable[[Bench], Callable[[], object]]:
    def prepare(bench: Bench) -> Callable[[], object]:
        """One step of requests that decode, at 4k of context."""
        engine, documents = bench.engine(), bench.segments(10, 1, bench.sizes.tokens(4096))
        for i in range(batch):
            prompt = bench.prompt(documents, 9300 + 100 * batch + i)
            engine.submit(bench.request(prompt, max_tokens=64 + batch, reuse=True))
        for _ in range(batch + 6):
            engine.step()
        return engine.step

    return prepare


PROFILED = {
    "hits_4x4k": _hits,
    "decode_1": _decode(1),
    "cold_segments": _cold,
    "decode_32": _decode(32),
    "cold_text": _text,
}


def write_profile(name: str, bench: Bench, folder: Path) -> Iterator[str]:
    """Run a row's request once under the profiler; the best lines, and the files.

    Args:
        name: of a row with a request of its own.
    """
    call = PROFILED[name](bench)
    activities = [ProfilerActivity.CPU]
    if bench.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    bench.wait()
    with profile(activities=activities) as found:
        start_s = time.perf_counter()
        call()
        bench.wait()
        wall_ms = 1e3 * (time.perf_counter() - start_s)
    while bench.engine().has_work:
        bench.engine().step()
    rows = kernel_rows(found, on_device=bench.device.type == "cuda")
    kernel_ms = sum(row["ms"] for row in rows)
    calls = sum(row["calls"] for row in rows)
    folder.mkdir(parents=True, exist_ok=True)
    report = {"row": name, "wall_ms": wall_ms, "kernel_ms": kernel_ms, "kernels": rows[:KEPT]}
    text = json.dumps(report, indent=1) + "\n"
    (folder / f"profile-{name}.json").write_text(text, encoding="utf-8")
    host = found.key_averages().table(sort_by="self_cpu_time_total", row_limit=30)
    (folder / f"profile-{name}-host.txt").write_text(host + "\n", encoding="utf-8")
    yield f"profile of {name}: {wall_ms:.1f} ms, kernels {kernel_ms:.1f} ms in {calls} launches"
    for row in rows[:SHOWN]:
        yield f"  {row['ms']:9.3f} ms {row['calls']:6d} x  {row['name'][:90]}"


def kernel_rows(found: profile, *, on_device: bool) -> list[dict[str, Any]]:
    """Kernels (on a CPU: ops) by their own time, the longest first."""
    rows = []
    for event in found.key_averages():
        is_kernel = "CUDA" in str(event.device_type) if on_device else True
        us = event.self_device_time_total if on_device else event.self_cpu_time_total
        if is_kernel and us > 0:
            rows.append({"name": event.key, "ms": us / 1e3, "calls": event.count})
    return sorted(rows, key=lambda row: -float(row["ms"]))
