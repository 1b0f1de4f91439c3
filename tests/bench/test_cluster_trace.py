"""Traces ask for distinct documents, by their popularity, and are made in bounded time."""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect
from collections import Counter

import pytest

from hypic_sdk.bench import cluster_trace
from hypic_sdk.bench.cluster_trace import TraceShape, make_trace


def numbers(shape: TraceShape, stream: int = 0) -> list[tuple[int, ...]]:
    """The documents of each request, in order."""
    return [
        tuple(int(name.removeprefix("seg_")) for name, _ in arrival.documents)
        for arrival in make_trace(shape, stream)
    ]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("zipf", [0.0, 1.0, 4.0, 5.0, 40.0])
@pytest.mark.parametrize(
    ("documents", "per_request"),
    [(1, 1), (3, 3), (300, 300), (300, 299), (2000, 2000), (2000, 12), (300, 1000), (20_000, 50)],
)
def test_a_trace_is_soon_drawn_however_uneven_and_full_it_is(zipf, documents, per_request):
    shape = TraceShape(10, num_documents=documents, per_request=per_request, zipf=zipf)
    for found in numbers(shape):
        assert len(set(found)) == len(found) == min(documents, per_request)
        assert set(found) <= set(range(documents))


def chance(order: tuple[int, ...], zipf: float, documents: int) -> float:
    """That these are drawn first, one after the other, each by its weight among those left."""
    left = {number: 1 / (number + 1) ** zipf for number in range(documents)}
    found = 1.0
    for number in order:
        found *= left[number] / sum(left.values())
        del left[number]
    return found


@pytest.mark.parametrize("most_repeats", [0, 1, 64])
@pytest.mark.parametrize("zipf", [0.0, 1.0, 3.0])
def test_each_document_is_drawn_by_its_weight_among_those_left(most_repeats, zipf, monkeypatch):
    """Whichever way it is drawn; four standard deviations of each order's share."""
    monkeypatch.setattr(cluster_trace, "MOST_REPEATS", most_repeats)
    shape = TraceShape(20_000, num_documents=4, per_request=3, zipf=zipf)
    counts = Counter(numbers(shape))
    for order in itertools.permutations(range(4), 3):
        wanted = chance(order, zipf, 4)
        room = 4 * math.sqrt(wanted * (1 - wanted) / shape.num_requests)
        assert abs(counts[order] / shape.num_requests - wanted) <= room, order


def drawn_again(shape: TraceShape) -> list[tuple[int, ...]]:
    """As traces of published figures were drawn: what was drawn already is drawn again."""
    rng = random.Random(shape.seed)
    for _ in range(shape.num_documents):
        rng.lognormvariate(0.0, shape.spread)
    weights = [1 / rank**shape.zipf for rank in range(1, shape.num_documents + 1)]
    cumulated = list(itertools.accumulate(weights))
    requests, left = [], 0
    for _ in range(shape.num_requests):
        if left == 0:
            left = 1 + int(rng.expovariate(1 / (shape.burst - 1)))
            rng.expovariate(shape.rate_per_s / shape.burst)
        left -= 1
        found: dict[int, None] = {}
        while len(found) < shape.per_request:
            found[bisect(cumulated, rng.random() * cumulated[-1])] = None
        requests.append(tuple(found))
    return requests


@pytest.mark.parametrize(("documents", "per_request"), [(2000, 12), (200, 12), (60, 4)])
@pytest.mark.parametrize("zipf", [0.0, 0.8, 1.0, 1.3])
def test_usual_traces_stay_what_they_were(zipf, documents, per_request):
    """Figures that were measured over a seed can be measured over its trace again."""
    shape = TraceShape(300, num_documents=documents, per_request=per_request, zipf=zipf, seed=3)
    assert numbers(shape) == drawn_again(shape)
