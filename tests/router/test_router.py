"""A router over workers that come, go and answer in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hypic_sdk.errors import RequestError, WorkerLost
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, SegmentId
from hypic_sdk.router.answers import joined_answer
from hypic_sdk.router.assignment import WorkerId
from hypic_sdk.router.membership import Membership
from hypic_sdk.router.placement_index import Place
from hypic_sdk.router.router import Router
from hypic_sdk.transport.control import EntriesChanged, EntryName, Question
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import (
    EngineRequest,
    FinishReason,
    SegmentStatus,
    TokenEvent,
    WarmEvent,
    WarmRequest,
)
from tests.router.hand_worker import COSTS, HandWorker, part, request


class Cluster(RuleBasedStateMachine):
    """Whatever happens, each request ends once and nothing stays booked."""

    def __init__(self) -> None:
        super().__init__()
        self.members = Membership(now_s=lambda: 0.0)
        self.router = Router(COSTS, members=self.members)
        self.workers: dict[WorkerId, HandWorker] = {}
        self.born = 0
        self.asked = 0
        self.ends: Counter[str] = Counter()
        self.started: set[str] = set()

    def listen(self, event: Event) -> None:
        is_end = event.done if isinstance(event, WarmEvent) else event.finish_reason is not None
        self.ends[event.request_id] += is_end

    @rule()
    def join(self) -> None:
        worker = WorkerId(f"w{self.born}")
        self.born += 1
        self.workers[worker] = HandWorker()
        self.router.join(worker, self.workers[worker])

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), tells_first=st.booleans())
    def die(self, data: st.DataObject, tells_first: bool) -> None:
        worker = data.draw(st.sampled_from(sorted(self.workers)))
        port = self.workers.pop(worker)
        if tells_first:
            port.die()
            self.router.leave(worker)
        else:
            self.router.leave(worker)
            port.die()

    @rule(
        numbers=st.lists(st.integers(0, 6), max_size=4),
        session=st.none() | st.sampled_from(["s", "t"]),
    )
    def ask(self, numbers: list[int], session: str | None) -> None:
        self.asked += 1
        name = f"r{self.asked}"
        self.started.add(name)
        self.router.submit(request(name, numbers, session), self.listen)

    @rule(numbers=st.lists(st.integers(0, 6), max_size=4))
    def warm(self, numbers: list[int]) -> None:
        self.asked += 1
        name = f"r{self.asked}"
        self.started.add(name)
        parts = tuple(part(n) for n in dict.fromkeys(numbers))
        self.router.submit(WarmRequest(name, parts), self.listen)

    @precondition(lambda self: any(worker.open for worker in self.workers.values()))
    @rule(data=st.data(), is_end=st.booleans())
    def say(self, data: st.DataObject, is_end: bool) -> None:
        busy = sorted(name for name, worker in self.workers.items() if worker.open)
        port = self.workers[data.draw(st.sampled_from(busy))]
        name = data.draw(st.sampled_from(sorted(port.open)))
        message, _ = port.open[name]
        if isinstance(message, EngineRequest):
            port.say(TokenEvent(name, (5,), finish_reason=FinishReason.STOP if is_end else None))
        elif is_end or not message.segments:
            port.say(WarmEvent(name, done=True))
        else:
            segment = data.draw(st.sampled_from(message.segments)).segment_id
            port.say(WarmEvent(name, segment, SegmentStatus.COLD, 50, 1.0))

    @precondition(lambda self: self.started)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.router.cancel(data.draw(st.sampled_from(sorted(self.started))))

    @invariant()
    def each_request_is_open_somewhere_or_has_ended_once(self) -> None:
        open_now = {
            name.partition("/")[0] for worker in self.workers.values() for name in worker.open
        }
        for name in self.started:
            assert self.ends[name] == (name not in open_now), name

    @invariant()
    def hints_name_workers_that_are_there_and_never_the_answering_one(self) -> None:
        for worker, port in self.workers.items():
            for message, _ in port.open.values():
                if isinstance(message, EngineRequest):
                    assert worker not in {hint.worker for hint in message.placements}
        if self.workers:
            plan = self.router.plan(request("probe", range(7)))
            assert {plan.combine, *plan.cold, *plan.hits.values()} <= set(self.workers)

    @invariant()
    def without_requests_nobody_is_busy_and_nobody_makes_anything(self) -> None:
        if not any(worker.open for worker in self.workers.values()):
            assert not any(self.members.loads_ms().values())
            places = [Place("", part(n).segment_id or SegmentId("")) for n in range(7)]
            assert not any(self.router._books.index.maker(place) for place in places)


TestCluster = Cluster.TestCase


def two_workers() -> tuple[Router, HandWorker, HandWorker]:
    router, a, b = Router(COSTS), HandWorker(), HandWorker()
    router.join(WorkerId("a"), a)
    router.join(WorkerId("b"), b)
    return router, a, b


def test_a_segment_in_flight_is_not_given_out_twice() -> None:
    router, a, b = two_workers()
    router.submit(request("r1", range(8)), lambda event: None)
    first = router.plan(request("x", range(8)))
    assert not first.cold
    answering = "a" if "r1" in a.open else "b"
    made_elsewhere = (a if answering == "a" else b).open["r1"][0]
    assert isinstance(made_elsewhere, EngineRequest)
    assert len(made_elsewhere.placements) == 4


def test_a_session_goes_back_to_its_worker() -> None:
    router, a, b = two_workers()
    router.submit(request("r1", [], "s"), lambda event: None)
    home = a if "r1" in a.open else b
    home.say(TokenEvent("r1", finish_reason=FinishReason.STOP))
    router.submit(request("r2", [], "s"), lambda event: None)
    assert "r2" in home.open


def test_warming_is_spread_longest_first() -> None:
    router, a, b = two_workers()
    parts = tuple(part(n, 10 * (n + 1)) for n in range(6))
    router.submit(WarmRequest("w", parts), lambda event: None)
    loads = [
        sum(len(one.token_ids) for one in message.segments)
        for worker in (a, b)
        for message, _ in worker.open.values()
        if isinstance(message, WarmRequest)
    ]
    assert sorted(loads) == [100, 110]


def test_without_a_worker_a_request_ends_at_once() -> None:
    events = list(Router(COSTS).submit(request("r", [1])))
    assert isinstance(events[0], TokenEvent)
    assert events[0].error is not None
    assert events[0].error["code"] == "worker_lost"


@pytest.mark.parametrize(
    ("question", "answers", "joined"),
    [
        (Question.PROBE, [[True, False], [False, False]], [True, False]),
        (
            Question.LOOK,
            [[("cold", 8, False), ("warm", 9, False)], [("warm", 8, False), ("evicted", 9, True)]],
            [("warm", 8, False), ("warm", 9, True)],
        ),
        (Question.USAGE, [{"a": {"free": 1}, "n": 2}] * 2, {"a": {"free": 2}, "n": 4}),
        (Question.USAGE, [{"shadow": None}] * 2, {"shadow": None}),
        (Question.USAGE, [{"shadow": {"n": 1}}, {"shadow": {"n": 4}}], {"shadow": {"n": 5}}),
        (Question.RESUME, [None, None], None),
        (Question.HOLDINGS, [{"num_bytes": 1}, {"num_bytes": 5}], {"num_bytes": 6}),
        (Question.CLEAR, [2, 3], 5),
        (Question.PIN, [None, None], None),
    ],
    ids=lambda value: value.value if isinstance(value, Question) else "",
)
def test_answers_come_together(question: Question, answers: list[Any], joined: Any) -> None:
    assert joined_answer(question, answers) == joined


def ids(events: list[Event]) -> list[object]:
    return [
        event.error["code"] if event.error is not None else event.token_ids
        for event in events
        if isinstance(event, TokenEvent)
    ]


def lost_one(
    numbers: Sequence[int] = range(4), **fields: Any
) -> tuple[Router, list[Event], HandWorker, HandWorker]:
    """A request is at one of two workers: who has it, and who has not."""
    router, a, b = two_workers()
    told: list[Event] = []
    router.submit(replace(request("r", numbers), **fields), told.append)
    return (router, told, a, b) if "r" in a.open else (router, told, b, a)


def test_a_request_whose_worker_died_unheard_is_answered_by_another_and_asks_nobody() -> None:
    router, told, home, other = lost_one(timeout_s=30.0)
    home.die()
    message, _ = other.open["r"]
    assert isinstance(message, EngineRequest)
    assert message.placements == ()
    assert message.timeout_s is not None
    assert message.timeout_s < 30.0
    other.say(TokenEvent("r", (5,), finish_reason=FinishReason.STOP))
    assert ids(told) == [(5,)]
    assert router.tallies()[WorkerId("a")].num_dispatched == 1
    assert router.tallies()[WorkerId("b")].num_dispatched == 1
    assert sum(tally.num_failed for tally in router.tallies().values()) == 1


def test_a_request_goes_to_another_worker_once() -> None:
    router, told, home, other = lost_one()
    home.die()
    router.join(WorkerId("c"), third := HandWorker())
    other.die()
    assert ids(told) == ["worker_lost"]
    assert not third.open


def test_a_request_that_has_spoken_is_not_answered_anew() -> None:
    _, told, home, other = lost_one()
    home.say(TokenEvent("r", (5,)))
    home.die()
    assert ids(told) == [(5,), "worker_lost"]
    assert not other.open


def test_a_cancelled_request_is_not_answered_anew() -> None:
    router, told, home, other = lost_one()
    router.cancel("r")
    home.die()
    assert ids(told) == ["worker_lost"]
    assert not other.open


def test_other_errors_are_the_requests_own() -> None:
    _, told, home, other = lost_one()
    error = {"code": "request_rejected", "message": "", "request_id": "r", "details": {}}
    home.say(TokenEvent("r", finish_reason=FinishReason.ERROR, error=error))
    assert ids(told) == ["request_rejected"]
    assert not other.open


def test_a_request_cancelled_while_it_is_sent_is_cancelled() -> None:
    router, a, _ = two_workers()
    take = a.submit

    def cancelled_on_the_way(message: Any, on_event: Any = None) -> Any:
        router.cancel(message.request_id.partition("/")[0])
        a.cancelled.clear()  # it knew nothing of it yet
        return take(message, on_event)

    a.submit = cancelled_on_the_way  # type: ignore[method-assign]
    router.submit(WarmRequest("w", (part(0),)), lambda event: None)
    assert a.cancelled == ["w/a"]
    a.say(WarmEvent("w/a", done=True))
    router.submit(request("r", []), lambda event: None)
    assert a.cancelled == ["r"]


def test_a_request_that_a_port_refuses_leaves_nothing_booked() -> None:
    router, a, b = two_workers()

    def refuses(message: Any, on_event: Any = None) -> Any:
        raise RequestError("in flight")

    a.submit = b.submit = refuses  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(RequestError, match="in flight"):
            router.submit(request("r", [1, 2]), lambda event: None)
    assert not any(router._books.members.loads_ms().values())
    assert sum(map(len, router.plan(request("x", [1, 2])).cold.values())) == 2


def test_workers_tell_what_they_hold() -> None:
    router, _, _ = two_workers()
    a, b = WorkerId("a"), WorkerId("b")
    names = tuple(EntryName("", part(n).segment_id or "") for n in range(4))  # type: ignore[arg-type]
    router.entries_changed(b, EntriesChanged("b", made=names))
    plan = router.plan(request("x", range(4)))
    assert plan.combine == b
    assert not plan.cold
    router.entries_changed(b, EntriesChanged("b", gone=names[:1]))
    assert sum(map(len, router.plan(request("x", range(4))).cold.values())) == 1
    router.leave(b)
    # what a worker said before it went comes late
    router.entries_changed(b, EntriesChanged("b", made=names))
    assert router.plan(request("x", range(4))).cold == {a: tuple(n.segment_id for n in names)}


def test_a_session_stays_where_its_chain_saves_more_than_another_is_sooner() -> None:
    router, a, b = two_workers()
    long = PromptPart(Role.LEADING, (7,) * 500)

    def turn(name: str) -> EngineRequest:
        trailing = PromptPart(Role.TRAILING, (1, 2))
        return EngineRequest(name, SegmentedPrompt((long, trailing)), session_id="s")

    router.submit(turn("r1"), lambda event: None)
    home, _ = (a, b) if "r1" in a.open else (b, a)
    home.say(TokenEvent("r1", finish_reason=FinishReason.STOP))
    router.submit(request("busy", [1]), lambda event: None)
    router.submit(request("busy2", [2]), lambda event: None)
    router.submit(turn("r2"), lambda event: None)
    assert "r2" in home.open


def test_reading_leaves_out_who_is_gone_and_changing_does_not() -> None:
    router, a, b = two_workers()

    def lost(*_: Any) -> Any:
        raise WorkerLost("gone")

    a.ask = lost  # type: ignore[method-assign]
    b.ask = lambda *_: [True]  # type: ignore[method-assign]
    assert router.ask(Question.PROBE, [part(1)]) == [True]
    with pytest.raises(WorkerLost):
        router.ask(Question.PIN, [part(1)])
    router.leave(WorkerId("a"))
    assert router.ask(Question.PIN, [part(1)]) is None


def test_a_router_keeps_its_books_where_it_is_told_to() -> None:
    members = Membership()  # empty, and so false
    Router(COSTS, members=members).join(WorkerId("a"), HandWorker())
    assert WorkerId("a") in members
