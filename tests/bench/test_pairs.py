"""Ways of storing a pair: what they lose, what they take, and the run over the packaged reader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hypic_sdk.algebra.segment_state import SegmentState
from hypic_sdk.algebra.transition import DenseTransition
from hypic_sdk.bench.pairs import (
    STATES,
    TRANSITIONS,
    WAYS,
    Way,
    composed,
    document_pairs,
    frontier,
    measure,
    run_pairs_bench,
    stored,
)
from hypic_sdk.bench.subject import load_subject
from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from tests.closeness import relative_rms

HEADS, SIZE, WIDTH = 3, 32, 16
#: of one [SIZE, SIZE] matrix
BYTES = {
    "fp32": 4 * SIZE**2,
    "fp16": 2 * SIZE**2,
    "bf16": 2 * SIZE**2,
    "int8": SIZE**2 + 2 * SIZE,
    "fp8": SIZE**2 + 2 * SIZE,
    "int8, diagonal": SIZE**2 + 4 * SIZE,
    "fp8, diagonal": SIZE**2 + 4 * SIZE,
    "rank 16": 64 * SIZE,
    "rank 8": 32 * SIZE,
    "rank 4": 16 * SIZE,
    "rank 16, diagonal": 66 * SIZE,
    "scalar": 4,
    "addition": 0,
    "null": 0,
}
#: relative RMS of a matrix of normal numbers: half a step of the format, and of its scale
ROUNDING = {"fp32": 2**-24, "fp16": 2**-11, "bf16": 2**-8, "int8": 4 / 127, "fp8": 2**-4}


def random_matrix(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(HEADS, SIZE, SIZE, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", sorted(TRANSITIONS))
def test_bytes(name: str) -> None:
    assert TRANSITIONS[name](random_matrix(1))[1] == BYTES[name]


@given(seed=st.integers(0, 999), scale=st.floats(1e-3, 1e3))
@pytest.mark.parametrize("name", sorted(ROUNDING))
def test_rounding_loses_no_more_than_its_format(name: str, seed: int, scale: float) -> None:
    matrix = random_matrix(seed) * scale
    assert relative_rms(TRANSITIONS[name](matrix)[0], matrix) <= ROUNDING[name]
    if name in STATES:
        assert relative_rms(STATES[name](matrix)[0], matrix) <= ROUNDING[name]


@given(seed=st.integers(0, 999), rank=st.sampled_from((4, 8, 16)))
def test_a_matrix_of_a_low_rank_is_kept(seed: int, rank: int) -> None:
    matrix = random_matrix(seed)[..., :rank] @ random_matrix(seed + 1)[..., :rank, :]
    # fp16 factors
    assert relative_rms(TRANSITIONS[f"rank {rank}"](matrix)[0], matrix) <= 1e-3


@given(seed=st.integers(0, 999), factor=st.floats(-2, 2))
def test_a_multiple_of_the_identity_is_one_number(seed: int, factor: float) -> None:
    eye = torch.eye(SIZE, dtype=torch.float64).expand(HEADS, -1, -1)
    assert torch.allclose(
        TRANSITIONS["scalar"](factor * eye)[0], factor * eye, rtol=1e-6, atol=2**-126
    )
    for name in ("int8, diagonal", "fp8, diagonal", "rank 16, diagonal"):
        read = TRANSITIONS[name](factor * eye)[0]
        # fp16, whose least step is 2^-24
        assert torch.allclose(read, factor * eye, rtol=1e-3, atol=2**-24)
    matrix = random_matrix(seed)
    assert torch.equal(TRANSITIONS["addition"](matrix)[0], eye)
    assert not TRANSITIONS["null"](matrix)[0].any()


@pytest.mark.parametrize("name", sorted(TRANSITIONS))
def test_a_matrix_of_zeros_has_no_trouble(name: str) -> None:
    read = TRANSITIONS[name](torch.zeros(HEADS, SIZE, SIZE, dtype=torch.float64))[0]
    assert torch.equal(read, TRANSITIONS[name](read)[0])
    assert read.isfinite().all()


@given(seed=st.integers(0, 999), scale=st.floats(1e-3, 1e3))
def test_int8_is_what_the_store_keeps(seed: int, scale: float) -> None:
    """Bit for bit, and byte for byte."""
    matrix, end_state = random_matrix(seed) * scale, random_matrix(seed + 1)[..., :WIDTH]
    read, num_bytes = stored(
        SegmentState(DenseTransition(matrix), end_state), "int8, diagonal", "int8"
    )
    shape, device = (HEADS, SIZE, WIDTH), torch.device("cpu")
    rows = Int8Pairs.allocate((1,), shape, tuple(matrix.shape), torch.float32, device)
    rows.write([0], matrix[None], end_state[None])
    assert torch.equal(rows.read_transition(0, torch.float64), read.transition.matrix)
    assert torch.equal(rows.read_state(0, torch.float64), read.end_state)
    assert rows.num_bytes == num_bytes


def random_pairs(count: int) -> list[list[SegmentState[DenseTransition]]]:
    return [
        [
            SegmentState(
                DenseTransition(0.1 * random_matrix(seed)), random_matrix(seed + 50)[..., :WIDTH]
            )
        ]
        for seed in range(count)
    ]


def test_what_is_stored_whole_composes_to_the_same_state() -> None:
    pairs = random_pairs(9)
    exact, rough = measure(pairs, "fp32", "fp32"), measure(pairs, "int8", "int8")
    assert exact.worst < 1e-6 < rough.median
    assert exact.num_bytes == HEADS * 4 * (SIZE**2 + SIZE * WIDTH)
    assert rough.share == rough.num_bytes / sum(stored(p, *WAYS[0])[1] for p in pairs[0])


def test_composing_is_one_map_after_the_other() -> None:
    first, second = (layers[0] for layers in random_pairs(2))
    wanted = second.transition.matrix @ first.end_state + second.end_state
    assert torch.allclose(composed([first, second]), wanted)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, unique=True))
def test_the_frontier_is_what_nothing_beats(numbers: list[tuple[int, int]]) -> None:
    ways = [Way(str(n), "", n[0], 1.0, n[1], n[1], ()) for n in numbers]
    best = frontier(ways)
    for way in ways:
        beaten = any(
            o.num_bytes <= way.num_bytes and o.median <= way.median and o is not way for o in ways
        )
        assert (way in best) is not beaten


def test_a_run_over_the_packaged_reader(tmp_path: Path) -> None:
    subject = load_subject(None, "cpu")
    text = DOCUMENTS["ada"]
    [[*layers]] = document_pairs(subject, [text])
    assert len(layers) == subject.model.spec.num_linear
    ways = run_pairs_bench(Console(quiet=True), model=None, folder=tmp_path)
    told = json.loads((tmp_path / "pairs.json").read_text())
    assert [(w["transition"], w["state"]) for w in told["ways"]] == list(WAYS)
    by_name = {(way.transition, way.state): way for way in ways}
    assert by_name["fp32", "fp32"].worst < 1e-6
    assert by_name["fp16", "fp32"].worst < by_name["int8, diagonal", "int8"].worst < 0.1
    # addition is the planted fault
    assert by_name["addition", "fp32"].median > 1
