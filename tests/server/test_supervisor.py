"""A real engine process: it answers, it dies, the next one answers; one that fails says why."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hypic_sdk.config import EngineConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import InvalidGrammar, ModelFileError, RequestRejected, WorkerLost
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, segment_id
from hypic_sdk.server.supervisor import EngineState, EngineSupervisor
from hypic_sdk.transport.messages import (
    EngineRequest,
    FinishReason,
    Grammar,
    GrammarKind,
    SamplingParams,
    SegmentStatus,
    TokenEvent,
    WarmRequest,
)
from hypic_sdk.transport.process_settings import ProcessSettings
from tests.server.dying_engine import DEADLY

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


@pytest.fixture
def load_time_s(supervisor: EngineSupervisor) -> float:
    """What a process takes until it is ready, here and now."""
    started_s = time.monotonic()
    with EngineSupervisor(ProcessSettings(str(reader_path()), SMALL)) as another:
        another.wait_ready(START_TIMEOUT_S)
        return time.monotonic() - started_s


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


def test_finish_ends_a_long_answer_well(supervisor: EngineSupervisor) -> None:
    events = supervisor.link.submit(request("finished", max_tokens=4000))
    next(events)
    supervisor.link.finish("finished")
    last = list(events)[-1]
    assert last.finish_reason is FinishReason.STOP
    assert last.error is None
    assert last.report is not None


def test_a_reply_under_a_grammar(supervisor: EngineSupervisor) -> None:
    sampling = SamplingParams(16, grammar=Grammar(GrammarKind.REGEX, "(yes|no)!"))
    events = list(supervisor.link.submit(EngineRequest("bound", PROMPT, sampling)))
    assert events[-1].finish_reason is FinishReason.STOP
    text = Tokenizer.from_file(str(reader_path() / "tokenizer.json")).decode(
        tokens_of(iter(events))
    )
    assert text in ("yes!", "no!")
    bad = SamplingParams(16, grammar=Grammar(GrammarKind.REGEX, "("))
    events = list(supervisor.link.submit(EngineRequest("bad", PROMPT, bad)))
    assert events[-1].error["code"] == InvalidGrammar.code


def test_a_killed_process_ends_what_is_open_and_is_replaced(
    supervisor: EngineSupervisor, load_time_s: float
) -> None:
    link, first = supervisor.link, supervisor.process_id
    want = tokens_of(link.submit(request("before")))
    streams = [link.submit(request(f"r{number}", max_tokens=200)) for number in range(20)]
    for stream in streams:  # who was heard of can not begin anew
        next(stream)
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
    assert time.monotonic() - started_s < load_time_s + 5
    assert supervisor.process_id != first
    assert list(link.probe([SEGMENT], "")) == [False]
    assert tokens_of(link.submit(request("after"))) == want


def test_cold_prompts_of_a_killed_process_end_in_time(supervisor: EngineSupervisor) -> None:
    """Who had not spoken is tried again for a few seconds, or told to ask again."""
    supervisor.wait_ready(START_TIMEOUT_S)
    link = supervisor.link
    colds = [
        link.submit(
            EngineRequest(
                f"cold {number}",
                SegmentedPrompt((PromptPart(Role.TRAILING, (60 + number, *range(100, 3000))),)),
                SamplingParams(200, ignore_eos=True),
            )
        )
        for number in range(20)
    ]
    time.sleep(0.2)
    os.kill(supervisor.process_id, signal.SIGKILL)
    started_s = time.monotonic()
    firsts = [next(stream) for stream in colds]
    assert time.monotonic() - started_s < 10
    codes = {first.error["code"] for first in firsts if first.error is not None}
    assert codes <= {WorkerLost.code}
    for number in range(20):
        link.cancel(f"cold {number}")
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not link.is_ready() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    supervisor.wait_ready(START_TIMEOUT_S)
    started_s = time.monotonic()
    next(link.submit(request("small")))
    assert time.monotonic() - started_s < 5


@pytest.mark.parametrize("module", ["hypic_sdk.engine.process", "hypic_sdk.scripted.process"])
def test_a_process_that_hangs_is_ended_and_replaced(module: str) -> None:
    settings = ProcessSettings(str(reader_path()), SMALL)
    with EngineSupervisor(settings, module=module, hung_after_s=2.0) as supervisor:
        supervisor.wait_ready(START_TIMEOUT_S)
        time.sleep(3.0)  # longer than it may be silent: it is not silent
        assert supervisor.health.num_restarts == 0
        streams = [supervisor.link.submit(request(f"r{n}", max_tokens=4000)) for n in range(3)]
        for stream in streams:
            next(stream)
        os.kill(supervisor.process_id, signal.SIGSTOP)
        started_s = time.monotonic()
        for stream in streams:
            assert list(stream)[-1].error["code"] == WorkerLost.code
        assert time.monotonic() - started_s < 10
        assert not supervisor.link.is_ready()
        while supervisor.health.num_restarts == 0:
            time.sleep(0.05)
        supervisor.wait_ready(START_TIMEOUT_S)
        assert len(tokens_of(supervisor.link.submit(request("after")))) == 4


def test_a_request_that_ends_engines_is_tried_twice_and_spoils_nobody_else() -> None:
    """The second time alone; all that were beside it the first time are answered."""
    deadly = SegmentedPrompt((PromptPart(Role.TRAILING, (50, DEADLY)),))
    settings = ProcessSettings(str(reader_path()), SMALL)
    # on a busy machine the next engine may be long in coming
    with EngineSupervisor(
        settings, module="tests.server.dying_engine", retry_s=START_TIMEOUT_S
    ) as one:
        one.wait_ready(START_TIMEOUT_S)
        link = one.link
        want = tokens_of(link.submit(request("before")))
        killer = link.submit(EngineRequest("killer", deadly, SamplingParams(4)))
        others = [link.submit(request(f"o{number}")) for number in range(3)]
        assert list(killer)[-1].error["code"] == RequestRejected.code
        for other in others:
            assert tokens_of(other) == want
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while one.health.num_restarts < 2 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        one.wait_ready(START_TIMEOUT_S)
        again = link.submit(EngineRequest("again", deadly, SamplingParams(4)))
        assert list(again)[-1].error["code"] == RequestRejected.code
        assert tokens_of(link.submit(request("after"))) == want
        assert one.health.num_restarts == 2


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
