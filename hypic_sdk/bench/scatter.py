"""One cold request over several workers: dispatch, communication, combine and total, measured.

A row is one list of document lengths on so many engine processes, longest first or in turn, beside
the same request on one of them.  Every run has a cache namespace of its own, so all is cold.  Arms
take turns inside each round: a busy moment of the machine falls on all of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from rich.table import Table

from hypic_sdk.bench.report import Spread, append_json_line, circumstances
from hypic_sdk.bench.scatter_costs import Sample, fitted_costs
from hypic_sdk.config import EngineConfig, StoreConfig
from hypic_sdk.errors import ConfigError, WorkerLost, from_payload
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, SegmentId, segment_id
from hypic_sdk.router.assignment import Assign, WorkerId, in_turn, longest_first
from hypic_sdk.router.costs import CostModel
from hypic_sdk.router.membership import Membership
from hypic_sdk.router.router import Router
from hypic_sdk.server.fleet import Fleet
from hypic_sdk.transport.messages import (
    EngineReport,
    EngineRequest,
    Placement,
    SamplingParams,
    TokenEvent,
)
from hypic_sdk.transport.process_settings import ProcessSettings
from hypic_sdk.transport.worker_port import WorkerPort

if TYPE_CHECKING:
    from rich.console import Console

SIZE_LISTS: Mapping[str, tuple[int, ...]] = {
    "even": (240,) * 8,
    "one long": (720, 80, 80, 80, 80, 80, 80, 80),
    "long last": (80, 80, 80, 240, 240, 240, 480, 720),
    "mixed": (560, 100, 440, 160, 320, 80, 240, 120, 360, 200),
}
"""Tokens of the documents of one request, in prompt order.  Committed: the ratios are of these."""

RULES: Mapping[str, Assign[SegmentId]] = {"longest first": longest_first, "in turn": in_turn}
# computing is dear and sending is cheap: whatever can be spread is spread
ALWAYS_SPREAD = CostModel(
    prefill_ms=100, prefill_ms_per_token=100, transfer_ms=0.01, transfer_ms_per_token=0,
    live_ms_per_token=0,
)  # fmt: skip
NUM_TOKENS = 12  # of each reply
TOKEN_RANGE = 397  # of made-up documents: every vocabulary has so many
START_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One request from its submission to its first token."""

    dispatch_ms: float  # the router's plan
    total_ms: float  # to the first token, at the caller
    made_ms: float  # the longest that any worker computed
    token_ids: tuple[int, ...]
    report: EngineReport


@dataclass(frozen=True, slots=True)
class Row:
    """One arm: all in milliseconds but the last three."""

    sizes: str
    num_workers: int
    rule: str
    dispatch: Spread
    communication: Spread  # what is left: waiting for entries beyond computing, and moving them
    combine: Spread  # the same prompt with every entry at hand
    total: Spread
    ratio: Spread  # one worker's total over this one's, round by round
    same_tokens: bool
    made_at_once: Spread  # workers that computed at the same time


@final
class Bench:
    """Engine processes, and routers of either rule over the first so many of them."""

    def __init__(self, fleet: Fleet) -> None:
        self._ports = fleet.ports()
        self._numbers = itertools.count()

    def router(self, num_workers: int, rule: str) -> Router:
        """A router of its own over the same engines."""
        members = Membership(silent_after_s=float("inf"))
        router = Router(ALWAYS_SPREAD, assign=RULES[rule], members=members)
        for worker, port in itertools.islice(self._ports.items(), num_workers):
            router.join(worker, port)
        return router

    def namespace(self) -> str:
        """One that nobody used yet."""
        return f"scatter-{next(self._numbers)}"

    def message(
        self, sizes: Sequence[int], namespace: str, *, again: bool = False
    ) -> EngineRequest:
        """A request over documents of these lengths.

        Asked again it has another leading part: entries are found, the prompt's own prefix is not.
        """
        leading = PromptPart(Role.LEADING, (41 if again else 40, 42, 43))
        parts = (leading, *documents(sizes), PromptPart(Role.TRAILING, (50, 51, 52)))
        sampling = SamplingParams(NUM_TOKENS, ignore_eos=True)
        name = f"scatter-{next(self._numbers)}"
        return EngineRequest(name, SegmentedPrompt(parts), sampling, namespace)

    def ask(self, router: Router, message: EngineRequest) -> Answer:
        """A request through a router."""
        began_s = time.perf_counter()
        plan = router.plan(message)
        planned_s = time.perf_counter()
        first_s, token_ids, report = heard(router.submit(message))
        made: dict[WorkerId, float] = {}
        cold_ms = {one.segment_id: one.cold_ms for one in report.segments}
        for worker, ids in plan.cold.items():
            made[worker] = sum(cold_ms.get(id_, 0.0) for id_ in ids)
        return Answer(
            (planned_s - began_s) * 1e3,
            (first_s - planned_s) * 1e3,  # `submit` plans by itself
            max(made.values(), default=0.0),
            token_ids,
            report,
        )

    def samples(self, sizes: Sequence[int]) -> Iterator[Sample]:
        """What one document takes: computed, pulled from another worker, and at hand."""
        (home_id, home), (_, other) = itertools.islice(self._ports.items(), 2)
        for size in sizes:
            namespace = self.namespace()
            ttft_ms = {}
            cold = self.one(home, self.message((size,), namespace))
            pulled = replace(
                self.message((size,), namespace),
                placements=tuple(
                    Placement(segment_id(str(part.token_ids)), home_id)
                    for part in documents((size,))
                ),
            )
            for name, port in (("pulled", other), ("at hand", other)):
                message = pulled
                if name == "at hand":
                    message = self.message((size,), namespace, again=True)
                ttft_ms[name] = self.one(port, message).ttft_ms
            yield Sample(
                size, cold.segments[0].cold_ms, ttft_ms["pulled"] - ttft_ms["at hand"],
                ttft_ms["at hand"], cold.live_tokens,
            )  # fmt: skip

    def one(self, port: WorkerPort, message: EngineRequest) -> EngineReport:
        """A request at one engine, without a router."""
        return heard(port.submit(message))[2]


def documents(sizes: Sequence[int]) -> tuple[PromptPart, ...]:
    """Made-up documents of these lengths; no two are the same."""
    parts = []
    for place, size in enumerate(sizes):
        ids = tuple(100 + (17 * place + 5 * i + i * i % 7) % TOKEN_RANGE for i in range(size))
        parts.append(PromptPart(Role.INNER, ids, segment_id(str(ids))))
    return tuple(parts)


def heard(events: Iterator[object]) -> tuple[float, tuple[int, ...], EngineReport]:
    """When the first token came, all tokens, the report.  Raises what ended the request."""
    first_s: float | None = None
    token_ids: list[int] = []
    for event in events:
        assert isinstance(event, TokenEvent), "a request has token events"
        if event.error is not None:
            raise from_payload(event.error)
        if first_s is None:
            first_s = time.perf_counter()
        token_ids += event.token_ids
        if event.report is not None and first_s is not None:
            return first_s, tuple(token_ids), event.report
    raise WorkerLost("the request ended without a report")


def measure(
    bench: Bench, worker_counts: Sequence[int], num_runs: int, lists: Mapping[str, Sequence[int]]
) -> Iterator[Row]:
    """One row for each list, number of workers and rule."""
    for name, sizes in lists.items():
        arms = [(1, "longest first")]
        arms += [(n, rule) for n in worker_counts if n > 1 for rule in RULES]
        found: dict[tuple[int, str], list[tuple[Answer, Answer]]] = {arm: [] for arm in arms}
        for number in range(num_runs + 1):
            for arm in arms:
                router, namespace = bench.router(*arm), bench.namespace()
                cold = bench.ask(router, bench.message(sizes, namespace))
                warm = bench.ask(router, bench.message(sizes, namespace, again=True))
                if number:  # the first round warms the processes
                    found[arm].append((cold, warm))
        alone = [cold for cold, _ in found[arms[0]]]
        for arm in arms:
            yield _row(name, arm, found[arm], alone)


def _row(
    name: str,
    arm: tuple[int, str],
    answers: Sequence[tuple[Answer, Answer]],
    alone: Sequence[Answer],
) -> Row:
    colds = [cold for cold, _ in answers]
    combine = [warm.total_ms for _, warm in answers]
    left = [max(0.0, c.total_ms - c.made_ms - w) for c, w in zip(colds, combine, strict=True)]
    work = [sum(one.cold_ms for one in cold.report.segments) for cold in colds]
    return Row(
        name,
        arm[0],
        arm[1],
        Spread.of([cold.dispatch_ms for cold in colds]),
        Spread.of(left),
        Spread.of(combine),
        Spread.of([cold.total_ms for cold in colds]),
        Spread.of([a.total_ms / c.total_ms for a, c in zip(alone, colds, strict=True)]),
        all(cold.token_ids == alone[0].token_ids for cold in colds),
        Spread.of([w / max(c.made_ms, 1e-9) for w, c in zip(work, colds, strict=True)]),
    )


def run_scatter_bench(
    console: Console,
    *,
    model: Path,
    worker_counts: Sequence[int],
    num_runs: int,
    json_lines: Path | None,
    device: str = "auto",
    cache_bytes: int = 256 << 20,
) -> CostModel:
    """Measure, print a table, and return the costs that were found.

    Raises:
        HypicError: an engine can not start, or a request failed.
    """
    config = EngineConfig(store=StoreConfig(budget_bytes=cache_bytes), device=device)
    most = max(2, *worker_counts)
    table = Table(
        "documents", "workers", "rule", "dispatch", "communication", "combine", "total", "ratio",
        "same tokens", title=f"one cold request, ms: min / median / max of {num_runs}",
    )  # fmt: skip
    with Fleet(ProcessSettings(str(model), config), most) as fleet:
        fleet.wait_ready(START_TIMEOUT_S)
        bench, where = Bench(fleet), circumstances(device)
        for row in measure(bench, worker_counts, num_runs, SIZE_LISTS):
            table.add_row(
                row.sizes, str(row.num_workers), row.rule, str(row.dispatch),
                str(row.communication), str(row.combine), str(row.total),
                f"{row.ratio.median:.2f}", "yes" if row.same_tokens else "NO",
            )  # fmt: skip
            if json_lines is not None:
                append_json_line(json_lines, {"bench": "scatter", **asdict(row)}, where)
        list(bench.samples((320,)))  # the first connects the workers
        costs = fitted_costs(list(bench.samples((160, 320, 640, 1280) * 2)))
    console.print(table)
    console.print(f"measured costs: {costs}")
    console.print(str(where))
    return costs


def try_cost_model(text: str | None) -> CostModel | None:
    """Costs given as "prefill_ms,per_token,transfer_ms,per_token,live_per_token".

    Raises:
        ConfigError: not five times.
    """
    if text is None:
        return None
    words = text.split(",")
    try:
        if len(words) != len(CostModel.__slots__):
            raise ValueError(f"{len(words)} times")
        return CostModel(*(float(word) for word in words))
    except ValueError as error:
        raise ConfigError(f"not five times, with commas between: {text!r}") from error
