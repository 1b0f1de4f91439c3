"""The worker: events come, cancel and close work from any thread, nothing is left waiting."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from hypic_sdk.config import ShadowConfig
from hypic_sdk.engine.worker import EventStream, LocalWorker
from hypic_sdk.errors import RequestError, WorkerLost
from hypic_sdk.transport.messages import FinishReason, WarmRequest
from tests.engine.harness import (
    answer,
    check_ended,
    check_idle,
    engine_of,
    request_of,
    token_ids,
)
from tests.engine.prompts import inner, prompt_of, tokens

WAIT_S = 60.0


def collect(stream: EventStream) -> list:
    """All events of a stream; fails instead of hanging."""
    events = [stream.get(timeout_s=WAIT_S)]
    while not stream.is_over:
        events.append(stream.get(timeout_s=WAIT_S))
    return events


def test_events_come_as_from_the_engine():
    prompt = prompt_of(inner(tokens(1, 50)), tokens(2, 9))
    with LocalWorker(engine_of()) as worker:
        events = collect(worker.submit(request_of(prompt, max_tokens=6)))
    check_ended(events)
    assert token_ids(events) == token_ids(answer(engine_of(), prompt, max_tokens=6))


def test_a_stream_iterates_to_its_end():
    with LocalWorker(engine_of()) as worker:
        events = list(worker.submit(request_of(prompt_of(tokens(2, 9)), max_tokens=4)))
    check_ended(events)


def test_many_threads_at_once():
    engine = engine_of()
    results: dict[int, list] = {}
    with LocalWorker(engine) as worker:

        def ask(number: int) -> None:
            prompt = prompt_of(inner(tokens(number % 3, 50)), tokens(number, 9))
            results[number] = collect(worker.submit(request_of(prompt)))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        usage = worker.call(lambda engine: engine.usage())
    assert sorted(results) == list(range(12))
    for events in results.values():
        check_ended(events)
    assert usage.num_segments == 3


def test_warm_and_listener():
    told: queue.SimpleQueue = queue.SimpleQueue()
    with LocalWorker(engine_of()) as worker:
        worker.submit(WarmRequest("w", (inner(tokens(1, 50)),)), on_event=told.put)
        events = [told.get(timeout=WAIT_S) for _ in range(2)]
    assert [event.done for event in events] == [False, True]


def test_cancel_from_another_thread():
    engine = engine_of()
    with LocalWorker(engine) as worker:
        stream = worker.submit(request_of(prompt_of(tokens(2, 9)), max_tokens=10_000_000))
        stream.get(timeout_s=WAIT_S)
        stream.cancel()
        events = collect(stream)
        worker.call(check_idle)
    assert events[-1].error["code"] == "request_cancelled"


def test_finish_from_another_thread_is_a_good_end():
    engine = engine_of()
    with LocalWorker(engine) as worker:
        message = request_of(prompt_of(tokens(2, 9)), max_tokens=10_000_000, num_replies=2)
        stream = worker.submit(message)
        stream.get(timeout_s=WAIT_S)
        worker.finish(message.request_id, 1)
        worker.finish(message.request_id)
        events = collect(stream)
        worker.call(check_idle)
    lasts = [event for event in events if event.finish_reason is not None]
    assert [event.finish_reason for event in lasts] == [FinishReason.STOP] * 2
    assert sorted(event.reply_index for event in lasts) == [0, 1]
    assert lasts[-1].report is not None


def test_an_id_in_flight_is_refused_at_once_and_free_afterwards():
    with LocalWorker(engine_of()) as worker:
        first = worker.submit(
            request_of(prompt_of(tokens(2, 9)), request_id="same", max_tokens=10_000_000)
        )
        with pytest.raises(RequestError):
            worker.submit(request_of(prompt_of(tokens(2, 9)), request_id="same"))
        first.cancel()
        collect(first)
        check_ended(collect(worker.submit(request_of(prompt_of(tokens(2, 9)), request_id="same"))))


def test_close_answers_what_is_in_flight():
    engine = engine_of()
    worker = LocalWorker(engine)
    streams = [
        worker.submit(request_of(prompt_of(tokens(i, 9)), max_tokens=10_000_000)) for i in range(3)
    ]
    streams[0].get(timeout_s=WAIT_S)
    worker.close()
    worker.close()
    for stream in streams:
        last = collect(stream)[-1]
        assert last.finish_reason is FinishReason.ERROR
        assert last.error["code"] == "worker_lost"
    check_idle(engine)
    with pytest.raises(WorkerLost):
        worker.submit(request_of(prompt_of(tokens(1, 9))))
    with pytest.raises(WorkerLost):
        worker.call(lambda engine: engine.usage())


def test_a_step_that_raises_costs_its_requests_and_the_worker_goes_on():
    engine = engine_of()
    original = engine._scheduler.next_batch

    def broken() -> None:
        engine._scheduler.next_batch = original
        raise AssertionError("a bug")

    engine._scheduler.next_batch = broken
    with LocalWorker(engine) as worker:
        lost = collect(worker.submit(request_of(prompt_of(tokens(1, 9)))))
        assert lost[-1].error["code"] == "worker_error"
        check_ended(collect(worker.submit(request_of(prompt_of(tokens(1, 9))))))
        worker.call(check_idle)


def test_a_listener_that_raises_hurts_nobody():
    def fail(event: object) -> None:
        raise ValueError("the listener fell over")

    with LocalWorker(engine_of()) as worker:
        worker.submit(request_of(prompt_of(tokens(1, 9))), on_event=fail)
        check_ended(collect(worker.submit(request_of(prompt_of(tokens(2, 9))))))


def test_calls_return_and_raise_on_the_callers_thread():
    with LocalWorker(engine_of()) as worker:
        assert worker.call(lambda engine: engine.probe([inner(tokens(1, 50))])) == [False]
        with pytest.raises(ZeroDivisionError):
            worker.call(lambda engine: 1 // 0)


def test_a_posted_call_runs_in_order_and_may_fail():
    told: queue.SimpleQueue = queue.SimpleQueue()
    with LocalWorker(engine_of()) as worker:
        worker.post(lambda engine: told.put(engine.probe([inner(tokens(1, 50))])))
        worker.post(lambda engine: 1 // 0)
        worker.post(lambda engine: told.put("still here"))
        assert [told.get(timeout=WAIT_S) for _ in range(2)] == [[False], "still here"]


def test_an_idle_worker_does_not_spin():
    engine = engine_of()
    steps = 0
    original = engine.step

    def counted() -> list:
        nonlocal steps
        steps += 1
        return original()

    engine.step = counted
    with LocalWorker(engine) as worker:
        collect(worker.submit(request_of(prompt_of(tokens(1, 9)))))
        worker.call(lambda engine: None)
        before = steps
        time.sleep(0.2)
        assert steps - before <= 1


def test_checks_go_on_between_commands_and_end_with_the_worker():
    prompt = prompt_of(tokens(3, 5), inner(tokens(1, 300)), tokens(2, 9))
    shadow = ShadowConfig(idle_s=0.0, share=1.0, max_tokens=1024)
    with LocalWorker(engine_of(shadow=shadow)) as worker:
        for number in range(3):
            check_ended(collect(worker.submit(request_of(prompt))))
            end_s = time.monotonic() + WAIT_S
            while worker.call(lambda engine: engine.shadow.books.facts()).num_replies <= number:
                assert time.monotonic() < end_s, "nothing is checked"
        worker.call(check_idle)
    slow = ShadowConfig(idle_s=1e6)  # waits for its time when the worker is closed
    with LocalWorker(engine_of(shadow=slow)) as worker:
        check_ended(collect(worker.submit(request_of(prompt))))
