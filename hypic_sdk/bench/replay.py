"""Replay of a made-up RAG trace against a real server: the rate that it bears, arm by arm.

Requests arrive in bursts whether or not the ones before are answered (an open loop); documents
are popular by Zipf's law and their lengths have a heavy tail.  An arm is a mode of reuse with a
server process of its own and the same memory.  First callers who ask again as soon as they are
answered (a closed loop) fill its cache, then the same tell its saturated throughput.  Its rate is
raised from half of that until the median of the time to the first token is over the limit, then
bracketed.  Times are the client's, through HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from rich.table import Table

from hypic_sdk.bench.cluster_trace import Arrival, TraceShape, document_lengths, make_trace
from hypic_sdk.bench.replay_server import ReplayServer, running
from hypic_sdk.bench.report import circumstances
from hypic_sdk.client import AsyncHypic
from hypic_sdk.config import DEFAULT_MODE, MODES, EngineConfig, ReuseConfig, StoreConfig
from hypic_sdk.demo.library import DOCUMENTS, QUESTIONS
from hypic_sdk.errors import ConfigError, HypicError
from hypic_sdk.wire.replies import ChatCompletionChunk

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_ARMS = (DEFAULT_MODE, "prefix_cache", "full_recompute")
CHARACTERS_PER_TOKEN = 3.7  # of the library's sentences, about; real lengths are told
RATE_STEP = 1.5
SLOWEST = 8  # the first rate over the lowest that is tried
NUM_HALVINGS = 2  # of the bracket that raising the rate ends with
MAX_IN_FLIGHT = 256  # more than these unanswered: the server does not keep up
PATIENCE_S = 60.0  # silence after which a request counts as failed
WARM_SHARE = 0.25  # of a replay's requests, the first, that are not counted


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What is replayed, and how it is judged."""

    trace: TraceShape
    max_tokens: int = 64
    limit_s: float = 1.0  # of the median time to the first token
    seconds: float = 20.0  # of one replay
    first_rate: float | None = None  # requests a second; none: half of what callers were answered
    num_callers: int = 32  # of the closed loop
    fill_s: float = 20.0  # of the closed loop that comes first, which is not counted


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of one request; without a first token it failed."""

    ttft_s: float | None
    cached_tokens: int = 0
    prompt_tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay at one rate; times in seconds."""

    rate: float
    num_requests: int  # that were counted
    num_failed: int
    p50_s: float
    p99_s: float
    hit_share: float  # cached tokens of all prompt tokens
    mean_prompt_tokens: float
    kept_up: bool
    errors: dict[str, int]  # by code

    @classmethod
    def of(cls, rate: float, sent: Sequence[Sent], *, kept_up: bool) -> Replay:
        """Of at least one request; one that failed took for ever."""
        times = sorted(math.inf if one.ttft_s is None else one.ttft_s for one in sent)
        tokens = sum(one.prompt_tokens for one in sent)
        answered = sum(one.ttft_s is not None for one in sent)
        return cls(
            rate,
            len(sent),
            len(sent) - answered,
            times[len(times) // 2],
            times[min(len(times) - 1, math.ceil(0.99 * len(times)) - 1)],
            sum(one.cached_tokens for one in sent) / max(tokens, 1),
            tokens / max(answered, 1),
            kept_up,
            dict(Counter(one.error for one in sent if one.error)),
        )

    def holds(self, limit_s: float) -> bool:
        """Whether the server bore this rate."""
        return self.kept_up and self.p50_s <= limit_s and self.num_failed == 0


@dataclass(slots=True)
class ArmResult:
    """All replays of one arm."""

    mode: str
    replays: list[Replay] = field(default_factory=list)
    best: Replay | None = None  # the highest rate that held
    saturated_per_s: float = 0.0
    saturated_failed: int = 0


def corpus(shape: TraceShape) -> list[str]:
    """A text for each document of the trace, of about its length."""
    sentences = [one.strip().rstrip(".") for t in DOCUMENTS.values() for one in t.split(". ")]
    texts = []
    for number, num_tokens in enumerate(document_lengths(shape)):
        rng = random.Random(f"{shape.seed} {number}")
        text = f"Record {number}."
        while len(text) < CHARACTERS_PER_TOKEN * num_tokens:
            text += f" {rng.choice(sentences)}."
        texts.append(text)
    return texts


def _number(name: str) -> int:
    return int(name.removeprefix("seg_"))


def has_token(chunk: ChatCompletionChunk) -> bool:
    """Whether a chunk tells of a token, also of one that is no text.

    A model of random weights draws ids that a tokenizer of fewer has no text for.
    """
    if not chunk.choices:
        return False
    told = chunk.choices[0].logprobs
    return bool(chunk.choices[0].delta.content) or (told is not None and bool(told.content))


@final
class Caller:
    """Asks a server for the requests of a trace."""

    def __init__(self, client: AsyncHypic, plan: ReplayPlan) -> None:
        self._client = client.with_options(timeout_s=PATIENCE_S, max_retries=0)
        self._plan = plan
        self._ids: list[str] = []
        self._rng = random.Random(plan.trace.seed)
        self._streams = itertools.count(1)

    async def register(self, texts: Sequence[str]) -> float:
        """Register the corpus; the mean of its lengths in tokens."""
        segments = await self._client.with_options(timeout_s=600.0).segments.create_many(texts)
        self._ids = [segment.id for segment in segments]
        return sum(segment.tokens for segment in segments) / len(segments)

    async def ask(self, arrival: Arrival) -> Sent:
        """One request, from its sending to its end."""
        began_s, ttft_s = time.perf_counter(), None
        try:
            async with self._client.chat.completions.stream(
                messages=[{"role": "user", "content": self._rng.choice(QUESTIONS).text}],
                documents=[{"segment_id": self._ids[_number(n)]} for n, _ in arrival.documents],
                max_tokens=self._plan.max_tokens,
                min_tokens=self._plan.max_tokens,
                ignore_eos=True,
                logprobs=True,
            ) as stream:
                async for chunk in stream:
                    if ttft_s is None and has_token(chunk):
                        ttft_s = time.perf_counter() - began_s
                whole = await stream.get_final_completion()
        except HypicError as error:
            return Sent(None, error=error.code)
        cached = whole.usage.prompt_tokens_details.cached_tokens
        return Sent(ttft_s, cached, whole.usage.prompt_tokens)

    async def replay(self, rate: float) -> Replay:
        """An open loop at a rate; what is unanswered at its end is waited for, or hung up."""
        plan = self._plan
        wanted = max(8, round(rate * plan.seconds))
        shape = replace(plan.trace, rate_per_s=rate, num_requests=wanted)
        began_s, tasks, kept_up = time.perf_counter(), [], True
        for arrival in make_trace(shape, next(self._streams)):
            await asyncio.sleep(max(0.0, began_s + arrival.at_ms / 1e3 - time.perf_counter()))
            tasks.append(asyncio.ensure_future(self.ask(arrival)))
            if sum(not task.done() for task in tasks) > MAX_IN_FLIGHT:
                kept_up = False
                break
        sent = await _ended(tasks, 4 * plan.limit_s + plan.seconds)
        return Replay.of(rate, sent[int(WARM_SHARE * len(sent)) :], kept_up=kept_up)

    async def saturate(self, seconds: float) -> tuple[float, int]:
        """Requests a second of callers who ask without a pause, and how many failed."""
        plan = self._plan
        arrivals = make_trace(replace(plan.trace, num_requests=10**6), next(self._streams))
        until_s = time.perf_counter() + seconds
        ended_s: list[float] = []
        num_failed = 0

        async def one_caller() -> None:
            nonlocal num_failed
            while time.perf_counter() < until_s:
                sent = await self.ask(next(arrivals))
                if sent.ttft_s is None:
                    num_failed += 1
                    await asyncio.sleep(0.1)
                elif time.perf_counter() <= until_s:
                    ended_s.append(time.perf_counter())

        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(plan.num_callers):
                group.create_task(one_caller())
        return len(ended_s) / (until_s - began_s), num_failed


async def _ended(tasks: Sequence[asyncio.Task[Sent]], patience_s: float) -> list[Sent]:
    """What became of all requests, in order; one that is still open after the wait is hung up."""
    if tasks:
        await asyncio.wait(tasks, timeout=patience_s)
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    sent = []
    for one in found:
        if isinstance(one, Sent):
            sent.append(one)
        elif isinstance(one, asyncio.CancelledError):
            sent.append(Sent(None, error="hung_up"))
        else:
            raise one
    return sent


async def highest_rate(
    first_rate: float,
    limit_s: float,
    replay: Callable[[float], Awaitable[Replay]],
    on_replay: Callable[[Replay], None],
) -> Replay | None:
    """Raise the rate while it holds, then halve the bracket; lower it if the first fails."""

    async def one(rate: float) -> Replay:
        found = await replay(rate)
        on_replay(found)
        return found

    best: Replay | None = None
    rate, failed = first_rate, math.inf
    while failed == math.inf:
        found = await one(rate)
        if found.holds(limit_s):
            best, rate = found, rate * RATE_STEP
        else:
            failed = rate
    while best is None and failed > first_rate / SLOWEST:
        rate = failed / 2
        found = await one(rate)
        if found.holds(limit_s):
            best = found
        else:
            failed = rate
    for _ in range(NUM_HALVINGS if best is not None else 0):
        assert best is not None
        found = await one(math.sqrt(best.rate * failed))
        if found.holds(limit_s):
            best = found
        else:
            failed = found.rate
    return best


async def measure(
    plan: ReplayPlan, url: str, result: ArmResult, say: Callable[[str], None]
) -> None:
    """One arm, against a server that nobody else asks."""
    async with AsyncHypic(url) as client:
        caller = Caller(client, plan)
        mean = await caller.register(corpus(plan.trace))
        say(f"{result.mode}: {plan.trace.num_documents} documents of {mean:.0f} tokens on average")
        if plan.fill_s > 0:
            await caller.saturate(plan.fill_s)
        result.saturated_per_s, result.saturated_failed = await caller.saturate(plan.seconds)
        say(f"  {plan.num_callers} callers: {result.saturated_per_s:.3g} answered a second")
        first_rate = plan.first_rate
        if first_rate is None:  # at least one was answered, or the callers were too impatient
            first_rate = max(result.saturated_per_s, 1.0 / plan.seconds) / 2

        def heard(found: Replay) -> None:
            result.replays.append(found)
            say(line_of(found, plan.limit_s))

        result.best = await highest_rate(first_rate, plan.limit_s, caller.replay, heard)


def line_of(found: Replay, limit_s: float) -> str:
    """A replay in a line."""
    return (
        f"  {found.rate:.3g}/s: p50 {found.p50_s:.2f} s, p99 {found.p99_s:.2f} s, "
        f"{found.hit_share:.0%} of {found.mean_prompt_tokens:.0f} tokens cached, "
        f"{found.num_failed} of {found.num_requests} failed{found.errors or ''}"
        f"{'' if found.holds(limit_s) else ': does not hold'}"
    )


def run_replay_bench(
    console: Console,
    *,
    plan: ReplayPlan,
    modes: Sequence[str],
    server: ReplayServer,
    url: str | None = None,
    folder: Path | None = None,
) -> list[ArmResult]:
    """Measure every arm, print the table, write replay.json into `folder` after each.

    Args:
        url: a server that runs already, which is then the only arm.
    Raises:
        HypicError: no such mode, or the server can not start.
    """
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise ConfigError(f"modes are {', '.join(MODES)}, got {unknown[0]!r}")
    results: list[ArmResult] = []
    where = circumstances()
    for mode in ["the server's own"] if url is not None else modes:
        results.append(ArmResult(mode))
        if url is not None:
            asyncio.run(measure(plan, url, results[-1], console.print))
        else:
            with running(with_mode(server, mode)) as own:
                asyncio.run(measure(plan, own, results[-1], console.print))
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            report = {
                "bench": "replay",
                "served": server.shape or server.model_folder or "the packaged reader",
                "plan": asdict(plan),
                "circumstances": asdict(where),
                "arms": [asdict(one) for one in results],
            }
            text = json.dumps(report, indent=1).replace("Infinity", "null")
            (folder / "replay.json").write_text(text + "\n", encoding="utf-8")
    console.print(str(where), highlight=False)
    console.print(table_of(results, plan))
    return results


def served(
    model: Path | None, shape: str | None, device: str, budget_bytes: int, segment_tokens: int
) -> ReplayServer:
    """What every arm starts, but for its mode."""
    store = StoreConfig(budget_bytes=budget_bytes, expected_segment_tokens=segment_tokens)
    folder = None if model is None else str(model)
    return ReplayServer(folder, shape, EngineConfig(device=device, store=store))


def with_mode(server: ReplayServer, mode: str) -> ReplayServer:
    """The same server in another mode."""
    reuse: ReuseConfig = replace(server.config.reuse, mode=MODES[mode])
    config: EngineConfig = replace(server.config, reuse=reuse)
    return replace(server, config=config)


def table_of(results: Sequence[ArmResult], plan: ReplayPlan) -> Table:
    """The arms side by side; ratios are over the prefix cache's, where it was measured."""
    by_mode = {one.mode: one for one in results}
    base = by_mode.get("prefix_cache")
    table = Table(
        "arm", f"rate at p50 <= {plan.limit_s:g} s", "over prefix cache", "p50 s", "p99 s",
        "cached", "saturated, requests/s", "over prefix cache",
    )  # fmt: skip
    for one in results:
        best = one.best
        over = saturated_over = "-"
        if base is not None and base.best is not None and best is not None:
            over = f"{best.rate / base.best.rate:.2f}x"
        if base is not None and base.saturated_per_s > 0:
            saturated_over = f"{one.saturated_per_s / base.saturated_per_s:.2f}x"
        table.add_row(
            one.mode,
            "none held" if best is None else f"{best.rate:.3g}/s",
            over,
            "-" if best is None else f"{best.p50_s:.2f}",
            "-" if best is None else f"{best.p99_s:.2f}",
            "-" if best is None else f"{best.hit_share:.0%}",
            f"{one.saturated_per_s:.3g}",
            saturated_over,
        )
    return table
