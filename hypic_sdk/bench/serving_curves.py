"""TTFT against the length and the number of segments, arm by arm: what the figures are drawn of."""

from __future__ import annotations

from collections.abc import Iterator

from hypic_sdk.bench.report import Spread
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_model import Bench
from hypic_sdk.bench.serving_report import Absent, Place, Row
from hypic_sdk.config import DEFAULT_MODE

# (number, tokens of each); four of 4k have rows of their own
SHAPES = ((4, 512), (4, 1024), (4, 2048), (1, 1024), (2, 1024), (8, 1024), (16, 1024))
FULL, PREFIX = "full_recompute", "prefix_cache"
COUNTED = 2  # runs of an arm that computes every token


def ttft_curves(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """Hits, full recompute and a prefix cache at each shape, documents in another order each time.

    A prefix cache is asked from two documents on: one alone has no other order.
    """
    del floors
    for arm in (PREFIX, FULL, DEFAULT_MODE):
        for number, (how_many, length) in enumerate(SHAPES):
            yield _point(bench, arm, how_many, bench.sizes.tokens(length), 20_000 + 50 * number)


def _point(bench: Bench, arm: str, how_many: int, count: int, seed: int) -> Row | Absent:
    name, is_reuse = f"TTFT, {how_many} x {count} tokens, {arm}", arm == DEFAULT_MODE
    if arm == PREFIX and how_many == 1:
        return Absent(name, "one document alone has no other order")
    if absent := bench.absent(name, bench.needs(how_many, count, kept=is_reuse)):
        return absent
    engine = bench.engine(PREFIX if arm == PREFIX else DEFAULT_MODE)
    segments = bench.segments(seed, how_many, count)
    if is_reuse:
        bench.warm(engine, segments)
    uncounted = bench.warm_ups if is_reuse else 1
    found = []
    for i in range(uncounted + (bench.sizes.num_runs if is_reuse else COUNTED)):
        order = segments[i % how_many :] + segments[: i % how_many]
        prompt = bench.prompt(order, seed + i)
        found.append(bench.first_token(engine, prompt, reuse=arm != FULL)[0])
    return Row(name, "ms", Spread.of(found[uncounted:]), place=Place(arm, how_many, count))
