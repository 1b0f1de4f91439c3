"""Who asks a server for the requests of a trace, and what became of them, by the client's clock."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, final

from hypic_sdk.bench.cluster_trace import Arrival, TraceShape, document_lengths, make_trace
from hypic_sdk.client import AsyncHypic
from hypic_sdk.demo.library import DOCUMENTS, QUESTIONS
from hypic_sdk.errors import HypicError
from hypic_sdk.wire.replies import ChatCompletionChunk

CHARACTERS_PER_TOKEN = 3.05  # of the library's sentences, about; real lengths are told
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
    first_rate: float | None = None  # requests a second; none: a share of what callers got
    num_callers: int = 32  # of the closed loop
    fill_s: float = 20.0  # of the closed loop that comes first, which is not counted
    total_s: float | None = None  # of the whole run, an equal share an arm; none: as long as it is


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of one request; without a first token it failed."""

    ttft_s: float | None
    cached_tokens: int = 0
    prompt_tokens: int = 0
    error: str = ""


def hit_share(sent: Sequence[Sent]) -> float:
    """Cached tokens of all prompt tokens."""
    return sum(one.cached_tokens for one in sent) / max(sum(one.prompt_tokens for one in sent), 1)


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay at one rate; times in seconds."""

    rate: float
    num_requests: int  # that were counted
    num_failed: int
    p50_s: float
    p99_s: float
    hit_share: float
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
            hit_share(sent),
            tokens / max(answered, 1),
            kept_up,
            dict(Counter(one.error for one in sent if one.error)),
        )

    def holds(self, limit_s: float) -> bool:
        """Whether the server bore this rate."""
        return self.kept_up and self.p50_s <= limit_s and self.num_failed == 0


@dataclass(frozen=True, slots=True)
class Saturated:
    """What callers who ask without a pause got."""

    per_s: float  # requests that ended, a second
    hit_share: float
    num_failed: int


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

    async def first(self, patience_s: float) -> Sent:
        """One request alone, for which the server compiles what it has not run yet."""
        arrival = next(make_trace(replace(self._plan.trace, num_requests=1), next(self._streams)))
        return await self.ask(arrival, self._client.with_options(timeout_s=patience_s))

    async def ask(self, arrival: Arrival, client: AsyncHypic | None = None) -> Sent:
        """One request, from its sending to its end."""
        began_s, ttft_s = time.perf_counter(), None
        try:
            async with (client or self._client).chat.completions.stream(
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

    async def replay(self, rate: float, patience_s: float = math.inf) -> Replay:
        """An open loop at a rate; what is unanswered at its end is waited for, or hung up.

        Args:
            patience_s: how long it may take in all.
        """
        plan = self._plan
        wanted = max(8, round(rate * plan.seconds))
        shape = replace(plan.trace, rate_per_s=rate, num_requests=wanted)
        began_s, kept_up = time.perf_counter(), True
        tasks: list[asyncio.Task[Sent]] = []
        async with _hung_up(tasks):
            for arrival in make_trace(shape, next(self._streams)):
                await asyncio.sleep(max(0.0, began_s + arrival.at_ms / 1e3 - time.perf_counter()))
                tasks.append(asyncio.ensure_future(self.ask(arrival)))
                if sum(not task.done() for task in tasks) > MAX_IN_FLIGHT:
                    kept_up = False
                    break
            left_s = began_s + patience_s - time.perf_counter()
            wait_s = max(0.0, min(4 * plan.limit_s + plan.seconds, left_s))
            await asyncio.wait(tasks, timeout=wait_s)
        sent = [Sent(None, error="hung_up") if one.cancelled() else one.result() for one in tasks]
        return Replay.of(rate, sent[int(WARM_SHARE * len(sent)) :], kept_up=kept_up)

    async def saturate(self, fill_s: float, seconds: float) -> Saturated:
        """Callers who ask without a pause; what ends in the last `seconds` counts.

        Who waits for an answer then hangs up.
        """
        plan = self._plan
        arrivals = make_trace(replace(plan.trace, num_requests=10**6), next(self._streams))
        until_s = time.perf_counter() + fill_s + seconds
        ended: list[Sent] = []

        async def one_caller() -> None:
            while True:
                sent = await self.ask(next(arrivals))
                if until_s - seconds <= time.perf_counter() <= until_s:
                    ended.append(sent)
                if sent.ttft_s is None:
                    await asyncio.sleep(0.1)

        callers = [asyncio.ensure_future(one_caller()) for _ in range(plan.num_callers)]
        async with _hung_up(callers):
            await asyncio.wait(
                callers, timeout=fill_s + seconds, return_when=asyncio.FIRST_EXCEPTION
            )
        num_failed = sum(one.ttft_s is None for one in ended)
        return Saturated((len(ended) - num_failed) / seconds, hit_share(ended), num_failed)


@asynccontextmanager
async def _hung_up(tasks: Sequence[asyncio.Task[Any]]) -> AsyncIterator[None]:
    """Leave none of them under way, however the block is left; raises what one of them raised."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
    for one in found:
        if isinstance(one, Exception):
            raise one
