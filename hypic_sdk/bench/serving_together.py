"""Requests that come at the same time: what assembling eight costs over one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from hypic_sdk.bench.report import Spread
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_model import Bench, graph_notes
from hypic_sdk.bench.serving_report import Absent, Row
from hypic_sdk.bench.serving_targets import TARGETS
from hypic_sdk.engine.engine import Engine
from hypic_sdk.errors import WorkerError
from hypic_sdk.prompt.segment import PromptPart
from hypic_sdk.transport.messages import EngineReport

TOGETHER = 8
NAME = "eight requests assembled together, over one"
LIMIT = TARGETS[NAME]  # times one request: more, and assembling them together is given up


def eight_together(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """Eight requests at once, four documents of 4k each that are all there, over one of them.

    The documents' order and the question differ; the time is that of the last first token.
    """
    del floors
    name, count = NAME, bench.sizes.tokens(4096)
    if absent := bench.absent(name, bench.needs(4, count, num_requests=TOGETHER)):
        yield absent
        return
    engine, documents = bench.engine(), bench.segments(10, 4, count)
    bench.warm(engine, documents)
    orders = list(itertools.permutations(documents))
    one_ms, all_ms, num_steps = [], [], 0
    for i in range(bench.sizes.num_runs + bench.warm_ups):
        own = [orders[(TOGETHER * i + j) % len(orders)] for j in range(TOGETHER)]
        one_ms.append(last_first_token(bench, engine, own[:1], 40_000 + 100 * i)[0])
        ms, num_steps = last_first_token(bench, engine, own, 40_001 + 100 * i)
        all_ms.append(ms)
    one, every = Spread.of(one_ms[bench.warm_ups :]), Spread.of(all_ms[bench.warm_ups :])
    ratios = [
        a / b for a, b in zip(all_ms[bench.warm_ups :], one_ms[bench.warm_ups :], strict=True)
    ]
    notes: dict[str, Any] = {"one_ms": one.median, "eight_ms": every.median, "steps": num_steps}
    notes |= graph_notes(engine)
    yield Row(name, "x", Spread.of(ratios), target=LIMIT, notes=notes)


def last_first_token(
    bench: Bench, engine: Engine, orders: Sequence[Sequence[PromptPart]], question: int
) -> tuple[float, int]:
    """Milliseconds from the first submit to the last request's first token, and steps so far."""
    requests = [
        bench.request(bench.prompt(order, question + j), max_tokens=1, reuse=True)
        for j, order in enumerate(orders)
    ]
    waiting, num_steps, reports = {one.request_id for one in requests}, 0, []
    bench.wait()
    start_s = time.perf_counter()
    for request in requests:
        engine.submit(request)
    while waiting:
        num_steps += 1
        for event in engine.step():
            if event.error is not None:
                raise WorkerError(f"a request of the bench failed: {event.error}")
            waiting.discard(getattr(event, "request_id", ""))
            reports.append(getattr(event, "report", None))
    ms = 1e3 * (time.perf_counter() - start_s)
    while engine.has_work:
        engine.step()
    _check_hits([report for report in reports if report is not None], len(requests))
    return ms, num_steps


def _check_hits(reports: Sequence[EngineReport], how_many: int) -> None:
    assert len(reports) == how_many, "a request ends with its report"
    assert not any(report.cold_tokens for report in reports), "all documents are in the pool"
