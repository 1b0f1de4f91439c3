"""A made-up stream of requests over a corpus: popular documents, bursts, long and short texts."""

from __future__ import annotations

import heapq
import itertools
import random
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hypic_sdk.prompt.segment import SegmentId

# in a row, that one request draws of what it has: then hardly any weight is left to draw by
MOST_REPEATS = 64


@dataclass(frozen=True, slots=True)
class TraceShape:
    """What the requests are like."""

    num_requests: int = 2000
    rate_per_s: float = 4.0  # of requests, on the average
    burst: int = 4  # requests of one burst, on the average; 1 is a plain Poisson stream
    num_documents: int = 2000
    zipf: float = 1.0  # document number r is drawn with a weight of 1 / r**zipf
    per_request: int = 12
    median_tokens: int = 800
    spread: float = 0.6  # standard deviation of the logarithm of a document's length
    live_tokens: int = 160  # question, glue and seams
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace."""

    at_ms: float
    documents: tuple[tuple[SegmentId, int], ...]  # id and tokens, in prompt order
    live_tokens: int


def document_lengths(shape: TraceShape, rng: random.Random | None = None) -> list[int]:
    """Return the tokens of each document of the corpus; `rng` starts from the shape's seed."""
    rng = rng or random.Random(shape.seed)
    return [
        max(16, round(rng.lognormvariate(0.0, shape.spread) * shape.median_tokens))
        for _ in range(shape.num_documents)
    ]


def make_trace(shape: TraceShape, stream: int = 0) -> Iterator[Arrival]:
    """Yield a trace in order of arrival; another stream asks for the same documents."""
    rng = random.Random(shape.seed)
    lengths = document_lengths(shape, rng)
    if stream:
        rng = random.Random(f"{shape.seed} {stream}")
    weights = (1 / rank**shape.zipf for rank in range(1, shape.num_documents + 1))
    cumulated = list(itertools.accumulate(weights))
    at_ms, left = 0.0, 0
    for _ in range(shape.num_requests):
        if left == 0:
            left = 1 + int(rng.expovariate(1 / (shape.burst - 1))) if shape.burst > 1 else 1
            at_ms += rng.expovariate(shape.rate_per_s / shape.burst) * 1000.0
        left -= 1
        numbers = _distinct(rng, cumulated, shape.zipf, min(shape.per_request, len(lengths)))
        documents = tuple((SegmentId(f"seg_{n}"), lengths[n]) for n in numbers)
        yield Arrival(at_ms, documents, shape.live_tokens)


def _distinct(
    rng: random.Random, cumulated: Sequence[float], zipf: float, count: int
) -> tuple[int, ...]:
    """Documents one after the other, each drawn by its weight among those not drawn yet."""
    found: dict[int, None] = {}
    num_repeats = 0
    while len(found) < count and num_repeats < MOST_REPEATS:
        number = bisect(cumulated, rng.random() * cumulated[-1])
        num_repeats = num_repeats + 1 if number in found else 0
        found[number] = None
    if len(found) < count:
        # the first to come of those left, where each comes at the rate of its weight: the same law
        left = (number for number in range(len(cumulated)) if number not in found)
        comes = ((rng.expovariate(1.0) * (number + 1) ** zipf, number) for number in left)
        for _, number in heapq.nsmallest(count - len(found), comes):
            found[number] = None
    return tuple(found)
