"""A router over workers that come, go and answer in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hypic_sdk.errors import WorkerLost
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, segment_id
from hypic_sdk.router.answers import joined_answer
from hypic_sdk.router.assignment import WorkerId
from hypic_sdk.router.costs import CostModel
from hypic_sdk.router.membership import Membership
from hypic_sdk.router.router import Router
from hypic_sdk.transport.control import Question
from hypic_sdk.transport.events import Event, failed
from hypic_sdk.transport.messages import (
    EngineRequest,
    FinishReason,
    SegmentStatus,
    TokenEvent,
    WarmEvent,
    WarmRequest,
)

COSTS = CostModel(prefill_ms=1, prefill_ms_per_token=1, transfer_ms=0.1, transfer_ms_per_token=0)


def part(number: int, num_tokens: int = 50) -> PromptPart:
    return PromptPart(Role.INNER, (number,) * num_tokens, segment_id(str(number)))


def request(name: str, numbers: Sequence[int], session: str | None = None) -> EngineRequest:
    trailing = PromptPart(Role.TRAILING, (1, 2, 3))
    prompt = SegmentedPrompt((*map(part, numbers), trailing))
    return EngineRequest(name, prompt, session_id=session)


class HandWorker:
    """A port whose events a test sends by hand."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[EngineRequest | WarmRequest, Callable[[Event], None]]] = {}
        self.cancelled: list[str] = []
        self.is_gone = False

    def submit(
        self,
        message: EngineRequest | WarmRequest,
        on_event: Callable[[Event], None] | None = None,
    ) -> Iterator[Event]:
        assert on_event is not None
        if self.is_gone:
            lost = WorkerLost("gone")
            on_event(failed(message.request_id, lost, is_warm=isinstance(message, WarmRequest)))
        else:
            self.open[message.request_id] = (message, on_event)
        return iter(())

    def say(self, event: Event) -> None:
        _, tell = self.open[event.request_id]
        if isinstance(event, WarmEvent) and event.done:
            del self.open[event.request_id]
        if isinstance(event, TokenEvent) and event.finish_reason is not None:
            del self.open[event.request_id]
        tell(event)

    def die(self) -> None:
        self.is_gone = True
        for name, (message, _) in list(self.open.items()):
            lost = WorkerLost("gone")
            self.say(failed(name, lost, is_warm=isinstance(message, WarmRequest)))

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def finish(self, request_id: str, reply_index: int = 0) -> None:
        self.cancelled.append(request_id)

    def probe(self, parts: Sequence[PromptPart], namespace: str) -> Sequence[bool]:
        return [False] * len(parts)

    def ask(
        self,
        question: Question,
        parts: Sequence[PromptPart] = (),
        namespace: str = "",
        number: int = 0,
    ) -> Any:
        raise WorkerLost("not asked here")

    def delete(self, parts: Sequence[PromptPart], namespace: str) -> None:
        pass


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
    def without_requests_nobody_is_busy(self) -> None:
        if not any(worker.open for worker in self.workers.values()):
            assert not any(self.members.loads_ms().values())


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
        (Question.HOLDINGS, [{"num_bytes": 1}, {"num_bytes": 5}], {"num_bytes": 6}),
        (Question.CLEAR, [2, 3], 5),
        (Question.PIN, [None, None], None),
    ],
    ids=lambda value: value.value if isinstance(value, Question) else "",
)
def test_answers_come_together(question: Question, answers: list[Any], joined: Any) -> None:
    assert joined_answer(question, answers) == joined
