"""The first layer's rows: T is there to be wrong about, and a wrong one shows in each of them."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.bench import serving_layer, serving_model, serving_pairs
from hypic_sdk.bench.serving_decays import FASTEST, SLOWEST
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_layer import (
    STATE_WAYS,
    cold_runs,
    exact_pair,
    first_recurrence,
    norm_notes,
    state_errors,
)
from hypic_sdk.bench.serving_model import FULL_SIZES, SHAPES, TINY_SIZES, Bench, random_model
from hypic_sdk.bench.serving_pairs import pair_cost
from hypic_sdk.bench.serving_peer import peer_model
from hypic_sdk.bench.serving_report import Row

CPU = torch.device("cpu")
# against T in fp64: products in fp32, half a step of fp16 (2^-11), 8 bits beside a diagonal
ERROR_T = {torch.float32: 1e-5, torch.float16: 5e-4, torch.int8: 2e-2}
# heads as large as those of the shape that targets are of, in one layer of few
WIDE = {
    **SHAPES["tiny"],
    "hidden_size": 256,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(random_model("tiny", CPU), "tiny", CPU, TINY_SIZES)


@pytest.fixture
def wide(monkeypatch) -> Bench:
    monkeypatch.setitem(serving_model.SHAPES, "wide", WIDE)
    return Bench(random_model("wide", CPU), "wide", CPU, FULL_SIZES)


def rows_of(bench: Bench) -> list[Row]:
    rows = [row for row in state_errors(bench) if isinstance(row, Row)]
    assert [row.name for row in rows] == [f"layer-0 state error, {way[0]}" for way in STATE_WAYS]
    return rows


@pytest.mark.parametrize(("length", "share"), [(1024, 0.25), (4096, 0.125)])
def test_heads_from_slow_to_fast_keep_much_and_nothing_over_real_lengths(wide, length, share):
    """As of trained models; T in fp16 is no zero then, and its rounding shows."""
    recurrence = first_recurrence(wide, wide.tokens(1, length))
    assert recurrence.log_decay is not None
    decays = -recurrence.log_decay.median(0).values
    assert SLOWEST / 2 < decays[0] < 2 * SLOWEST
    assert FASTEST / 2 < decays[-1] < 2 * FASTEST
    assert decays.tolist() == sorted(decays.tolist()), "a spread over heads"
    transitions, _ = exact_pair(recurrence, cold_runs([length]))
    norms = torch.linalg.matrix_norm(transitions[0], 2)
    assert (norms > 0.1).double().mean() >= share
    assert (norms < 1e-6).double().mean() >= 0.25, "and heads that forget"
    told = norm_notes(transitions)
    assert told["norm_T_max"] == pytest.approx(float(norms.max()))
    assert told["norm_T_median"] == pytest.approx(float(norms.median()))


def test_the_precision_of_a_transition_shows_in_the_state(wide, bench):
    """At 1k segments of full heads, and at tiny ones."""
    for one in (wide, bench):
        with_fp32, with_fp16, _, with_int8 = rows_of(one)
        assert 10 * with_fp32.found.median < with_fp16.found.median < with_int8.found.median / 10
        for row in (with_fp32, with_fp16, with_int8):
            assert row.target is None or row.is_met, row
        assert with_fp16.notes["norm_T_max"] > 0.1


@pytest.mark.parametrize("factor", [1.01, 0.0])
def test_a_wrong_transition_shows_in_every_row(bench, monkeypatch, factor):
    def bound(row: Row, index: int) -> float:
        return ERROR_T[STATE_WAYS[index][2]]

    honest = rows_of(bench)
    assert all(row.notes["error_T"] < bound(row, i) for i, row in enumerate(honest))
    original = serving_layer.segment_scan

    def scaled(inputs, runs, states, transitions, **rest):
        original(inputs, runs, states, transitions, **rest)
        whole = isinstance(transitions, torch.Tensor)
        # in 8 bits: what the whole numbers are multiplied by, and the diagonal
        kept = [transitions] if whole else [transitions.transition_scales, transitions.diagonals]
        for one in kept:
            one *= factor

    monkeypatch.setattr(serving_layer, "segment_scan", scaled)
    for index, (right, wrong) in enumerate(zip(honest, rows_of(bench), strict=True)):
        assert wrong.notes["error_T"] > 0.9 * abs(1 - factor)
        # rounding to 8 bits is as large as one part in a hundred
        if STATE_WAYS[index][2] is not torch.int8 or factor == 0.0:
            assert wrong.notes["error_T"] > bound(wrong, index)
            assert wrong.found.median > max(10 * right.found.median, right.target or 2e-2)


@pytest.mark.parametrize("factor", [1.01, 0.0])
def test_a_wrong_transition_shows_where_building_it_is_timed(bench, monkeypatch, factor):
    def notes() -> list[dict]:
        with torch.inference_mode():
            rows = list(pair_cost(bench, Floors.of(bench)))
        return [row.notes for row in rows if isinstance(row, Row)]

    honest = notes()
    assert len(honest) == 2
    original = serving_pairs.segment_scan

    def scaled(inputs, runs, states, transitions, **rest):
        original(inputs, runs, states, transitions, **rest)
        transitions *= factor

    monkeypatch.setattr(serving_pairs, "segment_scan", scaled)
    for right, wrong in zip(honest, notes(), strict=True):
        assert 0 < right["error_T"] < ERROR_T[torch.float16] < wrong["error_T"]
        assert 0.1 < right["norm_T_max"] <= 1.0, "an error relative to something"
        assert 0.0 < right["norm_T_median"] < right["norm_T_max"]
        assert right["norm_T_max"] == wrong["norm_T_max"], "of T as it should be"


def test_the_arm_from_outside_decays_alike():
    def decays(model: torch.nn.Module) -> list[torch.Tensor]:
        return [
            m.A_log.float().exp() * torch.nn.functional.softplus(m.dt_bias.float())
            for m in model.modules()
            if hasattr(m, "A_log")
        ]

    ours, theirs = decays(random_model("tiny", CPU)), decays(peer_model("tiny", CPU))
    assert len(ours) == len(theirs) == 3
    for one in (*ours, *theirs):
        # bf16 there
        assert torch.allclose(one.log2(), torch.linspace(-14, -1, 4), atol=0.1)
