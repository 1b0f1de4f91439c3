"""A request ends when its time is over, also if its worker is stopped and says nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from hypic_sdk.errors import DeadlineExceeded
from hypic_sdk.router import overdue
from hypic_sdk.router.assignment import WorkerId
from hypic_sdk.router.router import Router
from hypic_sdk.transport.events import Event, failed, is_last
from hypic_sdk.transport.messages import FinishReason, TokenEvent
from tests.router.hand_worker import COSTS, HandWorker, request


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "GRACE_S", 0.05)
    monkeypatch.setattr(overdue, "POLL_S", 0.01)


def until(what: Callable[[], object], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline_s, "did not come about in time"
        time.sleep(0.005)


def is_watching(router: Router) -> bool:
    return router._watch._is_running


def asked(timeout_s: float | None) -> tuple[Router, list[Event], HandWorker, HandWorker]:
    """A request with documents at one of two workers: who has it, and who has not."""
    router, a, b = Router(COSTS), HandWorker(), HandWorker()
    router.join(WorkerId("a"), a)
    router.join(WorkerId("b"), b)
    told: list[Event] = []
    router.submit(replace(request("r", range(4)), timeout_s=timeout_s), told.append)
    return (router, told, a, b) if "r" in a.open else (router, told, b, a)


def error_of(event: Event) -> dict[str, object]:
    assert is_last(event)
    assert event.error is not None
    return event.error


@pytest.mark.parametrize("has_spoken", [False, True])
def test_a_worker_that_says_nothing_more_is_not_waited_for(has_spoken: bool) -> None:
    router, told, home, _ = asked(0.1)
    if has_spoken:
        home.say(TokenEvent("r", (5,)))
    until(lambda: told and is_last(told[-1]))
    assert len(told) == 1 + has_spoken
    error = error_of(told[-1])
    assert error["code"] == "deadline_exceeded"
    assert error["details"] == {"timeout_s": 0.1}
    assert home.cancelled == ["r"]
    assert not any(router._books.members.loads_ms().values())
    assert router._in_flight == {}
    # it wakes up and goes on: nobody hears of it
    home.say(TokenEvent("r", (6,), finish_reason=FinishReason.STOP))
    assert len(told) == 1 + has_spoken
    until(lambda: not is_watching(router))


def test_what_a_stopped_worker_was_to_make_is_made_by_the_next_that_wants_it() -> None:
    router, told, _, _ = asked(0.05)
    assert not router.plan(request("x", range(4))).cold
    until(lambda: told)
    assert sum(map(len, router.plan(request("x", range(4))).cold.values())) == 4


@pytest.mark.parametrize("timeout_s", [None, 30.0])
def test_a_request_that_has_time_is_left_alone(timeout_s: float | None) -> None:
    router, told, home, _ = asked(timeout_s)
    assert is_watching(router) == (timeout_s is not None)
    time.sleep(0.3)
    assert told == []
    home.say(TokenEvent("r", (5,), finish_reason=FinishReason.STOP))
    assert len(told) == 1
    until(lambda: not is_watching(router))


def test_one_whose_time_is_over_goes_to_no_other_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "GRACE_S", 60.0)
    _, told, home, other = asked(0.05)
    time.sleep(0.1)
    home.die()
    assert not other.open
    assert error_of(told[-1])["details"] == {"timeout_s": 0.05}


def test_a_second_worker_knows_less_time_and_the_caller_is_told_of_its_own() -> None:
    _, told, home, other = asked(30.0)
    home.die()
    assert "r" in other.open
    late = DeadlineExceeded("not within its 7 s", timeout_s=7.0)
    other.say(failed("r", late, is_warm=False))
    assert error_of(told[-1])["details"] == {"timeout_s": 30.0}
    assert "30 s" in str(error_of(told[-1])["message"])
