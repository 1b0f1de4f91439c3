"""The row of design 13 that needs two devices: eleven cold segments on two workers against one.

Engines have random weights of a known shape.  Rows come in order of importance and the report is
written after each, so that a run that is cut off has told what mattered most.  Every cold run has a
cache namespace of its own.  Times are of the host's clock: from submit to the first token at the
caller, through the router, the channels between the processes included.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch

from hypic_sdk.bench.report import Spread, circumstances
from hypic_sdk.bench.scatter import START_TIMEOUT_S, Answer, Bench, documents, heard
from hypic_sdk.bench.serving_model import FULL_SIZES, TINY_SIZES, Sizes, check_shape
from hypic_sdk.bench.serving_report import Failure, Row, line_of
from hypic_sdk.config import Determinism, EngineConfig, ReuseConfig, SeamRule, StoreConfig
from hypic_sdk.errors import WorkerError
from hypic_sdk.prompt.segment import PromptPart, SegmentId
from hypic_sdk.server.fleet import Fleet
from hypic_sdk.transport.control import Question
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import EngineReport, EngineRequest, Placement, WarmRequest
from hypic_sdk.transport.process_settings import ProcessSettings
from hypic_sdk.transport.worker_port import WorkerPort

if TYPE_CHECKING:
    from rich.console import Console

NUM_DOCUMENTS, DOCUMENT_TOKENS = 11, 2400
BOUND = NUM_DOCUMENTS / -(-NUM_DOCUMENTS // 2)  # of the ratio: eleven equal pieces of work on two
MODULE = "hypic_sdk.bench.shape_process"
SHARE = "of 1"  # the unit of what must be equal


@final
class ShapeBench:
    """Two engine processes of a shape, and what is asked of them."""

    def __init__(self, fleet: Fleet, sizes: Sizes) -> None:
        self.num_runs = sizes.num_runs
        self.sizes = (sizes.tokens(DOCUMENT_TOKENS),) * NUM_DOCUMENTS
        self._bench = Bench(fleet)
        (self.home_id, self.home), (_, self.other) = list(fleet.ports().items())[:2]

    def warm_up(self) -> None:
        """Let both compile, at the same time, whatever they will run."""
        parts, namespace = documents(self.sizes), self._bench.namespace()
        warming = [
            port.submit(WarmRequest(f"warm up {number}", parts, namespace))
            for number, port in enumerate((self.home, self.other))
        ]
        for events in warming:
            _drain(events)
        answering = [
            port.submit(self._bench.message(self.sizes, namespace))
            for port in (self.home, self.other)
        ]
        for events in answering:
            heard(events)

    def cold(self, num_workers: int) -> tuple[Answer, Answer]:
        """The request with nothing at hand, then again with all entries at hand."""
        router = self._bench.router(num_workers, "longest first")
        namespace = self._bench.namespace()
        first = self._bench.ask(router, self._bench.message(self.sizes, namespace))
        again = self._bench.ask(router, self._bench.message(self.sizes, namespace, again=True))
        return first, again

    def recomputed_ms(self) -> float:
        """The whole prompt as one text, on one worker."""
        router = self._bench.router(1, "longest first")
        message = replace(self._bench.message(self.sizes, self._bench.namespace()), reuse=False)
        return self._bench.ask(router, message).total_ms

    def share_ms(self) -> float:
        """What the busier of two workers makes, alone and without an answer."""
        share = documents(self.sizes)[: -(-NUM_DOCUMENTS // 2)]
        namespace = self._bench.namespace()
        began_s = time.perf_counter()
        _drain(self.home.submit(WarmRequest(f"share {namespace}", share, namespace)))
        return (time.perf_counter() - began_s) * 1e3

    def one_document(self) -> dict[str, float]:
        """Milliseconds to the first token over one document: made, pulled from the other, held."""
        size, namespace = self.sizes[:1], self._bench.namespace()
        made = self.ttft(self.home, self._bench.message(size, namespace))
        message = self._bench.message(size, namespace)
        hints = tuple(Placement(id_, self.home_id) for id_ in ids_of(documents(size)))
        pulled = self.ttft(self.other, replace(message, placements=hints))
        held = self.ttft(self.other, self._bench.message(size, namespace, again=True))
        is_pulled = pulled[1].segments[0].tier == "peer"
        if not is_pulled:
            raise WorkerError("the document was computed where it was to be pulled")
        assert self.digests(self.home, documents(size), namespace) == self.digests(
            self.other, documents(size), namespace
        ), "a pulled entry is the one that was made"
        return {"made": made[0], "pulled": pulled[0], "held": held[0]}

    def ttft(self, port: WorkerPort, message: EngineRequest) -> tuple[float, EngineReport]:
        """A request at one engine, without a router."""
        began_s = time.perf_counter()
        first_s, _, report = heard(port.submit(message))
        return (first_s - began_s) * 1e3, report

    def digests(self, port: WorkerPort, parts: Sequence[PromptPart], namespace: str) -> list[str]:
        """SHA-256 of what a worker holds of each segment."""
        found = port.ask(Question.DIGESTS, parts, namespace)
        if not all(found):
            raise WorkerError("a worker does not hold what it was asked for")
        return [bytes(one).hex() for one in found]

    def both_make(self) -> tuple[list[str], list[str]]:
        """Digests of the same documents, each worker having made all of them by itself."""
        parts, namespace = documents(self.sizes), self._bench.namespace()
        found = []
        for port in (self.home, self.other):
            _drain(port.submit(WarmRequest(f"both {namespace}", parts, namespace)))
            found.append(self.digests(port, parts, namespace))
        return found[0], found[1]


def _drain(events: Iterator[Event]) -> None:
    for event in events:
        if event.error is not None:
            raise WorkerError(f"a warm request of the bench failed: {event.error}")


def ids_of(parts: Sequence[PromptPart]) -> list[SegmentId]:
    """Of inner parts."""
    return [part.segment_id for part in parts if part.segment_id is not None]


Measure = Callable[[ShapeBench], Iterator[Row]]


def two_against_one(bench: ShapeBench) -> Iterator[Row]:
    """Totals, their ratio, and what of the time on two workers is neither work nor answer."""
    alone, pair, shares = [], [], []
    for _ in range(bench.num_runs + 2):  # two rounds compile, and make links
        alone.append(bench.cold(1))
        pair.append(bench.cold(2))
        shares.append(bench.share_ms())
    alone, pair, shares = alone[2:], pair[2:], shares[2:]
    one_ms = [cold.total_ms for cold, _ in alone]
    two_ms = [cold.total_ms for cold, _ in pair]
    combine_ms = [again.total_ms for _, again in pair]
    ratios = [one / two for one, two in zip(one_ms, two_ms, strict=True)]
    left_ms = [max(0.0, t - s - c) for t, s, c in zip(two_ms, shares, combine_ms, strict=True)]
    expected = alone[0][0].token_ids
    notes = {
        "same_tokens": all(cold.token_ids == expected for cold, _ in (*alone, *pair)),
        "num_tokens": len(expected),
        "cold_tokens_at_the_answering": [cold.report.cold_tokens for cold, _ in pair],
        "bound": BOUND,
    }
    yield Row("11 cold documents, 2 workers over 1", "x", Spread.of(ratios), 1.6, False, BOUND,
              notes)  # fmt: skip
    yield Row("combine, 2 workers", "ms", Spread.of(combine_ms), target=25.0)
    yield Row("communication, 2 workers", "ms", Spread.of(left_ms), target=15.0)
    yield Row("total, 1 worker", "ms", Spread.of(one_ms))
    yield Row("total, 2 workers", "ms", Spread.of(two_ms))
    yield Row("six documents on one worker", "ms", Spread.of(shares))
    yield Row("dispatch", "ms", Spread.of([cold.dispatch_ms for cold, _ in pair]))


def equal_tokens(bench: ShapeBench) -> Iterator[Row]:
    """The share of greedy tokens that are those of one worker, where a row's bits are its own.

    Otherwise live rows' products depend on what a step holds besides, and random weights have
    near ties everywhere.
    """
    one, two = (bench.cold(num_workers)[0].token_ids for num_workers in (1, 2))
    same = sum(a == b for a, b in zip(one, two, strict=True))
    yield Row("equal tokens of 1 and 2 workers, deterministic=all", SHARE,
              Spread.of([same / len(one)]), 1.0, is_upper=False)  # fmt: skip


def equal_entries(bench: ShapeBench) -> Iterator[Row]:
    """The share of entries that have the same bytes on both workers."""
    home, other = bench.both_make()
    same = sum(one == two for one, two in zip(home, other, strict=True))
    yield Row("entries of the same bytes on both", SHARE, Spread.of([same / len(home)]), 1.0,
              is_upper=False)  # fmt: skip


def pull_or_make(bench: ShapeBench) -> Iterator[Row]:
    """A document that the other worker holds: pulled against made again."""
    found = [bench.one_document() for _ in range(bench.num_runs + 1)][1:]
    for name in ("made", "pulled", "held"):
        yield Row(f"first token over one document, {name}", "ms",
                  Spread.of([one[name] for one in found]))  # fmt: skip
    gains = [(o["made"] - o["held"]) / max(o["pulled"] - o["held"], 1e-3) for o in found]
    yield Row("pulling over making, beyond what is held", "x", Spread.of(gains))


def over_recompute(bench: ShapeBench) -> Iterator[Row]:
    """The cold request on two workers against the same prompt as one text on one."""
    ratios, totals = [], []
    for _ in range(bench.num_runs + 1):
        whole_ms, two_ms = bench.recomputed_ms(), bench.cold(2)[0].total_ms
        ratios.append(whole_ms / two_ms)
        totals.append(whole_ms)
    yield Row("11 cold documents, 2 workers over full recompute", "x", Spread.of(ratios[1:]))
    yield Row("full recompute, 1 worker", "ms", Spread.of(totals[1:]))


ROWS: tuple[Measure, ...] = (two_against_one, equal_entries, pull_or_make, over_recompute)
ROWS_ALIKE: tuple[Measure, ...] = (equal_tokens,)


@dataclass(slots=True)
class Report:
    """What there is so far; written after every row."""

    path: Path | None
    shape: str
    device: str  # as the workers' setting says
    num_devices: int
    rows: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def write(self) -> None:
        """scatter.json, whole at any time."""
        if self.path is None:
            return
        report = {
            "bench": "scatter shapes",
            "shape": self.shape,
            "num_devices": self.num_devices,
            "documents": f"{NUM_DOCUMENTS} x {DOCUMENT_TOKENS}",
            "circumstances": asdict(circumstances(self.device)),
            "rows": [{**asdict(row), "is_met": row.is_met} for row in self.rows],
            "failures": [asdict(failure) for failure in self.failures],
            "seconds": self.seconds,
            **self.facts,
        }
        self.path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def run_scatter_shapes(
    console: Console,
    *,
    shape: str,
    device: str = "auto",
    folder: Path | None = None,
    limit_s: float = 240.0,
    start_limit_s: float = START_TIMEOUT_S,
) -> bool:
    """Start two engines, measure, print each row as it comes, write scatter.json into `folder`.

    Args:
        limit_s: rows that would begin later than this are left out, and named.
    Returns:
        whether every row gave a number, with equal tokens and equal entries.
    Raises:
        HypicError: no such shape, or the engines can not start.
    """
    check_shape(shape)
    sizes, began_s = (TINY_SIZES if shape == "tiny" else FULL_SIZES), time.monotonic()
    path = None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "scatter.json"
    report = Report(path, shape, device, torch.cuda.device_count())
    for determinism, rows in ((None, ROWS), (Determinism.ALL, ROWS_ALIKE)):
        start_s = time.monotonic()
        settings = ProcessSettings(shape, _config(sizes, device, determinism), "INFO")
        with Fleet(settings, 2, module=MODULE) as fleet:
            fleet.wait_ready(start_limit_s)
            bench = ShapeBench(fleet, sizes)
            bench.warm_up()
            report.seconds[f"start for {getattr(rows[0], '__name__', 'rows')}"] = round(
                time.monotonic() - start_s, 2
            )
            for measure in rows:
                _measure(console, report, measure, bench, began_s, limit_s)
            with suppress(WorkerError):
                facts = fleet.link.worker_facts().items()
                report.facts.setdefault("workers", {name: asdict(one) for name, one in facts})
    report.write()
    return not report.failures and all(row.is_met for row in report.rows if row.unit == SHARE)


def _config(sizes: Sizes, device: str, determinism: Determinism | None) -> EngineConfig:
    return EngineConfig(
        device=device,
        determinism=determinism,
        capture_asks=2,  # rows are few, and of forwards as they run once they are captured
        reuse=ReuseConfig(seam=SeamRule(8, 0), min_segment_tokens=16),
        store=StoreConfig(
            budget_bytes=sizes.budget_bytes,
            expected_segment_tokens=sizes.tokens(DOCUMENT_TOKENS),
        ),
    )


def _measure(
    console: Console,
    report: Report,
    measure: Measure,
    bench: ShapeBench,
    began_s: float,
    limit_s: float,
) -> None:
    name, row_s = getattr(measure, "__name__", "row"), time.monotonic()
    try:
        if row_s - began_s > limit_s:
            raise TimeoutError(f"not begun within {limit_s:g} s")
        for row in measure(bench):
            report.rows.append(row)
            console.print(line_of(row), highlight=False, soft_wrap=True)
    except Exception as error:  # the other rows go on
        reason = f"{type(error).__name__}: {error}"[:500]
        report.failures.append(Failure(name, reason))
        console.print(f"{name}: {reason}", style="red", markup=False)
    report.seconds[name] = round(time.monotonic() - row_s, 2)
    report.write()
