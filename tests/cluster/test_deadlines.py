"""Real processes: a request ends when its time is over, though its worker is stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from hypic_sdk.router.overdue import GRACE_S
from hypic_sdk.server.fleet import Fleet
from hypic_sdk.transport.messages import TokenEvent
from tests.cluster.soak.storm import ORDERS, SETTINGS, START_TIMEOUT_S, request, tokens_and_error

TIMEOUT_S = 2.0
SLACK_S = 3.0  # of a machine that does much else; a worker is ended for silence after 15 s


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet(SETTINGS, 2) as one:
        one.wait_ready(START_TIMEOUT_S)
        yield one


@contextmanager
def stopped(fleet: Fleet, worker: str) -> Iterator[None]:
    process = fleet.process_ids[int(worker.partition("-")[0].removeprefix("w"))]
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it was ended
            os.kill(process, signal.SIGCONT)


@pytest.mark.parametrize("when", ["before its first token", "after its first token"])
def test_a_stopped_worker_is_not_waited_for(fleet: Fleet, when: str) -> None:
    message = replace(request(when, ORDERS[0], when), timeout_s=TIMEOUT_S)
    message = replace(message, sampling=replace(message.sampling, max_tokens=400))
    tokens_and_error(fleet, replace(message, request_id="first", timeout_s=None, sampling=replace(
        message.sampling, max_tokens=1)))  # fmt: skip
    home = fleet.link.router.plan(message).combine
    started_s = time.monotonic()
    if when.startswith("before"):
        with stopped(fleet, home):
            last = list(fleet.link.submit(message))[-1]
    else:
        events = fleet.link.submit(message)
        next(events)
        with stopped(fleet, home):
            last = list(events)[-1]
    took_s = time.monotonic() - started_s
    assert isinstance(last, TokenEvent)
    assert last.error is not None
    assert last.error["code"] == "deadline_exceeded"
    assert last.error["details"] == {"timeout_s": TIMEOUT_S}
    assert TIMEOUT_S <= took_s < TIMEOUT_S + GRACE_S + SLACK_S
    deadline_s = time.monotonic() + 60
    while not is_calm(fleet):
        assert time.monotonic() < deadline_s, "something is still leased"
        time.sleep(0.1)
    _, error = tokens_and_error(fleet, request(f"{when}, then", ORDERS[1], when))
    assert error is None


def is_calm(fleet: Fleet) -> bool:
    if list(fleet.link.workers().values()) != ["ready", "ready"]:
        return False
    usage = fleet.link.usage()
    return bool(usage["num_leases"] == usage["num_filling"] == 0)
