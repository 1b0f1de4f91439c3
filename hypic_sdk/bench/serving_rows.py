"""What `bench serving` measures of one engine: TTFT, decode steps, prefill, states, modes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from hypic_sdk.bench.report import Spread
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_layer import state_errors
from hypic_sdk.bench.serving_model import Bench, graph_notes
from hypic_sdk.bench.serving_report import Absent, Place, Row, over
from hypic_sdk.bench.serving_targets import TARGETS
from hypic_sdk.config import DEFAULT_MODE, MIB, MODES
from hypic_sdk.errors import WorkerError
from hypic_sdk.store.layout import StoreLayout
from hypic_sdk.transport.messages import TokenEvent

DECODE_TOKENS = 24
UNCOUNTED_STEPS = 3
MODES_BESIDE = ("addition", "transition", "transition_rope", "prefix_cache")


def segment_bytes(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """What one entry of 1k tokens takes, as it is kept here and with its pair in 8 bits."""
    del floors
    described = bench.engine().describe()
    settings, interior = described.settings, bench.sizes.tokens(1024) - 8
    for pair, words in ((settings.pair, ""), ("int8", ", 8-bit pair")):
        name = f"bytes of a 1k segment{words}"
        if absent := bench.absent(name):
            yield absent
            continue
        layout = StoreLayout.of(
            described.spec, dtype=settings.dtype, state_dtype=settings.state_dtype, pair=pair
        )
        found = Spread.of([layout.segment_bytes(interior) / MIB])
        yield Row(name, "MiB", found, target=TARGETS.get(name))


def hits_4x4k(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """The first token over four documents that are all there."""
    yield _hits(bench, floors, "TTFT, 4 x 4k all hits", 4, 4096)


def _hits(bench: Bench, floors: Floors, name: str, how_many: int, length: int) -> Row | Absent:
    count = bench.sizes.tokens(length)
    if absent := bench.absent(name, bench.needs(how_many, count)):
        return absent
    engine = bench.engine()
    segments = bench.segments(10, how_many, count)
    bench.warm(engine, segments)
    found, report = [], None
    for i in range(bench.sizes.num_runs + bench.warm_ups):
        order = segments[i % how_many :] + segments[: i % how_many]
        ms, report = bench.first_token(engine, bench.prompt(order, 100 * how_many + i))
        found.append(ms)
    assert report is not None, "there was a run"
    assert report.cold_tokens == 0, "all documents are in the pool"
    return Row(
        name,
        "ms",
        Spread.of(found[bench.warm_ups :]),
        target=TARGETS.get(name),
        floor=floors.forward_ms(report.live_tokens, entry_tokens=[count] * how_many),
        notes={
            "live_tokens": report.live_tokens,
            "cached_tokens": report.cached_tokens,
            **graph_notes(engine),
        },
        place=Place(DEFAULT_MODE, how_many, count),
    )


def further_1k(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """What one more document costs, from twelve up."""
    first = _hits(bench, floors, "TTFT, 12 x 1k all hits", 12, 1024)
    yield first
    second = _hits(bench, floors, "TTFT, 20 x 1k all hits", 20, 1024)
    yield second
    name = "each further 1k segment"
    if isinstance(first, Absent) or isinstance(second, Absent):
        yield Absent(name, "it is the difference of the rows above")
        return
    pairs = (
        (second.found.minimum, first.found.minimum),
        (second.found.median, first.found.median),
        (second.found.maximum, first.found.maximum),
    )
    each = [(more - less) / 8 for more, less in pairs]
    floor = None
    if first.floor is not None and second.floor is not None:
        floor = (second.floor - first.floor) / 8
    yield Row(name, "ms", Spread.of(each), target=TARGETS.get(name), floor=floor)


def decode_steps(batch: int) -> Callable[[Bench, Floors], Iterator[Row | Absent]]:
    """A step in which every one of `batch` requests gets a token, at 4k of context each.

    From one step's tokens to the next one's: where steps overlap, the device is never waited for
    in between.
    """

    def measure(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
        name, count = f"decode step, batch {batch}, 4k of context", bench.sizes.tokens(4096)
        needs = bench.needs(1, count, num_requests=batch, reply_tokens=DECODE_TOKENS)
        if absent := bench.absent(name, needs):
            yield absent
            return
        engine, found = bench.engine(), _decode_ms(bench, batch, count)
        yield Row(
            name,
            "ms",
            Spread.of(found),
            target=TARGETS.get(name),
            floor=floors.decode_ms(batch, count),
            notes={
                "tokens_per_s": round(1e3 * batch / Spread.of(found).median, 1),
                **graph_notes(engine),
            },
        )

    measure.__qualname__ = f"decode_{batch}"
    return measure


def _decode_ms(bench: Bench, batch: int, count: int) -> list[float]:
    """Of the steps in which all had a token, behind the first of them."""
    engine, documents = bench.engine(), bench.segments(10, 1, count)
    bench.warm(engine, documents)
    for i in range(batch):
        prompt = bench.prompt(documents, 5000 + 100 * batch + i)
        engine.submit(bench.request(prompt, max_tokens=DECODE_TOKENS, reuse=True))
    found, most = [], 0
    bench.wait()
    while engine.has_work:
        start_s = time.perf_counter()
        events = engine.step()
        ms = 1e3 * (time.perf_counter() - start_s)
        _raise_errors(events)
        given = sum(len(e.token_ids) for e in events if isinstance(e, TokenEvent))
        most = max(most, given)
        if given == batch:
            found.append(ms)
    if len(found) <= UNCOUNTED_STEPS:
        raise WorkerError(
            f"{len(found)} steps gave each of {batch} requests a token, more than "
            f"{UNCOUNTED_STEPS} are wanted: at most {most} requests decoded at once"
        )
    return found[UNCOUNTED_STEPS:]


def _raise_errors(events: list[Any]) -> None:
    for event in events:
        if event.error is not None:
            raise WorkerError(f"a request of the bench failed: {event.error}")


def cold_segments(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """Eight documents of 1.25k tokens that nobody has seen, in one request."""
    yield _cold(bench, floors, "cold prefill, 8 segments of 1.25k", is_text=False)


def cold_apart(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """The same with live rows in a forward of their own, behind the one that ends the segments."""
    name = "cold prefill, 8 segments of 1.25k, live rows apart"
    with bench.apart():
        apart = _cold(bench, floors, name, is_text=False)
    yield apart
    name = "cold prefill in one forward over apart"
    usual = _cold(bench, floors, name, is_text=False)
    if isinstance(apart, Absent) or isinstance(usual, Absent):
        reason = usual.reason if isinstance(usual, Absent) else "it is over the row above"
        yield Absent(name, reason)
        return
    yield Row(name, "x", over(usual.found, apart.found))


def cold_text(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """The same number of tokens as one text, all of it live: full recompute."""
    yield _cold(bench, floors, "cold prefill, one text of 10k", is_text=True)


def _cold(bench: Bench, floors: Floors, name: str, *, is_text: bool) -> Row | Absent:
    count = bench.sizes.tokens(1250)
    if absent := bench.absent(name, bench.needs(8, count, kept=not is_text)):
        return absent
    engine, speeds, times = bench.engine(), [], []
    for i in range(bench.sizes.num_runs + 1):
        segments = bench.segments(1000 + 10 * i + 500 * is_text, 8, count)
        prompt = bench.prompt(segments, 700 + i)
        ms, _ = bench.first_token(engine, prompt, reuse=not is_text)
        times.append(round(ms, 1))
        speeds.append(1e3 * prompt.num_tokens / ms)
    floor = floors.forward_ms(prompt.num_tokens)
    return Row(
        name,
        "tokens/s",
        Spread.of(speeds[1:]),
        target=TARGETS.get(name),
        is_upper=False,
        floor=None if floor is None else 1e3 * prompt.num_tokens / floor,
        notes={"first_token_ms": times},
    )


def full_recompute(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """The first row's prompt with nothing reused: what the arms are compared with."""
    name, count = "TTFT, 4 x 4k full recompute", bench.sizes.tokens(4096)
    if absent := bench.absent(name, bench.needs(4, count, kept=False)):
        yield absent
        return
    engine, found, segments = bench.engine(), [], bench.segments(10, 4, count)
    for i in range(min(3, bench.sizes.num_runs) + 1):
        prompt = bench.prompt(segments, 800 + i)
        found.append(bench.first_token(engine, prompt, reuse=False)[0])
    floor, place = floors.forward_ms(prompt.num_tokens), Place("full_recompute", 4, count)
    yield Row(name, "ms", Spread.of(found[1:]), floor=floor, place=place)


def layer_zero(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """How far a composed state at the first layer is from the sequential one in fp64."""
    del floors
    yield from state_errors(bench)


def other_modes(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """The first row under the other modes, each with an engine of its own."""
    del floors
    for mode in MODES_BESIDE:
        yield _in_another_order(bench, mode)


def _in_another_order(bench: Bench, mode: str) -> Row | Absent:
    """Holds the mode's engine no longer than it is measured."""
    name, count = f"TTFT, 4 x 4k, {mode}, documents in another order", bench.sizes.tokens(4096)
    if absent := bench.absent(name, bench.needs(4, count, kept=MODES[mode].segments)):
        return absent
    segments = bench.segments(10, 4, count)
    engine, found = bench.engine(mode), []
    if MODES[mode].segments:
        bench.warm(engine, segments)
    for i in range(min(3, bench.sizes.num_runs) + bench.warm_ups):
        order = segments[i % 4 :] + segments[: i % 4]
        found.append(bench.first_token(engine, bench.prompt(order, 900 + i))[0])
    return Row(name, "ms", Spread.of(found[bench.warm_ups :]), place=Place(mode, 4, count))
