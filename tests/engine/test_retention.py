"""Pins, priorities and limits: what stays when room is needed, and that the books stay right."""

from __future__ import annotations

import random

import pytest

from hypic_sdk.engine.engine import Engine
from hypic_sdk.errors import PinBudgetExhausted
from hypic_sdk.prompt.segment import PromptPart
from hypic_sdk.transport.control import Held
from hypic_sdk.transport.messages import SegmentStatus, WarmEvent, WarmRequest
from tests.engine.harness import answer, drain, engine_of, request_of
from tests.engine.prompts import inner, prompt_of, tokens

LENGTH = 40


def document(seed: int, length: int = LENGTH) -> PromptPart:
    return inner(tokens(seed, length))


def small_engine(num_segments: int = 12) -> Engine:
    """Room for so many documents, about."""
    probe = engine_of()
    num_bytes = probe.look([document(0)])[0].num_bytes
    return engine_of(budget_bytes=num_segments * num_bytes, expected_segment_tokens=LENGTH)


def warm(engine: Engine, *parts: PromptPart, namespace: str = "", background: bool = False) -> None:
    name = f"w{random.random()}"
    engine.warm(WarmRequest(name, parts, namespace, background))
    while engine.has_work:
        engine.step()
    engine.check()


def held(engine: Engine, *parts: PromptPart, namespace: str = "") -> list[bool]:
    return [one.held is Held.WARM for one in engine.look(parts, namespace)]


def crowd(engine: Engine, number: int = 40) -> None:
    for seed in range(1000, 1000 + number):
        warm(engine, document(seed))


class TestPins:
    def test_what_is_pinned_outlives_a_crowd_and_what_is_not_does_not(self):
        engine = small_engine()
        first, second = document(1), document(2)
        warm(engine, first, second)
        engine.pin([first])
        crowd(engine)
        assert held(engine, first, second) == [True, False]
        assert [one.is_pinned for one in engine.look([first, second])] == [True, False]
        assert engine.look([second])[0].held is Held.EVICTED
        engine.unpin([first])
        crowd(engine)
        assert held(engine, first) == [False]
        assert engine.usage().num_leases == 0

    def test_an_entry_is_pinned_as_soon_as_it_is_made(self):
        engine = small_engine()
        first = document(1)
        engine.pin([first])
        assert engine.look([first])[0].held is Held.COLD
        warm(engine, first)
        crowd(engine)
        assert held(engine, first) == [True]

    def test_also_one_that_a_request_made(self):
        engine = small_engine()
        first = document(1)
        engine.pin([first])
        engine.submit(request_of(prompt_of(first, (5,))))
        while engine.has_work:
            engine.step()
        crowd(engine)
        assert held(engine, first) == [True]

    def test_pins_have_a_budget_and_a_refusal_names_both_numbers(self):
        engine = small_engine()
        pinned = 0
        refused: PinBudgetExhausted | None = None
        while refused is None:
            try:
                engine.pin([document(pinned)])
                pinned += 1
            except PinBudgetExhausted as error:
                refused = error
        details = refused.details
        assert details["needed_bytes"] > details["limit_bytes"] > 0
        assert 1 < pinned < 12
        # a whole refused call pins nothing
        more = [document(seed) for seed in range(50, 70)]
        with pytest.raises(PinBudgetExhausted):
            engine.pin(more)
        assert not any(one.is_pinned for one in engine.look(more))
        # again what is pinned costs nothing
        engine.pin([document(seed) for seed in range(pinned)])
        engine.unpin([document(0)])
        engine.pin([document(99)])

    def test_deleting_and_clearing_reach_pinned_entries(self):
        engine = small_engine()
        first, second = document(1), document(2)
        warm(engine, first, second)
        engine.pin([first, second])
        engine.delete([first])
        assert [one.held for one in engine.look([first])] == [Held.COLD]
        assert not engine.look([first])[0].is_pinned
        engine.clear("")
        assert held(engine, second) == [False]
        assert engine.usage().num_leases == 0
        # a pin outlives the clearing: it is a wish about what comes
        warm(engine, first, second)
        crowd(engine)
        assert held(engine, first, second) == [False, True]
        engine.check()

    def test_short_segments_are_told_and_cost_nothing(self):
        engine = engine_of()
        short = document(1, 3)
        engine.pin([short])
        [look] = engine.look([short])
        assert (look.held, look.num_bytes, look.is_pinned) == (Held.NOT_KEPT, 0, False)


def test_of_two_entries_the_one_of_lower_priority_goes_first():
    engine = small_engine()
    low, high = document(1), document(2)
    engine.set_priority([high], 90)
    warm(engine, high)
    warm(engine, low)  # used later, and still it goes first
    engine.set_priority([low], 10)
    crowd(engine, 12)
    assert held(engine, low, high) == [False, True]


class TestLimits:
    def test_a_namespace_is_held_to_its_bytes(self):
        engine = small_engine(40)
        one = engine.look([document(0)])[0].num_bytes
        engine.set_limit("ours", 5 * one)
        others = [document(seed) for seed in range(100, 105)]
        warm(engine, *others, namespace="theirs")
        for seed in range(12):
            warm(engine, document(seed), namespace="ours")
            assert engine.holdings("ours").num_bytes <= 5 * one
        # the last ones, and nobody else's
        assert held(engine, *map(document, range(12)), namespace="ours").count(True) == 5
        assert all(held(engine, *map(document, range(7, 12)), namespace="ours"))
        assert all(held(engine, *others, namespace="theirs"))
        assert engine.holdings("theirs").num_segments == 5
        assert engine.holdings("nobody").num_bytes == 0

    def test_requests_too(self):
        engine = engine_of()
        one = engine.look([document(0)])[0].num_bytes
        engine.set_limit("", 3 * one)
        for seed in range(6):
            answer(engine, prompt_of(document(seed), document(seed + 1), (5, 6, 7)))
        assert engine.holdings("").num_bytes <= 3 * one


class TestBackground:
    def test_live_requests_hardly_notice_it(self):
        """Steps from a cold request to its first token, beside nothing and beside each kind."""

        def steps(*, background: bool | None) -> int:
            engine = engine_of(step_tokens=64, chunk_tokens=64)
            if background is not None:
                parts = tuple(document(seed, 64) for seed in range(30))
                engine.warm(WarmRequest("w", parts, background=background))
                for _ in range(3):
                    engine.step()
            message = request_of(prompt_of(document(50, 64 * 4), tokens(7, 64 * 4)))
            engine.submit(message)
            for number in range(1, 500):
                if any(event.request_id == message.request_id for event in engine.step()):
                    return number
            raise AssertionError("no token came")

        alone = steps(background=None)
        beside_background = steps(background=True)
        assert alone <= beside_background <= alone + 2
        assert steps(background=False) > beside_background

    def test_it_ends_under_a_stream_of_requests(self):
        engine = engine_of(step_tokens=64, chunk_tokens=64)
        parts = tuple(document(seed, 64) for seed in range(4))
        engine.warm(WarmRequest("w", parts, background=True))
        events = []
        for seed in range(200):
            engine.submit(request_of(prompt_of(tokens(100 + seed, 60)), max_tokens=2))
            events += engine.step()
            if any(isinstance(event, WarmEvent) and event.done for event in events):
                break
        else:
            raise AssertionError("the background job starves")
        drain(engine)

    def test_a_request_that_waits_for_it_makes_it_urgent(self):
        engine = engine_of(step_tokens=64, chunk_tokens=64)
        engine.warm(WarmRequest("w", (document(1, 64 * 6),), background=True))
        engine.step()
        message = request_of(prompt_of(document(1, 64 * 6), (5,)))
        engine.submit(message)
        for _ in range(9):
            if any(event.request_id == message.request_id for event in engine.step()):
                break
        else:
            raise AssertionError("it waits as long as the background job")
        drain(engine)

    def test_a_normal_job_passes_it(self):
        engine = engine_of(step_tokens=64, chunk_tokens=64)
        slow = tuple(document(seed, 64) for seed in range(20))
        engine.warm(WarmRequest("slow", slow, background=True))
        engine.step()
        engine.warm(WarmRequest("quick", (document(60, 64),)))
        events = drain(engine)
        order = [event.request_id for event in events if event.status is SegmentStatus.COLD]
        assert order.index("quick") <= 2
