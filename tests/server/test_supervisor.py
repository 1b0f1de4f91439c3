"""A real engine process: it answers, it dies, the next one answers; one that fails says why."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypic_sdk.config import EngineConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import ModelFileError, WorkerLost
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, segment_id
from hypic_sdk.server.supervisor import EngineState, EngineSupervisor
from hypic_sdk.transport.messages import (
    EngineRequest,
    FinishReason,
    SamplingParams,
    SegmentStatus,
    TokenEvent,
    WarmRequest,
)
from hypic_sdk.transport.process_settings import ProcessSettings

START_TIMEOUT_S = 120.0
SMALL = EngineConfig(store=StoreConfig(budget_bytes=64 << 20))

SEGMENT = PromptPart(Role.INNER, tuple(range(100, 200)), segment_id("a document"))
PROMPT = SegmentedPrompt((SEGMENT, PromptPart(Role.TRAILING, (50, 51, 52))))


def request(request_id: str, max_tokens: int = 4) -> EngineRequest:
    return EngineRequest(request_id, PROMPT, SamplingParams(max_tokens, ignore_eos=True))


@pytest.fixture(scope="module")
def supervisor() -> Iterator[EngineSupervisor]:
    with EngineSupervisor(ProcessSettings(str(reader_path()), SMALL)) as one:
        one.wait_ready(START_TIMEOUT_S)
        yield one


def tokens_of(events: Iterator[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def test_it_answers_and_keeps_what_was_warmed(supervisor: EngineSupervisor) -> None:
    link = supervisor.link
    assert link.is_ready()
    assert list(link.probe([SEGMENT], "")) == [False]
    warmed = list(link.submit(WarmRequest("w", (SEGMENT,))))
    assert [event.status for event in warmed] == [SegmentStatus.COLD, None]
    assert list(link.probe([SEGMENT], "")) == [True]
    events = list(link.submit(request("one")))
    assert len(tokens_of(iter(events))) == 4
    assert events[-1].report.cached_tokens == 92
    books = link.usage()["state_rows"]
    assert books["idle"] > 0
    assert books["pinned"] == 0
    link.delete([SEGMENT], "")
    assert list(link.probe([SEGMENT], "")) == [False]
    assert link.num_in_flight == 0


def test_cancel_ends_a_long_answer(supervisor: EngineSupervisor) -> None:
    events = supervisor.link.submit(request("long", max_tokens=4000))
    next(events)
    supervisor.link.cancel("long")
    last = list(events)[-1]
    assert last.error["code"] == "request_cancelled"


def test_a_killed_process_ends_what_is_open_and_is_replaced(supervisor: EngineSupervisor) -> None:
    link, first = supervisor.link, supervisor.process_id
    want = tokens_of(link.submit(request("before")))
    streams = [link.submit(request(f"r{number}", max_tokens=4000)) for number in range(20)]
    next(streams[0])
    os.kill(first, signal.SIGKILL)
    started_s = time.monotonic()
    for stream in streams:
        last = list(stream)[-1]
        assert last.finish_reason is FinishReason.ERROR
        assert last.error["code"] == WorkerLost.code
        assert last.error["request_id"].startswith("r")
    assert time.monotonic() - started_s < 10
    assert not link.is_ready()
    assert list(link.submit(request("meanwhile")))[-1].error["code"] == WorkerLost.code
    while supervisor.health.num_restarts == 0:
        time.sleep(0.05)
    supervisor.wait_ready(START_TIMEOUT_S)
    assert supervisor.process_id != first
    assert list(link.probe([SEGMENT], "")) == [False]
    assert tokens_of(link.submit(request("after"))) == want


def test_an_engine_that_can_not_start_says_why(tmp_path: Path) -> None:
    with EngineSupervisor(ProcessSettings(str(tmp_path / "nothing"))) as one:
        with pytest.raises(ModelFileError, match="nothing"):
            one.wait_ready(START_TIMEOUT_S)
        assert one.health.state is EngineState.FAILED
        assert one.link.submit(request("r")).__next__().error["code"] == WorkerLost.code


def test_a_stopped_supervisor_leaves_no_process() -> None:
    with EngineSupervisor(ProcessSettings(str(reader_path()), SMALL)) as one:
        one.wait_ready(START_TIMEOUT_S)
        process_id = one.process_id
    assert one.health.state is EngineState.STOPPED
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)
