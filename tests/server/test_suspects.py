"""What a dead engine process leaves behind: who is tried again, who alone, who no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.errors import RequestRejected, WorkerLost
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, segment_id
from hypic_sdk.server.engine_link import HOLD_S, SUSPECT_WAIT_S, EngineLink
from hypic_sdk.server.suspects import FORGET_S
from hypic_sdk.transport.control import CancelRequest, RequestsBegun
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import (
    EngineRequest,
    FinishReason,
    SamplingParams,
    TokenEvent,
    WarmEvent,
    WarmRequest,
)

LOST = WorkerLost("the engine process ended")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Pipe:
    """The near end of a channel: what was sent into it."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message: object) -> None:
        self.sent.append(message)

    @property
    def ids(self) -> list[str]:
        return [
            message.request_id for message in self.sent if not isinstance(message, CancelRequest)
        ]


class Stage:
    """A link, the process at its other end, and what listeners were told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.link = EngineLink(self.clock)
        self.told: dict[str, list[Event]] = {}
        self.pipe = Pipe()
        self.start()

    def start(self) -> None:
        self.pipe = Pipe()
        self.link.attach(self.pipe)

    def submit(self, request_id: str, token_id: int = 1) -> None:
        prompt = SegmentedPrompt((PromptPart(Role.TRAILING, (token_id,)),))
        self.send(EngineRequest(request_id, prompt, SamplingParams(4)))

    def send(self, message: EngineRequest | WarmRequest) -> None:
        self.link.submit(message, self.told.setdefault(message.request_id, []).append)

    def begin(self, *request_ids: str) -> None:
        self.link.take(RequestsBegun(request_ids))

    def speak(self, request_id: str) -> None:
        self.link.take(TokenEvent(request_id, (5,)))

    def end(self, request_id: str) -> None:
        self.link.take(TokenEvent(request_id, finish_reason=FinishReason.LENGTH))

    def die(self) -> None:
        self.link.lose_process(LOST)

    def ending(self, request_id: str) -> str | None:
        """How a request ended: "well", an error's code, or not at all."""
        lasts = [e for e in self.told[request_id] if e.finish_reason is not None]
        assert len(lasts) <= 1, "a request ended twice"
        if not lasts:
            return None
        return "well" if lasts[0].error is None else lasts[0].error["code"]


def test_who_was_not_in_the_batch_is_sent_again_beside_others():
    stage = Stage()
    for name in ("a", "b"):
        stage.submit(name, ord(name))
    stage.die()
    assert stage.pipe.ids == ["a", "b"]
    assert [stage.ending("a"), stage.ending("b")] == [None, None]
    stage.start()
    assert stage.pipe.ids == ["a", "b"]
    for name in ("a", "b"):
        stage.begin(name)
        stage.end(name)
        assert stage.ending(name) == "well"


def test_a_suspect_runs_alone_and_lets_the_others_go_first():
    stage = Stage()
    for name in "abc":
        stage.submit(name, ord(name))
    stage.begin("a", "b")
    stage.die()
    stage.start()
    assert stage.pipe.ids == ["c"]
    stage.submit("d", 100)
    assert stage.pipe.ids == ["c", "d"]
    stage.end("c")
    assert stage.pipe.ids == ["c", "d"]
    stage.end("d")
    assert stage.pipe.ids == ["c", "d", "a"]
    stage.submit("e", 101)
    assert stage.pipe.ids == ["c", "d", "a"]  # nothing beside a suspect
    stage.end("a")
    assert stage.pipe.ids == ["c", "d", "a", "e"]
    stage.end("e")
    assert stage.pipe.ids == ["c", "d", "a", "e", "b"]
    stage.end("b")
    assert [stage.ending(name) for name in "abcde"] == ["well"] * 5


def test_a_second_death_is_the_end_of_it_and_of_all_that_ask_the_same():
    stage = Stage()
    stage.submit("killer", 7)
    stage.begin("killer")
    stage.die()
    stage.start()
    assert stage.pipe.ids == ["killer"]
    stage.begin("killer")
    stage.die()
    assert stage.ending("killer") == RequestRejected.code
    stage.start()
    assert stage.pipe.ids == []
    stage.submit("again", 7)
    assert stage.ending("again") == RequestRejected.code
    assert stage.pipe.ids == []
    stage.submit("other", 8)
    assert stage.pipe.ids == ["other"]
    stage.clock.now_s += FORGET_S + 1
    stage.end("other")
    stage.submit("much later", 7)
    assert stage.ending("much later") is None
    assert stage.pipe.ids == ["other", "much later"]


def test_who_has_been_heard_of_ends_at_once_and_is_known_when_it_comes_again():
    stage = Stage()
    stage.submit("stream", 7)
    stage.begin("stream")
    stage.speak("stream")
    stage.die()
    assert stage.ending("stream") == WorkerLost.code
    stage.start()
    assert stage.pipe.ids == []
    stage.submit("busy", 8)
    stage.submit("stream 2", 7)
    assert stage.pipe.ids == ["busy"]
    stage.end("busy")
    assert stage.pipe.ids == ["busy", "stream 2"]
    stage.end("stream 2")
    # it ended well: no suspect any more
    stage.submit("busy 2", 8)
    stage.submit("stream 3", 7)
    assert stage.pipe.ids[-2:] == ["busy 2", "stream 3"]


def test_one_death_counts_once_however_many_ask_the_same():
    stage = Stage()
    for number in range(5):
        stage.submit(f"same {number}", 7)
    stage.begin(*(f"same {number}" for number in range(5)))
    stage.die()
    stage.start()
    for number in range(5):
        assert stage.pipe.ids[-1] == f"same {number}"
        stage.end(f"same {number}")
        assert stage.ending(f"same {number}") == "well"


def test_the_word_that_a_request_began_may_be_lost_with_the_process():
    """Then it takes one death more, and no more than that."""
    stage = Stage()
    stage.submit("killer", 7)
    for _ in range(2):
        stage.die()
        stage.start()
        assert stage.ending("killer") is None
    stage.die()
    assert stage.ending("killer") == RequestRejected.code


def test_others_wait_for_a_suspect_only_when_it_has_waited_long():
    stage = Stage()
    stage.submit("suspect", 7)
    stage.begin("suspect")
    stage.speak("suspect")
    stage.die()
    stage.start()
    stage.submit("y0", 1)
    stage.submit("suspect again", 7)
    for number in range(1, 6):  # always somebody in flight
        stage.clock.now_s += SUSPECT_WAIT_S / 5
        stage.submit(f"y{number}", 2)
        stage.end(f"y{number - 1}")
    assert stage.pipe.ids == [f"y{number}" for number in range(6)]
    stage.clock.now_s += 1
    stage.submit("late", 3)
    assert stage.pipe.ids[-1] == "y5"
    stage.end("y5")
    assert stage.pipe.ids[-1] == "suspect again"
    stage.end("suspect again")
    assert stage.pipe.ids[-1] == "late"


def test_waiting_has_an_end():
    stage = Stage()
    stage.submit("a", 1)
    stage.die()
    stage.clock.now_s += HOLD_S + 1
    stage.link.tick()
    assert stage.ending("a") == WorkerLost.code
    stage.submit("while it starts", 2)
    assert stage.ending("while it starts") == WorkerLost.code
    stage.start()
    stage.submit("b", 3)
    stage.begin("b")
    stage.die()
    stage.link.lose_all(WorkerLost("the engine can not start"))
    assert stage.ending("b") == WorkerLost.code
    assert stage.link.num_in_flight == 0


def test_what_waits_can_be_cancelled():
    stage = Stage()
    for name in "ab":
        stage.submit(name, ord(name))
    stage.begin("a", "b")
    stage.die()
    stage.start()
    assert stage.pipe.ids == ["a"]
    stage.link.cancel("b")
    assert stage.ending("b") == "request_cancelled"
    stage.link.cancel("a")
    assert isinstance(stage.pipe.sent[-1], CancelRequest)
    stage.end("a")
    assert stage.link.num_in_flight == 0


def test_a_warm_request_is_a_suspect_too_and_is_not_sent_again_by_itself():
    stage = Stage()
    warm = WarmRequest("w", (PromptPart(Role.INNER, (1, 2), segment_id("x")),))
    stage.send(warm)
    stage.begin("w")
    stage.die()
    (event,) = stage.told["w"]
    assert isinstance(event, WarmEvent)
    assert event.error["code"] == WorkerLost.code
    stage.start()
    stage.submit("r", 1)
    stage.send(WarmRequest("w2", warm.segments))
    assert stage.pipe.ids == ["r"]
    stage.end("r")
    assert stage.pipe.ids == ["r", "w2"]
    stage.begin("w2")
    stage.die()
    assert stage.told["w2"][-1].error["code"] == RequestRejected.code


@given(
    killers=st.sets(st.integers(0, 9), max_size=3),
    order=st.permutations(range(10)),
    batch_size=st.integers(1, 10),
)
def test_whatever_the_killers_every_other_request_ends_well(killers, order, batch_size):
    """An engine that dies whenever it begins a killer: no innocent is rejected, no killer lives."""
    stage = Stage()
    for number in order:
        stage.submit(f"r{number}", 50 + number)
    num_deaths = 0
    while stage.link.num_in_flight:
        waiting = [name for name in stage.pipe.ids if stage.ending(name) is None]
        batch = waiting[:batch_size]
        assert batch, "nobody is sent although requests are open"
        stage.begin(*batch)
        if any(name == f"r{killer}" for killer in killers for name in batch):
            num_deaths += 1
            stage.die()
            stage.start()
        else:
            for name in batch:
                stage.end(name)
    for number in range(10):
        want = RequestRejected.code if number in killers else "well"
        assert stage.ending(f"r{number}") == want
    assert num_deaths <= 2 * len(killers)


def test_a_request_of_an_open_id_is_not_taken():
    stage = Stage()
    stage.submit("a")
    with pytest.raises(Exception, match="in flight"):
        stage.submit("a")
