"""A made-up stream of requests over a corpus: popular documents, bursts, long and short texts."""

from __future__ import annotations

import itertools
import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from hypic_sdk.prompt.segment import SegmentId


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
        numbers: dict[int, None] = {}
        while len(numbers) < min(shape.per_request, shape.num_documents):
            numbers[bisect(cumulated, rng.random() * cumulated[-1])] = None
        documents = tuple((SegmentId(f"seg_{n}"), lengths[n]) for n in numbers)
        yield Arrival(at_ms, documents, shape.live_tokens)
