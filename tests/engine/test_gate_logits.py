"""Gates of the gated delta rule on their way through an engine: who makes them, and their bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

import pytest
import torch

from hypic_sdk.engine.context import TableContext
from hypic_sdk.engine.engine import Engine
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.kernels.delta_gates import op as gates_op
from hypic_sdk.kernels.live_scan import tiles
from hypic_sdk.models.tiny_hybrid import build_tiny
from tests.engine.harness import engine_of
from tests.engine.replayed import answers, kernels_in_interpreter, prompts, with_graphs

LAYERS = "LAL"


@pytest.fixture(autouse=True)
def patch() -> Iterator[pytest.MonkeyPatch]:
    with kernels_in_interpreter() as patch:
        yield patch


@dataclass
class Launches:
    """Of `delta_gates`, one number a linear layer of a forward."""

    of_decode: list[int] = field(default_factory=list)
    of_others: list[int] = field(default_factory=list)


def engine() -> Engine:
    model = build_tiny("gated_delta_rule", seed=1, layers=LAYERS, dtype=torch.float16)
    return engine_of("gated_delta_rule", model=model, pair="float16", step_tokens=128)


@pytest.fixture
def launches(patch: pytest.MonkeyPatch) -> Launches:
    """Counts what happens inside each layer's linear attention."""
    found, number = Launches(), mock.Mock(side_effect=gates_op.delta_gates)
    tiled = mock.Mock(side_effect=tiles.prepare)
    attend = TableContext.linear_attention

    def counted(self: TableContext, layer: int, recurrence: Recurrence) -> torch.Tensor:
        before, tiled_before = number.call_count, tiled.call_count
        out = attend(self, layer, recurrence)
        is_decode = not self.table.cold_runs and tiled.call_count == tiled_before
        own = found.of_decode if is_decode else found.of_others
        own.append(number.call_count - before)
        return out

    patch.setattr(gates_op, "delta_gates", number)
    patch.setattr(tiles, "prepare", tiled)
    patch.setattr(TableContext, "linear_attention", counted)
    return found


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # of the interpreter's numpy
def test_decode_rows_have_no_launch_for_gates_and_their_bits(launches, patch):
    """Eager and replayed; hits and entries are computed with gates written out before."""
    batches = [prompts(20)[1:2], prompts(40)[2:]]
    mine = engine()
    counts = with_graphs(mine)
    got = answers(mine, batches)
    assert counts.num_replayed >= 3
    assert launches.of_decode
    assert set(launches.of_decode) == {0}
    assert launches.of_others
    assert set(launches.of_others) == {1}
    given = TableContext.linear_attention

    def written_out(self: TableContext, layer: int, recurrence: Recurrence) -> torch.Tensor:
        return given(self, layer, recurrence.written_out())

    patch.setattr(TableContext, "linear_attention", written_out)
    want = answers(engine(), batches)
    for logprobs, right in zip(got, want, strict=True):
        assert torch.equal(logprobs, right)
