"""Real engine processes behind one router: they share work, they die, requests end all the same."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from hypic_sdk.config import EngineConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import ConfigError
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, segment_id
from hypic_sdk.router.costs import CostModel
from hypic_sdk.server.app import create_app
from hypic_sdk.server.fleet import Fleet
from hypic_sdk.server.supervisor import EngineState
from hypic_sdk.transport.messages import (
    EngineRequest,
    FinishReason,
    SamplingParams,
    SegmentStatus,
    TokenEvent,
    WarmRequest,
)
from hypic_sdk.transport.process_settings import ProcessSettings
from tests.server.served import call, serve

START_TIMEOUT_S = 120.0
SMALL = ProcessSettings(str(reader_path()), EngineConfig(store=StoreConfig(budget_bytes=96 << 20)))
SPREADING = CostModel(prefill_ms_per_token=100, transfer_ms=0.1, transfer_ms_per_token=0)


def document(number: int, num_tokens: int = 120) -> PromptPart:
    ids = tuple(100 + (7 * number + 3 * i) % 4000 for i in range(num_tokens))
    return PromptPart(Role.INNER, ids, segment_id(f"document {number}"))


def request(name: str, numbers: range | list[int], max_tokens: int = 4) -> EngineRequest:
    parts = (*map(document, numbers), PromptPart(Role.TRAILING, (50, 51, 52)))
    sampling = SamplingParams(max_tokens, ignore_eos=True)
    return EngineRequest(name, SegmentedPrompt(parts), sampling, timeout_s=60.0)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet(SMALL, 2, costs=SPREADING, hung_after_s=6.0) as one:
        one.wait_ready(START_TIMEOUT_S)
        yield one


@pytest.fixture(scope="module")
def single() -> Iterator[Fleet]:
    with Fleet(SMALL, 1) as one:
        one.wait_ready(START_TIMEOUT_S)
        yield one


def events_of(fleet: Fleet, message: EngineRequest) -> list[TokenEvent]:
    return [event for event in fleet.link.submit(message) if isinstance(event, TokenEvent)]


def ids_of(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def until(what, limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline_s, "did not come about in time"
        time.sleep(0.05)


def all_ready(fleet: Fleet) -> bool:
    return list(fleet.link.workers().values()) == ["ready", "ready"]


def test_two_workers_share_the_work_and_give_the_tokens_of_one(fleet: Fleet, single: Fleet) -> None:
    message = request("one", range(6), max_tokens=8)
    plan = fleet.link.router.plan(message)
    assert len(plan.cold) == 2
    events = events_of(fleet, message)
    assert ids_of(events) == ids_of(events_of(single, message))
    report = events[-1].report
    assert report is not None
    made_here = sum(120 for _ in plan.cold[plan.combine])
    assert report.cold_tokens == made_here < 6 * 120
    assert [segment.status for segment in report.segments] == [SegmentStatus.COLD] * 6
    again = events_of(fleet, request("two", [3, 1, 5, 0]))
    assert again[-1].report is not None
    assert again[-1].report.cold_tokens == 0
    assert fleet.link.usage()["num_leases"] == 0


def test_warming_is_spread_and_deleting_reaches_everybody(fleet: Fleet) -> None:
    parts = tuple(document(n) for n in range(20, 26))
    events = list(fleet.link.submit(WarmRequest("warm", parts)))
    assert [event.done for event in events] == [False] * 6 + [True]
    assert all(fleet.link.probe(parts, ""))
    fleet.link.delete(parts, "")
    assert not any(fleet.link.probe(parts, ""))


def test_a_killed_worker_costs_its_segments_only_and_comes_back(
    fleet: Fleet, single: Fleet
) -> None:
    until(lambda: all_ready(fleet))
    messages = [request(f"k{n}", range(100 + 8 * n, 108 + 8 * n), 8) for n in range(4)]
    expected = [ids_of(events_of(single, message)) for message in messages]
    answers: list[list[TokenEvent]] = [[] for _ in messages]

    def ask(place: int) -> None:
        answers[place] = events_of(fleet, messages[place])

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(messages))]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    victim = fleet.process_ids[1]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive()
    for events, ids in zip(answers, expected, strict=True):
        last = events[-1]
        assert last.finish_reason is not None
        if last.error is not None:
            assert last.error["code"] in ("worker_lost", "worker_error"), last.error
        else:
            assert ids_of(events) == ids
    assert any(events[-1].error is None for events in answers)
    until(lambda: all_ready(fleet))
    assert fleet.health.num_restarts >= 1
    assert ids_of(events_of(fleet, messages[0])) == expected[0]
    until(lambda: fleet.link.usage()["num_leases"] == 0)


def test_a_stopped_worker_is_not_waited_for_beyond_the_deadline(fleet: Fleet) -> None:
    until(lambda: all_ready(fleet))
    victim = fleet.process_ids[0]
    assert victim is not None
    os.kill(victim, signal.SIGSTOP)
    try:
        started_s = time.monotonic()
        message = request("stopped", range(200, 206))
        last = events_of(fleet, message)[-1]
        assert time.monotonic() - started_s < 70
        assert last.finish_reason is not None
        if last.error is not None:
            assert last.error["code"] in ("worker_lost", "deadline_exceeded")
    finally:
        with suppress(ProcessLookupError):  # it was ended
            os.kill(victim, signal.SIGCONT)
    until(lambda: all_ready(fleet))
    assert events_of(fleet, request("after", range(3)))[-1].finish_reason is FinishReason.LENGTH


def test_health_and_metrics_tell_of_every_worker(fleet: Fleet) -> None:
    until(lambda: all_ready(fleet))
    events_of(fleet, request("told", range(300, 306)))
    until(lambda: sum(one.fetched_bytes for one in fleet.link.worker_facts().values()) > 0)
    facts = fleet.link.worker_facts()
    assert list(facts) == ["w0", "w1"]
    assert sum(one.num_dispatched for one in facts.values()) > 0
    app = create_app(lambda *_: None, fleet.link)
    with serve(app) as url:
        body = call(url, "GET", "/health/ready").json
        assert body == {"status": "ready", "workers": {"w0": "ready", "w1": "ready"}}
        text = call(url, "GET", "/metrics").text
    assert 'hypic_worker_ready{worker="w1"} 1.0' in text
    fetched = sum(one.num_fetched for one in facts.values())
    told = re.findall(r"hypic_worker_fetched_entries\{.*\} ([0-9.]+)", text)
    assert sum(map(float, told)) >= fetched > 0


def hand_fleet(kind: str) -> Fleet:
    """Two processes that only say that they are ready."""
    return Fleet(ProcessSettings(kind), 2, module="tests.server.hand_engine")


def test_a_worker_of_this_host_that_computes_otherwise_is_told_of_at_start() -> None:
    with hand_fleet("odd") as fleet:
        with pytest.raises(ConfigError, match="2 threads here, 1 threads there"):
            fleet.wait_ready(START_TIMEOUT_S)
        until(lambda: fleet.process_ids[1] is None)
        time.sleep(1.5)  # longer than the pause before another start
        assert fleet.process_ids[1] is None
        assert list(fleet.link.workers()) == ["w0-0"]
        assert fleet.link.generation() <= 2


def test_workers_of_this_host_that_compute_alike_come_back_as_such() -> None:
    with hand_fleet("same") as fleet:
        assert fleet.wait_ready(START_TIMEOUT_S).compute_fingerprint.startswith("a CPU, 1 threads")
        for process_id in fleet.process_ids:
            assert process_id is not None
            os.kill(process_id, signal.SIGKILL)
        until(lambda: list(fleet.link.workers()) in (["w0-1", "w1-1"], ["w1-1", "w0-1"]))
        assert fleet.health.state is EngineState.READY


def test_links_at_a_public_address_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="public"):
        Fleet(SMALL, 2, hosts=["127.0.0.1", "8.8.8.8"])
