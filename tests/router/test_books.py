"""What is booked is what was planned, each segment has one maker, and caches fill evenly."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, SegmentId
from hypic_sdk.router.assignment import WorkerId, longest_first
from hypic_sdk.router.books import Books
from hypic_sdk.router.in_flight import Dispatched
from hypic_sdk.router.membership import Membership
from hypic_sdk.router.router import Router
from hypic_sdk.transport.messages import (
    EngineRequest,
    FinishReason,
    SegmentStatus,
    TokenEvent,
    WarmEvent,
    WarmRequest,
)
from tests.router.hand_worker import COSTS, HandWorker, part, request


@given(
    numbers=st.lists(st.integers(0, 4), max_size=6),
    leading=st.integers(1, 200),
    reuse=st.booleans(),
)
def test_a_worker_has_before_it_what_was_predicted(
    numbers: list[int], leading: int, reuse: bool
) -> None:
    """Segments twice in a prompt, and requests that reuse nothing, included."""
    members = Membership()
    books = Books(COSTS, longest_first, members)
    members.join(worker := WorkerId("a"))
    members.ready(worker)
    parts = (PromptPart(Role.LEADING, (7,) * leading), *request("r", numbers).prompt.parts)
    message = replace(request("r", numbers), prompt=SegmentedPrompt(parts), reuse=reuse)
    plan = books.plan(message)
    books.begin(Dispatched(message, lambda event: None, plan.combine, plan))
    assert members.loads_ms()[worker] == pytest.approx(plan.predicted_ms)
    if not reuse:
        assert plan.predicted_ms == pytest.approx(COSTS.live(message.prompt.num_tokens))


class Workers:
    """A router over workers that do at once, or later, what they are asked for."""

    def __init__(self, count: int) -> None:
        self.router = Router(COSTS)
        self.ports = {WorkerId(f"w{n}"): HandWorker() for n in range(count)}
        for worker, port in self.ports.items():
            self.router.join(worker, port)

    def makers(self) -> dict[SegmentId, set[str]]:
        """Who is asked, by anybody, for each segment."""
        found: dict[SegmentId, set[str]] = {}
        for worker, port in self.ports.items():
            for message, _ in port.open.values():
                if isinstance(message, WarmRequest):
                    asked = {one.segment_id: str(worker) for one in message.segments}
                else:
                    inner = [one for one in message.prompt.parts if one.role is Role.INNER]
                    hints = {hint.segment_id: hint.worker for hint in message.placements}
                    asked = {
                        one.segment_id: hints.get(one.segment_id or SegmentId(""), str(worker))
                        for one in inner
                    }
                for id_, maker in asked.items():
                    found.setdefault(id_ or SegmentId(""), set()).add(maker)
        return found

    def do_all(self) -> None:
        """Every worker ends what it has."""
        for port in self.ports.values():
            for name, (message, _) in list(port.open.items()):
                if isinstance(message, EngineRequest):
                    port.say(TokenEvent(name, (5,), finish_reason=FinishReason.STOP))
                    continue
                for one in message.segments:
                    port.say(WarmEvent(name, one.segment_id, SegmentStatus.COLD, 50, 1.0))
                port.say(WarmEvent(name, done=True))


@given(
    asked=st.lists(
        st.tuples(
            st.sampled_from(["request", "warm", "background"]),
            st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True),
        ),
        min_size=2,
        max_size=6,
    ),
    count=st.integers(2, 4),
)
def test_whatever_asks_for_a_segment_it_has_one_maker(
    asked: list[tuple[str, list[int]]], count: int
) -> None:
    workers = Workers(count)
    for place, (kind, numbers) in enumerate(asked):
        parts = tuple(part(n, 20 + 9 * n) for n in numbers)
        if kind == "request":
            prompt = SegmentedPrompt((*parts, PromptPart(Role.TRAILING, (1, 2, 3))))
            workers.router.submit(EngineRequest(f"r{place}", prompt), lambda event: None)
        else:
            message = WarmRequest(f"r{place}", parts, background=kind == "background")
            workers.router.submit(message, lambda event: None)
    assert {len(makers) for makers in workers.makers().values()} == {1}


@pytest.mark.parametrize("kind", ["request", "warm"])
@pytest.mark.parametrize("count", [2, 5])
def test_idle_workers_come_to_hold_equally_much(kind: str, count: int) -> None:
    """One by one, nobody is ever busy: without a rule for ties one worker would have it all."""
    workers = Workers(count)
    holders: Counter[str] = Counter()
    for n in range(4 * count):
        if kind == "request":
            workers.router.submit(request(f"r{n}", [n]), lambda event: None)
        else:
            workers.router.submit(WarmRequest(f"r{n}", (part(n),)), lambda event: None)
        holders += Counter(maker for makers in workers.makers().values() for maker in makers)
        workers.do_all()
    assert dict(holders) == {str(worker): 4 for worker in workers.ports}


def test_a_worker_that_warms_is_busy_until_each_segment_is_there() -> None:
    workers = Workers(1)
    (port,) = workers.ports.values()
    (worker,) = workers.ports
    loads_ms = workers.router._books.members.loads_ms
    workers.router.submit(WarmRequest("w", (part(1), part(2))), lambda event: None)
    assert loads_ms()[worker] == pytest.approx(2 * COSTS.cold(50))
    port.say(WarmEvent("w/w0", part(1).segment_id, SegmentStatus.COLD, 50, 1.0))
    assert loads_ms()[worker] == pytest.approx(COSTS.cold(50))
    port.say(WarmEvent("w/w0", done=True))  # the other could not be made
    assert loads_ms()[worker] == 0.0
    assert len(workers.router.plan(request("x", [1, 2])).cold[worker]) == 1


def test_background_work_is_nothing_that_a_request_waits_for() -> None:
    workers = Workers(2)
    message = WarmRequest("w", tuple(part(n) for n in range(8)), background=True)
    workers.router.submit(message, lambda event: None)
    assert not any(workers.router._books.members.loads_ms().values())
