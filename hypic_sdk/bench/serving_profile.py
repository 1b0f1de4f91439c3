"""Where the time of a row goes: kernels by their time on the device, and what the host adds."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from hypic_sdk.bench.serving_model import Bench
from hypic_sdk.bench.serving_together import TOGETHER, last_first_token

SHOWN = 12
KEPT = 60
WALK = "_walk_tiles"  # of `kernels/live_scan`
FEW, MANY = 12, 20  # segments, of the two requests that tell what a further one costs

Prepare = Callable[[Bench], Callable[[], object]]


def _hits(how_many: int, length: int, question: int) -> Prepare:
    def prepare(bench: Bench) -> Callable[[], object]:
        """A prompt of documents that are all there by now."""
        engine, segments = bench.engine(), bench.segments(10, how_many, bench.sizes.tokens(length))
        return lambda: bench.first_token(engine, bench.prompt(segments, question))

    return prepare


def _together(bench: Bench) -> Callable[[], object]:
    """As many requests at once over four long documents, in another order each."""
    engine, documents = bench.engine(), bench.segments(10, 4, bench.sizes.tokens(4096))
    orders = list(itertools.permutations(documents))[:TOGETHER]
    return lambda: last_first_token(bench, engine, orders, 49_000)


def _cold(bench: Bench) -> Callable[[], object]:
    """Eight documents that nobody has seen."""
    engine, segments = bench.engine(), bench.segments(9100, 8, bench.sizes.tokens(1250))
    return lambda: bench.first_token(engine, bench.prompt(segments, 9002))


def _text(bench: Bench) -> Callable[[], object]:
    """As many tokens as one text, all of it live."""
    engine, segments = bench.engine(), bench.segments(9200, 8, bench.sizes.tokens(1250))
    return lambda: bench.first_token(engine, bench.prompt(segments, 9004), reuse=False)


def _decode(batch: int) -> Prepare:
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


# by the row that is measured before: its requests, by the name of their profile
PROFILED: Mapping[str, Mapping[str, Prepare]] = {
    "hits_4x4k": {"hits_4x4k": _hits(4, 4096, 9001)},
    "decode_1": {"decode_1": _decode(1)},
    "cold_segments": {"cold_segments": _cold},
    "decode_32": {"decode_32": _decode(32)},
    "cold_text": {"cold_text": _text},
    "further_1k": {
        f"hits_{FEW}x1k": _hits(FEW, 1024, 9005),
        f"hits_{MANY}x1k": _hits(MANY, 1024, 9006),
    },
    "eight_together": {"eight_together": _together},
}


def write_profiles(row: str, bench: Bench, folder: Path) -> Iterator[str]:
    """Run a row's requests once each under the profiler; the best lines, and the files.

    Of the requests that differ by some segments alone: also what each of these adds, by kernel.

    Args:
        row: in `PROFILED`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    reports = []
    for name, prepare in PROFILED[row].items():
        reports.append(_profiled(name, prepare(bench), bench, folder))
        yield from _lines(f"profile of {name}", reports[-1])
    if row == "further_1k":
        few, many = reports
        further = further_segment(few, many, MANY - FEW)
        _write(further, folder)
        yield from _lines("each further segment of these", further)
        layers = bench.model.spec.num_linear
        yield f"a gap and its seam, in the walk of a linear layer: {gap_us(further, layers):.2f} us"


def _profiled(name: str, call: Callable[[], object], bench: Bench, folder: Path) -> dict[str, Any]:
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
    report = {
        "row": name,
        "wall_ms": wall_ms,
        "kernel_ms": sum(row["ms"] for row in rows),
        "launches": sum(row["calls"] for row in rows),
        "kernels": rows,
    }
    _write(report, folder)
    host = found.key_averages().table(sort_by="self_cpu_time_total", row_limit=30)
    (folder / f"profile-{name}-host.txt").write_text(host + "\n", encoding="utf-8")
    return report


def _write(report: dict[str, Any], folder: Path) -> None:
    kept = {**report, "kernels": report["kernels"][:KEPT]}
    text = json.dumps(kept, indent=1) + "\n"
    (folder / f"profile-{report['row']}.json").write_text(text, encoding="utf-8")


def _lines(title: str, report: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{title}: {report['wall_ms']:.2f} ms, kernels {report['kernel_ms']:.2f} ms"
        f" in {report['launches']:g} launches"
    )
    for row in report["kernels"][:SHOWN]:
        yield f"  {row['ms']:9.3f} ms {row['calls']:6g} x  {row['name'][:90]}"


def further_segment(few: dict[str, Any], many: dict[str, Any], more: int) -> dict[str, Any]:
    """What each of `more` segments adds, by kernel, those that grow most first.

    A kernel that one request alone has (libraries take others for other sizes) counts in full, for
    it or against it.

    Args:
        few, many: reports of two requests.
    """
    before = {row["name"]: row for row in few["kernels"]}
    after = {row["name"]: row for row in many["kernels"]}
    nothing = {"ms": 0.0, "calls": 0}
    rows = [
        {
            "name": name,
            **{
                key: (after.get(name, nothing)[key] - before.get(name, nothing)[key]) / more
                for key in nothing
            },
        }
        for name in {**before, **after}
    ]
    told = {key: (many[key] - few[key]) / more for key in ("wall_ms", "kernel_ms", "launches")}
    kernels = sorted(rows, key=lambda row: -float(row["ms"]))
    return {"row": "further_segment", **told, "kernels": kernels}


def gap_us(further: dict[str, Any], num_layers: int) -> float:
    """What a further segment adds to the kernel that walks over gaps, in one of `num_layers`.

    Args:
        further: of `further_segment`.
    """
    walks = (row["ms"] for row in further["kernels"] if WALK in row["name"])
    return 1e3 * float(sum(walks)) / num_layers


def kernel_rows(found: profile, *, on_device: bool) -> list[dict[str, Any]]:
    """Kernels (on a CPU: ops) by their own time, the longest first."""
    rows = []
    for event in found.key_averages():
        is_kernel = "CUDA" in str(event.device_type) if on_device else True
        us = event.self_device_time_total if on_device else event.self_cpu_time_total
        if is_kernel and us > 0:
            rows.append({"name": event.key, "ms": us / 1e3, "calls": event.count})
    return sorted(rows, key=lambda row: -float(row["ms"]))
