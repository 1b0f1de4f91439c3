"""What a dead engine process leaves behind: who is tried again, who alone, who no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.errors import RequestRejected, WorkerLost
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, segment_id
from hypic_sdk.server.engine_link import ALONE_S, RETRY_S, SUSPECT_WAIT_S, EngineLink
from hypic_sdk.server.suspects import FORGET_S, Suspects
from hypic_sdk.transport.control import CancelRequest, RequestsBegun
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import (
    EngineRequest,
    FinishReason,
    Placement,
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

    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.link.tick()

    def obey_cancels(self) -> None:
        """As an engine does: each ends."""
        for message in list(self.pipe.sent):
            if isinstance(message, CancelRequest):
                self.pipe.sent.remove(message)
                self.end(message.request_id)

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


def test_a_suspect_that_is_asked_for_again_is_not_kept_out_by_a_busy_engine():
    stage = Stage()
    stage.submit("suspect", 7)
    stage.begin("suspect")
    stage.speak("suspect")
    stage.die()
    stage.start()
    stage.submit("y0", 1)
    stage.submit("suspect again", 7)
    for number in range(1, 6):  # always somebody in flight
        stage.clock.now_s += SUSPECT_WAIT_S / 6
        stage.submit(f"y{number}", 2)
        stage.end(f"y{number - 1}")
    assert stage.pipe.ids == [f"y{number}" for number in range(6)]
    stage.wait(SUSPECT_WAIT_S / 6 + 0.1)
    assert stage.pipe.ids[-1] == "suspect again"
    stage.submit("late", 3)
    assert stage.pipe.ids[-1] == "suspect again"
    stage.wait(ALONE_S + 0.1)  # nor does it keep others out
    assert stage.pipe.ids[-1] == "late"
    assert stage.ending("suspect again") is None
    stage.submit("later", 3)
    stage.speak("suspect again")
    assert stage.pipe.ids[-1] == "later"


def test_all_that_an_engine_had_is_answered_in_time_and_nobody_else_waits_for_it():
    """Twenty cold prompts that had not spoken; small ones that come meanwhile."""
    stage = Stage()
    names = [f"cold {number}" for number in range(20)]
    for number, name in enumerate(names):
        stage.submit(name, number)
    stage.begin(*names)
    stage.die()
    stage.wait(4.0)  # until another engine is there
    stage.start()
    assert stage.pipe.ids == names[:1]
    stage.wait(ALONE_S)
    stage.submit("small", 100)
    waited_s = 0.0
    while "small" not in stage.pipe.ids:
        stage.wait(0.1)
        stage.obey_cancels()
        waited_s += 0.1
    assert waited_s <= ALONE_S + 0.3
    assert stage.ending(names[0]) == WorkerLost.code  # it was in the way
    stage.end("small")
    assert stage.pipe.ids[-1] == names[1]
    stage.speak(names[1])
    stage.wait(RETRY_S)
    stage.obey_cancels()
    assert [stage.ending(name) for name in names[2:]] == [WorkerLost.code] * 18
    assert stage.ending(names[1]) is None, "who speaks is let speak"
    stage.end(names[1])
    assert stage.ending(names[1]) == "well"
    assert stage.link.num_in_flight == 0


def test_a_suspect_that_is_given_up_ends_once_whatever_becomes_of_it():
    for becomes in ("ends", "dies", "can not start"):
        stage = Stage()
        stage.submit("cold", 1)
        stage.begin("cold")
        stage.die()
        stage.start()
        stage.wait(RETRY_S + 0.1)
        assert stage.ending("cold") == WorkerLost.code
        if becomes == "ends":
            stage.end("cold")
        elif becomes == "dies":
            stage.die()
        else:
            stage.link.lose_all(LOST)
        assert stage.ending("cold") == WorkerLost.code
        assert stage.link.num_in_flight == 0


def test_deaths_beside_others_are_no_proof_until_the_third():
    """Whoever kills the engine from outside does not make the prompts that it had unwelcome."""
    stage = Stage()
    for number in range(3):
        for name in ("a", "b"):
            stage.submit(f"{name}{number}", ord(name))
            stage.wait(SUSPECT_WAIT_S + 0.1)
            stage.begin(f"{name}{number}")
            stage.speak(f"{name}{number}")
        stage.die()
        stage.start()
        expected = RequestRejected.code if number == 2 else WorkerLost.code
        assert [stage.ending(f"{name}{number}") for name in "ab"] == [expected] * 2


def test_waiting_has_an_end():
    stage = Stage()
    stage.submit("a", 1)
    stage.die()
    stage.wait(RETRY_S + 1)
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


class Two:
    """Two links of a fleet, and a request that goes from one to the other as a router sends it."""

    def __init__(self) -> None:
        clock = Clock()
        suspects = Suspects(clock)
        self.pipes = [Pipe(), Pipe()]
        self.links = [EngineLink(clock, suspects=suspects, waits=False) for _ in self.pipes]
        for link, pipe in zip(self.links, self.pipes, strict=True):
            link.attach(pipe)
        self.told: list[Event] = []

    def send(self, place: int, name: str, token_id: int = 1, **fields: object) -> None:
        prompt = SegmentedPrompt((PromptPart(Role.TRAILING, (token_id,)),))
        message = EngineRequest(name, prompt, SamplingParams(4), **fields)
        self.links[place].submit(message, self.told.append)

    def codes(self) -> list[str]:
        return [event.error["code"] for event in self.told if event.error is not None]


@pytest.mark.parametrize("is_heard_of", [True, False])
def test_a_request_that_ended_two_engines_of_a_fleet_is_rejected(is_heard_of: bool) -> None:
    two = Two()
    two.send(0, "r", timeout_s=30.0, placements=(Placement(segment_id("x"), "w1"),))
    if is_heard_of:
        two.links[0].take(RequestsBegun(("r",)))
    two.links[0].lose_process(LOST)
    assert two.codes() == ["worker_lost"]
    # with what is left of its time, and without hints: the same request for all that
    two.send(1, "r", timeout_s=29.0)
    if is_heard_of:
        two.links[1].take(RequestsBegun(("r",)))
    two.links[1].lose_process(LOST)
    two.links[0].attach(two.pipes[0])
    two.send(0, "again")
    expected = "request_rejected" if is_heard_of else "worker_lost"
    assert two.codes()[1] == expected
    if not is_heard_of:  # twice nobody had heard of it: the second time counts as begun
        two.links[0].lose_process(LOST)
        two.links[1].attach(two.pipes[1])
        two.send(1, "once more")
    assert two.codes()[-1] == "request_rejected"


def test_a_suspect_is_alone_on_another_engine_of_the_fleet_as_well() -> None:
    two = Two()
    two.send(1, "other", 2)
    two.send(0, "r")
    two.links[0].take(RequestsBegun(("r",)))
    two.links[0].lose_process(LOST)
    two.send(1, "r")
    assert two.pipes[1].ids == ["other"]
    two.links[1].take(TokenEvent("other", finish_reason=FinishReason.LENGTH))
    assert two.pipes[1].ids == ["other", "r"]


def test_what_waits_for_its_turn_in_a_fleet_goes_with_its_engine() -> None:
    two = Two()
    two.send(0, "r")
    two.links[0].take(RequestsBegun(("r",)))
    two.links[0].lose_process(LOST)
    two.send(1, "other", 2)
    two.send(1, "r")  # held: it is to be alone
    two.links[1].lose_process(LOST)
    assert two.codes() == ["worker_lost"] * 3
    assert two.links[1].num_in_flight == 0
