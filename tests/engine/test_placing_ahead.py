"""Gaps of a forward are placed once: before a graph's tables are prepared, else as part of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hypic_sdk.engine import context, runner
from hypic_sdk.engine.capture_rule import CaptureRule
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.graph_tables import Eager
from hypic_sdk.engine.graphs import GraphRunner
from tests.engine.harness import engine_of
from tests.engine.prompts import inner, prompt_of, tokens
from tests.engine.replayed import Replayed, answers, kernels_in_interpreter, prompts

PLACED, PREPARED, PLACED_WITHIN = "placed", "prepared", "placed within the forward"


@pytest.fixture(autouse=True)
def patch() -> Iterator[pytest.MonkeyPatch]:
    with kernels_in_interpreter() as patch:
        yield patch


def engine(asks: int | None) -> Engine:
    """With graphs of shapes that were asked for so often; none: without."""
    made = engine_of(dtype=torch.float32, pair="float16", step_tokens=128)
    if asks is not None:
        made._runner.use_graphs(Replayed(), CaptureRule(asks=asks))
    return made


@pytest.fixture
def seen(patch: pytest.MonkeyPatch) -> list[str]:
    """What is done of placing and preparing, in order."""
    seen: list[str] = []
    place, prepare = runner.place_gaps, GraphRunner.prepare

    def watched(name: str):
        def place_gaps(*args: object) -> None:
            seen.append(name)
            place(*args)

        return place_gaps

    def watched_prepare(self: GraphRunner, *args: object) -> object:
        seen.append(PREPARED)
        return prepare(self, *args)

    patch.setattr(runner, "place_gaps", watched(PLACED))
    patch.setattr(context, "place_gaps", watched(PLACED_WITHIN))
    patch.setattr(GraphRunner, "prepare", watched_prepare)
    return seen


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # of the interpreter's numpy
@pytest.mark.parametrize(
    ("asks", "reason"), [(1, None), (9, Eager.NEW_SHAPE)], ids=["replayed", "eager for once"]
)
def test_gaps_are_placed_before_the_tables_are_prepared_and_only_there(asks, reason, seen):
    """Also where there turns out to be no graph: every eager forward has the same bits."""
    batches = [prompts(20)[1:2]]
    placing = engine(asks)
    got = answers(placing, batches)
    # behind the segments that were warmed: the stretch with gaps, then a decode row
    assert seen[-3:] == [PLACED, PREPARED, PREPARED]
    assert seen.count(PLACED) == 1
    assert PLACED_WITHIN not in seen
    counts = placing._runner.graph_counts
    assert counts is not None
    assert (counts.num_replayed == 0) == (reason is not None)
    assert set(counts.eager) == {Eager.COLD_ROWS, *([] if reason is None else [reason])}
    for mine, right in zip(got, answers(engine(None), batches), strict=True):
        assert torch.equal(mine, right)


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
@pytest.mark.parametrize("asks", [None, 1], ids=["no graphs", "too many rows for a walk"])
def test_a_forward_that_no_graph_can_run_places_its_gaps_itself(asks, seen, patch):
    patch.setattr("hypic_sdk.engine.graph_tables.LONGEST_WALK", 16)
    batches = [[prompt_of(inner(tokens(1, 40)), tokens(2, 30))]]
    answers(engine(asks), batches, 1)
    assert seen.count(PLACED_WITHIN) == 1
    assert PLACED not in seen
