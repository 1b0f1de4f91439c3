"""When a bucket is captured: what eager forwards and captures take is told by a clock of ours."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.config import EngineConfig
from hypic_sdk.engine import capture_rule
from hypic_sdk.engine.capture_rule import CAPTURE_S, SHARE, CaptureRule
from hypic_sdk.engine.context import TableContext
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.graph_tables import Bucket
from hypic_sdk.engine.graphs import Rows
from hypic_sdk.engine.runner import Runner
from hypic_sdk.errors import ConfigError
from tests.engine.harness import answer, engine_of, logprobs
from tests.engine.prompts import prompt_of, tokens
from tests.engine.replayed import Replayed, kernels_in_interpreter

EAGER_S, TOOK_S, LOOK_S = 1 / 16, 3 / 8, 1 / 8192  # sums of these are exact


def bucket(rows: int) -> Bucket:
    return Bucket(rows, 16, (128, 0), 16, 0)


class World:
    """A rule, and a clock that goes on by what is run."""

    def __init__(self, asks: int | None = None) -> None:
        self.now_s = 100.0
        self.rule = CaptureRule(asks, lambda: self.now_s)
        self.captured: list[int] = []
        self.lost_s: dict[int, float] = {}
        self.captures_s: list[tuple[float, float]] = []  # beginning and end

    def capture(self, rows: int, took_s: float) -> None:
        self.rule.begin()
        began_s, self.now_s = self.now_s, self.now_s + took_s
        assert self.rule.captured() == pytest.approx(took_s)
        self.captured.append(rows)
        self.captures_s.append((began_s, self.now_s))

    def ask(self, rows: int, eager_s: float = EAGER_S, took_s: float = TOOK_S) -> bool:
        """One batch of that bucket; whether it was captured for it."""
        if rows in self.captured:
            self.now_s += LOOK_S
            return False
        if self.rule.is_worth(bucket(rows)):
            self.capture(rows, took_s)
            return True
        self.rule.begin()
        self.now_s += eager_s
        self.rule.ran_eagerly()
        self.lost_s[rows] = self.lost_s.get(rows, 0.0) + eager_s
        return False


@pytest.mark.parametrize("asks", [1, 2, 5])
def test_it_may_be_told_at_which_ask(asks):
    world = World(asks)
    assert [world.ask(16) for _ in range(asks)] == [*[False] * (asks - 1), True]
    assert [world.ask(32) for _ in range(asks)][-1], "and no pause is made"


def test_a_bucket_is_captured_once_its_launches_took_as_long():
    world = World()
    asked = 1
    while not world.ask(16):
        asked += 1
    # nothing is known of captures yet; the ask that is captured ran eagerly no more
    assert asked == round(CAPTURE_S / EAGER_S) + 1


def test_what_comes_once_is_never_captured():
    world = World()
    assert not any(world.ask(rows) for rows in range(16, 16_000, 16))


def test_the_first_capture_compiles_and_is_no_measure():
    world = World()
    world.capture(1, 30.0)
    world.capture(2, 0.25)
    world.now_s += 1000.0
    asked = 1
    while not world.ask(16):
        asked += 1
    assert asked == round(0.25 / EAGER_S) + 1


@pytest.mark.parametrize("rest", [(0.25, 0.75), (0.75, 0.25), (0.75, 0.25, 0.5)])
def test_a_capture_costs_the_least_of_those_behind_the_first(rest):
    """However quick the first was, and however slow the last."""
    world = World()
    for rows, took_s in enumerate((1 / 64, *rest)):
        world.capture(rows + 1, took_s)
    world.now_s += 1000.0
    asked = 1
    while not world.ask(16):
        asked += 1
    assert asked == round(min(rest) / EAGER_S) + 1


def test_an_eager_forward_that_compiles_is_no_measure():
    world = World()
    world.ask(16)
    assert not world.ask(32, eager_s=20.0)
    assert not world.ask(32)


def test_after_a_capture_there_is_none_for_a_while():
    world = World()
    for _ in range(20):
        world.ask(16)
        world.ask(32)
    assert world.captured == [16], "both had paid"
    world.now_s = world.captures_s[0][1] + TOOK_S * (1 / SHARE - 1) - 1e-6
    assert not world.ask(32)
    assert world.ask(32)


@given(
    asked=st.lists(st.integers(1, 12), min_size=1, max_size=400),
    took_s=st.floats(0.05, 2.0),
    eager_s=st.floats(0.001, 0.2),
)
def test_captures_take_no_more_than_eager_forwards_and_their_share(asked, took_s, eager_s):
    """Whatever is asked for: of each bucket, and of the time from one capture to the next."""
    world = World()
    for rows in asked:
        world.ask(rows, eager_s, took_s)
    for number, rows in enumerate(world.captured):
        believed_s = CAPTURE_S if number < 2 else took_s
        assert world.lost_s[rows] >= believed_s * (1 - 1e-9)
    for (began_s, ended_s), (next_s, _) in zip(
        world.captures_s, world.captures_s[1:], strict=False
    ):
        assert ended_s - began_s <= SHARE * (next_s - began_s) + 1e-9


@given(asked=st.lists(st.integers(1, 6), max_size=300))
def test_the_same_asks_are_captured_at_the_same_moments(asked):
    first, second = World(), World()
    for rows in asked:
        assert first.ask(rows) == second.ask(rows)
    assert first.captures_s == second.captures_s


def test_no_ask_before_the_first_is_refused():
    with pytest.raises(ConfigError, match="capture_asks must be at least 1"):
        EngineConfig(capture_asks=0)


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # of the interpreter's numpy
def test_an_engine_goes_by_it_and_its_bits_do_not(monkeypatch):
    """A prompt, and then decode rows: eager until they have paid for their graph."""
    now_s = 0.0
    forward = Runner._forward

    def timed(self: Runner, context: TableContext, *, has_logits: bool) -> Rows:
        nonlocal now_s
        now_s += EAGER_S
        return forward(self, context, has_logits=has_logits)

    monkeypatch.setattr(Runner, "_forward", timed)
    monkeypatch.setattr(capture_rule, "CAPTURE_S", 4 * EAGER_S)
    found = []
    with kernels_in_interpreter():
        for has_graphs in (True, False):
            engine = engine_of(dtype=torch.float32, pair="float16", step_tokens=128)
            if has_graphs:
                engine._runner.use_graphs(Replayed(), CaptureRule(None, lambda: now_s))
            found.append(logprobs(answer(engine, prompt_of(tokens(1, 2)), max_tokens=9)))
            if has_graphs:
                check_counts(engine)
    assert torch.equal(*found)


def check_counts(engine: Engine) -> None:
    counts = engine.graph_counts
    assert counts is not None
    assert {reason.name: count for reason, count in counts.eager.items()} == {"NEW_SHAPE": 4}
    assert (counts.num_captured, counts.num_replayed) == (1, 5)
