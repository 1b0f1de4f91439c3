"""Fairness: budgets bind, nothing starves, nothing short is stuck behind something long."""

from __future__ import annotations

from itertools import pairwise

from hypic_sdk.engine.batch import Batch
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.launched import Launched
from hypic_sdk.transport.messages import FinishReason, TokenEvent
from tests.engine.harness import (
    answer,
    check_ended,
    drain,
    engine_of,
    events_of,
    report_of,
    request_of,
    warm,
)
from tests.engine.prompts import inner, prompt_of, tokens


def record(engine: Engine) -> list[Batch]:
    """Every batch that the engine runs from now on."""
    batches: list[Batch] = []
    launch = engine._runner.launch

    def spy(batch: Batch) -> Launched:
        batches.append(batch)
        return launch(batch)

    engine._runner.launch = spy
    return batches


def step_until(engine: Engine, request_id: str, limit: int = 1000) -> tuple[int, list]:
    """Steps until the request's first token, and all events so far."""
    events: list = []
    for steps in range(1, limit):
        events += engine.step()
        if any(isinstance(e, TokenEvent) and e.token_ids for e in events_of(events, request_id)):
            return steps, events
    raise AssertionError("no token came")


def test_a_short_request_is_not_stuck_behind_a_long_cold_one():
    engine = engine_of()
    batches = record(engine)
    long = request_of(prompt_of(inner(tokens(1, 64 * 30)), (5,)))
    engine.submit(long)
    for _ in range(3):
        engine.step()
    short = request_of(prompt_of(tokens(2, 40)))
    engine.submit(short)
    steps, _ = step_until(engine, short.request_id)
    assert steps <= 2
    check_ended(events_of(drain(engine), long.request_id))
    # and the long one never stood still for more than one step
    idle = [not batch.colds for batch in batches[:30]]
    assert not any(a and b for a, b in pairwise(idle))


def test_a_short_request_is_not_stuck_behind_a_long_live_one():
    engine = engine_of()
    long = request_of(prompt_of(tokens(1, 64 * 30)))
    engine.submit(long)
    for _ in range(3):
        engine.step()
    short = request_of(prompt_of(tokens(2, 40)))
    engine.submit(short)
    steps, _ = step_until(engine, short.request_id)
    assert steps <= 2


def test_a_short_cold_segment_is_not_stuck_behind_long_ones():
    engine = engine_of()
    for i in range(4):
        engine.submit(request_of(prompt_of(inner(tokens(i, 64 * 20)), (5,))))
    for _ in range(8):
        engine.step()
    short = request_of(prompt_of(inner(tokens(9, 50)), (5,)))
    engine.submit(short)
    steps, _ = step_until(engine, short.request_id)
    assert steps <= 8


def test_a_long_live_run_does_not_starve_under_a_stream_of_short_ones():
    engine = engine_of()
    long = request_of(prompt_of(tokens(1, 64 * 8)))
    engine.submit(long)
    for i in range(40):
        engine.submit(request_of(prompt_of(tokens(2 + i, 50)), max_tokens=1))
        if any(e.request_id == long.request_id for e in engine.step()):
            break
    else:
        raise AssertionError("the long request got no token")


def test_cold_work_does_not_starve_under_a_stream_of_live_runs():
    engine = engine_of()
    long = request_of(prompt_of(inner(tokens(1, 64 * 8)), (5,)))
    engine.submit(long)
    for i in range(60):
        engine.submit(request_of(prompt_of(tokens(2 + i, 60)), max_tokens=1))
        if any(e.request_id == long.request_id for e in engine.step()):
            break
    else:
        raise AssertionError("the cold request got no token")


def test_the_budget_binds_but_one_chunk_always_goes():
    engine = engine_of(step_tokens=128, max_requests=16)
    batches = record(engine)
    for i in range(12):
        engine.submit(request_of(prompt_of(inner(tokens(i, 150)), tokens(i, 70)), max_tokens=30))
    drain(engine)
    for batch in batches:
        first = [len(step.stretch.token_ids) for step in batch.assemblies]
        first += [len(step.chunk.token_ids) for step in batch.colds]
        assert batch.num_rows <= 128 or len(first) == 1
    assert any(batch.decodes and batch.assemblies and batch.colds for batch in batches)


def test_a_step_packs_several_short_cold_segments():
    engine = engine_of(step_tokens=256)
    batches = record(engine)
    documents = [inner(tokens(i, 60)) for i in range(8)]
    answer(engine, prompt_of(*documents, (5,)))
    assert [len(batch.colds) for batch in batches[:2]] == [4, 4]


def crowded_engine(**settings: object) -> tuple[Engine, list[str]]:
    """State rows for a few requests only, two of them taken for long."""
    layout = engine_of().describe().store_layout
    share = 4 * (layout.segment_bytes(64) + 64 * layout.kv_slot_bytes) + 2 * layout.state_row_bytes
    engine = engine_of(budget_bytes=share, **settings)
    warm(engine, inner(tokens(1, 40)))
    holder = request_of(prompt_of(tokens(2, 9)), max_tokens=300)
    engine.submit(holder)
    engine.step()
    return engine, [holder.request_id]


def finish_order(events: list) -> list[str]:
    return [
        event.request_id
        for event in events
        if isinstance(event, TokenEvent) and event.finish_reason is not None
    ]


def test_hits_pass_a_waiting_miss_only_so_often():
    engine, _ = crowded_engine(max_overtakes=3)
    # too large beside the holder, small enough alone
    miss = request_of(prompt_of(inner(tokens(5, 150)), (5,)), max_tokens=2)
    engine.submit(miss)
    hits = [
        request_of(prompt_of(inner(tokens(1, 40)), tokens(20 + i, 3)), max_tokens=2)
        for i in range(8)
    ]
    events: list = []
    for hit in hits:
        engine.submit(hit)
        events += engine.step()
    for _ in range(30):
        events += engine.step()
    early = [i for i in finish_order(events) if i in {hit.request_id for hit in hits}]
    assert early == [hit.request_id for hit in hits[:3]]
    events += drain(engine)
    for message in (miss, *hits):
        check_ended(events_of(events, message.request_id))


def test_misses_do_not_pass_a_waiting_miss_and_nobody_passes_a_hit():
    engine, _ = crowded_engine()
    large = request_of(prompt_of(inner(tokens(1, 40)), tokens(3, 250)), max_tokens=2)  # all hits
    engine.submit(large)
    small = request_of(prompt_of(tokens(4, 3)), max_tokens=1)
    engine.submit(small)
    events = [event for _ in range(20) for event in engine.step()]
    assert not events_of(events, small.request_id)
    events += drain(engine)
    order = finish_order(events)
    assert order.index(large.request_id) < order.index(small.request_id) or (
        report_of(events_of(events, small.request_id)).queue_ms > 0
    )


def test_requests_beyond_the_limit_wait_their_turn():
    engine = engine_of(max_requests=2)
    messages = [request_of(prompt_of(tokens(i, 5)), max_tokens=4) for i in range(5)]
    for message in messages:
        engine.submit(message)
    batches = record(engine)
    events = drain(engine)
    assert finish_order(events) == [message.request_id for message in messages]
    assert max(len(b.decodes) + len(b.assemblies) for b in batches) == 2
    assert all(
        e.finish_reason is not FinishReason.ERROR for e in events if isinstance(e, TokenEvent)
    )
