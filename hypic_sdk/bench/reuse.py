"""TTFT of the same prompts by arm, in one process and in turn: reuse, prefix cache, full recompute.

Every round draws a new order of the same documents, as retrieval does, and every arm answers it.
`segments, warm` finds all documents cached; `segments, cold` meets them for the first time;
`prefix cache` keeps exact prefixes only, as serving engines do by default.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hypic_sdk.bench.report import Spread, append_json_line, circumstances
from hypic_sdk.config import MODES, EngineConfig
from hypic_sdk.demo.library import DOCUMENTS, QUESTIONS
from hypic_sdk.errors import ConfigError
from hypic_sdk.offline import LocalHypic
from hypic_sdk.wire.report import CacheReport

if TYPE_CHECKING:
    from rich.console import Console

SEED = 20_607
FULL_RECOMPUTE = "full recompute"


@dataclass(frozen=True, slots=True)
class Round:
    """One prompt that every arm answers: documents in an order, and a question."""

    texts: tuple[str, ...]
    question: str


@dataclass(frozen=True, slots=True)
class Arm:
    """A way of answering; `before` runs before each round and is not timed."""

    name: str
    local: LocalHypic
    mode: str
    before: Callable[[Round], None]


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What one arm measured: milliseconds to the first token, and prompt tokens computed."""

    name: str
    ttft_ms: Spread
    computed_tokens: Spread
    ratio_to_full_recompute: Spread  # of TTFT, pair by pair


def draw_rounds(num_rounds: int, num_documents: int) -> list[Round]:
    """The same rounds for the same numbers.  Raises ConfigError if the library has fewer."""
    if num_documents > len(DOCUMENTS):
        raise ConfigError(f"the library has {len(DOCUMENTS)} documents, asked for {num_documents}")
    rng = random.Random(SEED)
    texts = list(DOCUMENTS.values())[:num_documents]
    return [
        Round(tuple(rng.sample(texts, len(texts))), rng.choice(QUESTIONS).text)
        for _ in range(num_rounds)
    ]


def answer(arm: Arm, one: Round) -> CacheReport:
    """The report of one round under one arm."""
    reply = arm.local.chat.completions.create(
        messages=[{"role": "user", "content": one.question}],
        documents=one.texts,
        max_tokens=1,
        hypic={"mode": arm.mode},
    )
    assert reply.cache is not None
    return reply.cache


def forget(local: LocalHypic) -> Callable[[Round], None]:
    """Drop every cached copy of the round's documents, so that they are cold again."""

    def drop(one: Round) -> None:
        for segment in local.segments.create_many(one.texts):
            local.segments.delete(segment)

    return drop


def warm_up(local: LocalHypic) -> Callable[[Round], None]:
    """Cache the round's documents."""
    return lambda one: void(local.segments.create_many(one.texts, warm="wait"))


def void(_: object) -> None:
    """Nothing."""


def make_arms(stack: ExitStack, model: str | None) -> list[Arm]:
    """The four arms over two engines of the same model."""
    base = EngineConfig()
    prefix = replace(base, reuse=replace(base.reuse, mode=MODES["prefix_cache"]))
    composing = stack.enter_context(LocalHypic(model, config=base))
    exact = stack.enter_context(LocalHypic(model, config=prefix))
    return [
        Arm("segments, warm", composing, "pic", warm_up(composing)),
        Arm("segments, cold", composing, "pic", forget(composing)),
        Arm("prefix cache", exact, "pic", void),
        Arm(FULL_RECOMPUTE, composing, "off", void),
    ]


def measure(arms: Sequence[Arm], rounds: Sequence[Round]) -> list[ArmResult]:
    """Every arm answers every round; the first round is a warm-up and not counted."""
    reports: dict[str, list[CacheReport]] = {arm.name: [] for arm in arms}
    for one in rounds:
        for arm in arms:
            arm.before(one)
            reports[arm.name].append(answer(arm, one))
    full = [report.timing_ms.ttft for report in reports[FULL_RECOMPUTE][1:]]
    return [result(name, counted[1:], full) for name, counted in reports.items()]


def result(name: str, reports: Sequence[CacheReport], full_ms: Sequence[float]) -> ArmResult:
    """An arm's reports as spreads."""
    ttft_ms = [report.timing_ms.ttft for report in reports]
    return ArmResult(
        name,
        Spread.of(ttft_ms),
        Spread.of([report.live_tokens + report.cold_tokens for report in reports]),
        Spread.of([own / other for own, other in zip(ttft_ms, full_ms, strict=True)]),
    )


def run_reuse_bench(
    console: Console,
    *,
    model: str | None,
    num_runs: int,
    num_documents: int,
    json_lines: Path | None,
) -> None:
    """Measure, print the table, append the rows."""
    rounds = draw_rounds(num_runs + 1, num_documents)
    with ExitStack() as stack:
        results = measure(make_arms(stack, model), rounds)
    where = circumstances("auto")
    table = Table(
        "arm", "first token ms", "of full recompute", "tokens computed",
        title=f"{num_documents} documents, {num_runs} runs: minimum / median / maximum",
    )  # fmt: skip
    for row in results:
        ratio = row.ratio_to_full_recompute
        share = f"{ratio.minimum:.2f} / {ratio.median:.2f} / {ratio.maximum:.2f}"
        table.add_row(row.name, str(row.ttft_ms), share, f"{row.computed_tokens.median:.0f}")
        if json_lines is not None:
            fields: dict[str, Any] = {"bench": "reuse", "documents": num_documents, **asdict(row)}
            append_json_line(json_lines, fields, where)
    console.print(str(where), highlight=False)
    console.print(table)
