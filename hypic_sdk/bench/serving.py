"""The rows of design 13 that need one device: engine, arms and floors in one run over one model.

Rows come in order of importance, and the report is written after each: a run that is cut off has
told what mattered most.  A row that fails says why and stops nobody else.  Times are of the host's
clock, from submit to the token on the host, with nobody else being there.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hypic_sdk.bench.report import Spread, circumstances
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_layer import pair_costs, state_errors
from hypic_sdk.bench.serving_model import FULL_SIZES, TINY_SIZES, Bench, graph_notes, model_of
from hypic_sdk.bench.serving_peer import peer_prefill
from hypic_sdk.bench.serving_profile import write_profile
from hypic_sdk.config import MIB, MODES
from hypic_sdk.errors import WorkerError
from hypic_sdk.transport.messages import TokenEvent

if TYPE_CHECKING:
    from rich.console import Console

DECODE_TOKENS = 24
WARM_UPS = 4  # of a shape: compiled, looked at, captured; and one more
MODES_BESIDE = ("addition", "transition", "transition_rope", "prefix_cache")


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement beside its target and its floor."""

    name: str
    unit: str
    found: Spread
    target: float | None = None
    is_upper: bool = True  # the target is a limit that is not to be passed; else one to be reached
    floor: float | None = None  # in the row's unit: what no implementation beats
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def is_met(self) -> bool | None:
        """Whether the median is within the target; none without one."""
        if self.target is None:
            return None
        return (
            self.found.median <= self.target
            if self.is_upper
            else (self.found.median >= self.target)
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that gave no number."""

    name: str
    reason: str


Measure = Callable[[Bench, Floors], Iterator[Row]]


def segment_bytes(bench: Bench, floors: Floors) -> Iterator[Row]:
    """What one entry of 1k tokens takes."""
    del floors
    layout = bench.engine().describe().store_layout
    mib = layout.segment_bytes(bench.sizes.tokens(1024) - 8) / MIB
    yield Row("bytes of a 1k segment", "MiB", Spread.of([mib]), target=112.0)


def hits_4x4k(bench: Bench, floors: Floors) -> Iterator[Row]:
    """The first token over four documents that are all there."""
    yield _hits(bench, floors, "TTFT, 4 x 4k all hits", 4, 4096, target=25.0)


def _hits(
    bench: Bench, floors: Floors, name: str, how_many: int, length: int, target: float | None
) -> Row:
    engine, count = bench.engine(), bench.sizes.tokens(length)
    segments = bench.segments(10, how_many, count)
    bench.warm(engine, segments)
    found, report = [], None
    for i in range(bench.sizes.num_runs + WARM_UPS):
        order = segments[i % how_many :] + segments[: i % how_many]
        ms, report = bench.first_token(engine, bench.prompt(order, 100 * how_many + i))
        found.append(ms)
    assert report is not None, "there was a run"
    assert report.cold_tokens == 0, "all documents are in the pool"
    return Row(
        name,
        "ms",
        Spread.of(found[WARM_UPS:]),
        target=target,
        floor=floors.forward_ms(report.live_tokens, entry_tokens=[count] * how_many),
        notes={
            "live_tokens": report.live_tokens,
            "cached_tokens": report.cached_tokens,
            **graph_notes(engine),
        },
    )


def further_1k(bench: Bench, floors: Floors) -> Iterator[Row]:
    """What one more document costs, from twelve up."""
    first = _hits(bench, floors, "TTFT, 12 x 1k all hits", 12, 1024, None)
    second = _hits(bench, floors, "TTFT, 20 x 1k all hits", 20, 1024, None)
    yield first
    yield second
    pairs = (
        (second.found.minimum, first.found.minimum),
        (second.found.median, first.found.median),
        (second.found.maximum, first.found.maximum),
    )
    each = [(more - less) / 8 for more, less in pairs]
    floor = None
    if first.floor is not None and second.floor is not None:
        floor = (second.floor - first.floor) / 8
    yield Row("each further 1k segment", "ms", Spread.of(each), target=0.3, floor=floor)


def decode_steps(batch: int, target: float) -> Measure:
    """A step in which every one of `batch` requests gets a token, at 4k of context each."""

    def measure(bench: Bench, floors: Floors) -> Iterator[Row]:
        engine, count = bench.engine(), bench.sizes.tokens(4096)
        documents = bench.segments(10, 1, count)
        bench.warm(engine, documents)
        for i in range(batch):
            prompt = bench.prompt(documents, 5000 + 100 * batch + i)
            engine.submit(bench.request(prompt, max_tokens=DECODE_TOKENS, reuse=True))
        found = []
        while engine.has_work:
            bench.wait()
            start_s = time.perf_counter()
            events = engine.step()
            ms = 1e3 * (time.perf_counter() - start_s)
            _raise_errors(events)
            if sum(len(e.token_ids) for e in events if isinstance(e, TokenEvent)) == batch:
                found.append(ms)
        yield Row(
            f"decode step, batch {batch}, 4k of context",
            "ms",
            Spread.of(found[3:]),
            target=target,
            floor=floors.decode_ms(batch, count),
            notes={
                "tokens_per_s": round(1e3 * batch / Spread.of(found[3:]).median, 1),
                **graph_notes(engine),
            },
        )

    measure.__qualname__ = f"decode_{batch}"
    return measure


def _raise_errors(events: list[Any]) -> None:
    for event in events:
        if event.error is not None:
            raise WorkerError(f"a request of the bench failed: {event.error}")


def cold_segments(bench: Bench, floors: Floors) -> Iterator[Row]:
    """Eight documents of 1.25k tokens that nobody has seen, in one request."""
    yield _cold(bench, floors, "cold prefill, 8 segments of 1.25k", 65_000.0, is_text=False)


def cold_text(bench: Bench, floors: Floors) -> Iterator[Row]:
    """The same number of tokens as one text, all of it live: full recompute."""
    yield _cold(bench, floors, "cold prefill, one text of 10k", 50_000.0, is_text=True)


def _cold(bench: Bench, floors: Floors, name: str, target: float, *, is_text: bool) -> Row:
    engine, count = bench.engine(), bench.sizes.tokens(1250)
    speeds, times = [], []
    for i in range(bench.sizes.num_runs + 1):
        segments = bench.segments(1000 + 10 * i + 500 * is_text, 8, count)
        prompt = bench.prompt(segments, 700 + i)
        ms, _ = bench.first_token(engine, prompt, reuse=not is_text)
        times.append(round(ms, 1))
        speeds.append(1e3 * prompt.num_tokens / ms)
    floor = floors.forward_ms(prompt.num_tokens)
    return Row(
        name,
        "tokens/s",
        Spread.of(speeds[1:]),
        target=target,
        is_upper=False,
        floor=None if floor is None else 1e3 * prompt.num_tokens / floor,
        notes={"first_token_ms": times},
    )


def full_recompute(bench: Bench, floors: Floors) -> Iterator[Row]:
    """The first row's prompt with nothing reused: what the arms are compared with."""
    engine, found = bench.engine(), []
    segments = bench.segments(10, 4, bench.sizes.tokens(4096))
    for i in range(min(3, bench.sizes.num_runs) + 1):
        prompt = bench.prompt(segments, 800 + i)
        found.append(bench.first_token(engine, prompt, reuse=False)[0])
    floor = floors.forward_ms(prompt.num_tokens)
    yield Row("TTFT, 4 x 4k full recompute", "ms", Spread.of(found[1:]), floor=floor)


def pair_cost(bench: Bench, floors: Floors) -> Iterator[Row]:
    """The share of a cold forward that goes into (T, S)."""
    del floors
    for name, how_many, length in (("one 4k segment", 1, 4096), ("eight 1k segments", 8, 1024)):
        count = bench.sizes.tokens(length)
        lengths = [count] * how_many
        costs = pair_costs(bench, lengths)
        forwards = [
            bench.warm(bench.engine(), bench.segments(3000 + 10 * i, how_many, count))
            for i in range(3)
        ]
        forward_ms = Spread.of(forwards[1:]).median
        shares = [100 * ms / max(1e-6, forward_ms - ms) for ms in costs.extra_ms]
        notes = {"forward_ms": forward_ms, **costs.notes}
        yield Row(f"building (T, S), {name}", "%", Spread.of(shares), target=2.0, notes=notes)


def layer_zero(bench: Bench, floors: Floors) -> Iterator[Row]:
    """How far a composed state at the first layer is from the sequential one in fp64."""
    del floors
    for name, error, target in state_errors(bench):
        yield Row(f"layer-0 state error, {name}", "relative", Spread.of([error]), target=target)


def other_modes(bench: Bench, floors: Floors) -> Iterator[Row]:
    """The first row under the other modes, each with an engine of its own."""
    del floors
    count = bench.sizes.tokens(4096)
    segments = bench.segments(10, 4, count)
    for mode in MODES_BESIDE:
        engine, found = bench.engine(mode), []
        if MODES[mode].segments:
            bench.warm(engine, segments)
        for i in range(min(3, bench.sizes.num_runs) + WARM_UPS):
            order = segments[i % 4 :] + segments[: i % 4]
            found.append(bench.first_token(engine, bench.prompt(order, 900 + i))[0])
        spread = Spread.of(found[WARM_UPS:])
        yield Row(f"TTFT, 4 x 4k, {mode}, documents in another order", "ms", spread)


def transformers_arm(bench: Bench, floors: Floors) -> Iterator[Row]:
    """Prefill by transformers, in the memory that ours has given up."""
    del floors
    for name, unit, found in peer_prefill(bench.shape, bench.device, bench.sizes):
        yield Row(name, unit, found)


decode_1 = decode_steps(1, 4.0)
ROWS: tuple[Measure, ...] = (
    segment_bytes,
    hits_4x4k,
    decode_1,
    cold_segments,
    decode_steps(32, 18.0),
    cold_text,
    further_1k,
    full_recompute,
    pair_cost,
    layer_zero,
    other_modes,
)
PROFILED: tuple[Measure, ...] = (hits_4x4k, decode_1, cold_segments)


@dataclass(slots=True)
class Report:
    """What there is so far; written after every row."""

    folder: Path | None
    shape: str
    rows: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def write(self) -> None:
        """serving.json, whole at any time."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        report = {
            "bench": "serving",
            "shape": self.shape,
            "circumstances": asdict(circumstances()),
            "rows": [{**asdict(row), "is_met": row.is_met} for row in self.rows],
            "failures": [asdict(failure) for failure in self.failures],
            "seconds": self.seconds,
        }
        text = json.dumps(report, indent=1) + "\n"
        (self.folder / "serving.json").write_text(text, encoding="utf-8")


def run_serving_bench(
    console: Console,
    *,
    shape: str = "qwen3.5-35b-a3b",
    model: Path | None = None,
    device_name: str = "auto",
    tiny: bool = False,
    folder: Path | None = None,
    profile: bool = False,
    transformers: bool = False,
    limit_s: float = 240.0,
) -> bool:
    """Measure, print each row as it comes, write serving.json (and profiles) into `folder`.

    Args:
        tiny: a small model and short documents: to see that it works, not to measure.
        transformers: the same model by that library, at the end, in the memory of ours.
        limit_s: rows of ours that would begin later than this are left out, and named.
    Returns:
        whether every row gave a number.
    """
    start_s = time.monotonic()
    name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name if device_name == "auto" else device_name)
    shape = "tiny" if tiny else shape
    sizes = TINY_SIZES if tiny else FULL_SIZES
    bench = Bench(model_of(shape, model, device), shape, device, sizes)
    floors = Floors.of(bench)
    report = Report(folder, str(model or shape))
    console.print(f"{circumstances()}, {report.shape}", highlight=False)
    for measure in ROWS:
        _measure(console, report, measure, bench, floors, start_s, limit_s)
        if profile and measure in PROFILED and folder is not None:
            _profile(console, report, measure, bench, floors)
    if transformers:
        bench.release()
        _measure(console, report, transformers_arm, bench, floors, start_s, math.inf)
    return not report.failures


def _measure(
    console: Console,
    report: Report,
    measure: Measure,
    bench: Bench,
    floors: Floors,
    start_s: float,
    limit_s: float,
) -> None:
    name, begun_s = getattr(measure, "__qualname__", "row"), time.monotonic()
    try:
        if begun_s - start_s > limit_s:
            raise TimeoutError(f"not begun within {limit_s:g} s")
        with torch.inference_mode():
            for row in measure(bench, floors):
                report.rows.append(row)
                console.print(line_of(row), highlight=False, soft_wrap=True)
                report.write()
    except Exception as error:  # the other rows go on
        reason = f"{type(error).__name__}: {error}"[:500]
        report.failures.append(Failure(name, reason))
        console.print(f"{name}: {reason}", style="red", markup=False)
    report.seconds[name] = round(time.monotonic() - begun_s, 2)
    report.write()


def _profile(
    console: Console, report: Report, measure: Measure, bench: Bench, floors: Floors
) -> None:
    """Where the time of a row goes, by kernel."""
    name = measure.__qualname__
    assert report.folder is not None, "profiles are files"
    try:
        for line in write_profile(name, bench, report.folder):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    except Exception as error:
        report.failures.append(Failure(f"profile of {name}", f"{type(error).__name__}: {error}"))
    del floors


def line_of(row: Row) -> str:
    """A row as one line."""
    spread = " / ".join(
        _number(x) for x in (row.found.minimum, row.found.median, row.found.maximum)
    )
    line = f"{row.name}: {spread} {row.unit}"
    if row.target is not None:
        verdict = "met" if row.is_met else "MISSED"
        line += f", target {'<=' if row.is_upper else '>='} {row.target:g} ({verdict})"
    if row.floor is not None:
        line += f", floor {_number(row.floor)}"
    return line + (f"  {row.notes}" if row.notes else "")


def _number(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}" if abs(x) < 1 else f"{x:.1f}"
