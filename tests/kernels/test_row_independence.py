"""Design 3.9: a row's bits do not depend on the other rows of a batch, nor on its place there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hypic_sdk.kernels.experts.op import experts, route
from hypic_sdk.kernels.linear import reference
from hypic_sdk.kernels.linear.op import linear
from hypic_sdk.kernels.norm.op import gated_rms_norm, rms_norm
from hypic_sdk.kernels.rotation import RotarySpec, rotary_angles, rotate
from hypic_sdk.kernels.sample.op import logprobs, sample

# (rows of the batch, the row of the pool at which it starts)
BATCHES = [(16, 0), (16, 5), (16, 640), (32, 100), (48, 333), (272, 16), (1408, 7), (1408, 640)]
POOL_ROWS = 2048


def assert_row_independent(rows_op: Callable[..., torch.Tensor], *pools: torch.Tensor) -> None:
    """Fail unless every batch of rows comes out as the same rows of the whole pool did."""
    whole = rows_op(*pools)
    assert whole.isfinite().all()
    for rows, start in BATCHES:
        got = rows_op(*(pool[start : start + rows].clone() for pool in pools))
        wrong = (got != whole[start : start + rows]).flatten(1).any(1).sum()
        assert wrong == 0, f"{wrong} of {rows} rows from {start} on differ"


@pytest.mark.parametrize("outputs", [1, 3, 33, 96, 192, 384])
@pytest.mark.parametrize("inputs", [40, 300, 384, 1000, 1024, 2048])
def test_linear(inputs, outputs):
    pool, weight = torch.randn(POOL_ROWS, inputs), torch.randn(outputs, inputs)
    assert_row_independent(lambda x: linear(x, weight, row_independent=True), pool)


@pytest.mark.parametrize(("inputs", "outputs"), [(40, 8192), (384, 8192), (1024, 1536)])
def test_linear_to_a_vocabulary(inputs, outputs):
    pool, weight = torch.randn(POOL_ROWS, inputs), torch.randn(outputs, inputs)
    bias = torch.randn(outputs)
    assert_row_independent(lambda x: linear(x, weight, bias, row_independent=True), pool)


@pytest.mark.parametrize(("inputs", "outputs"), [(40, 3), (300, 96), (384, 192), (1000, 191)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_linear_in_other_precisions(inputs, outputs, dtype):
    pool, weight = torch.randn(POOL_ROWS, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    assert_row_independent(lambda x: linear(x, weight, row_independent=True), pool)


@pytest.fixture
def _fresh_choices():
    """The ways of products are chosen anew, and what was chosen meanwhile is forgotten."""
    choices = reference._cut_product_suits, reference._rows_agree
    for choice in choices:
        choice.cache_clear()
    yield
    for choice in choices:
        choice.cache_clear()


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_linear_with_other_numbers_of_threads(threads):
    """Rows are shared among threads in another way for each number of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for inputs, outputs in ((384, 1), (1000, 1), (1000, 191), (1536, 384)):
            pool, weight = torch.randn(POOL_ROWS, inputs), torch.randn(outputs, inputs)
            assert_row_independent(lambda x, w=weight: linear(x, w, row_independent=True), pool)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("inputs", "outputs"), [(40, 17), (300, 96), (384, 192), (1000, 384)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_tiled_product(inputs, outputs, dtype):
    """The way that is taken where the fast one does not suit."""
    pool, weight = (
        torch.randn(POOL_ROWS, inputs, dtype=dtype),
        torch.randn(outputs, inputs).to(dtype),
    )
    assert_row_independent(lambda x: reference.tiled_product(x, weight), pool)


@pytest.mark.usefixtures("_fresh_choices")
def test_a_fast_way_that_depends_on_the_batch_is_not_taken(monkeypatch):
    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight.t() + len(x) * 1e-6

    monkeypatch.setattr(reference, "cut_product", product)
    pool, weight = torch.randn(POOL_ROWS, 70), torch.randn(33, 70)
    assert_row_independent(lambda x: linear(x, weight, row_independent=True), pool)
    torch.testing.assert_close(linear(pool, weight, row_independent=True), pool @ weight.t())


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch was built without MKL")
def test_linear_with_the_instructions_of_smaller_machines():
    """AVX2 kernels, in which the cut product does depend on the batch."""
    program = "\n".join(
        [
            "import torch",
            "from hypic_sdk.kernels.linear.op import linear",
            "from tests.kernels.test_row_independence import POOL_ROWS, assert_row_independent",
            "for inputs, outputs in ((417, 192), (1000, 131), (384, 384), (96, 40), (300, 3)):",
            "    pool, weight = torch.randn(POOL_ROWS, inputs), torch.randn(outputs, inputs)",
            "    assert_row_independent(lambda x: linear(x, weight, row_independent=True), pool)",
        ]
    )
    environment = {**os.environ, "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x / x.abs().amax(),  # reads the other rows
        lambda x: x + torch.arange(len(x))[:, None] * 1e-6,  # reads its place
    ],
    ids=["other rows", "place"],
)
def test_the_check_finds_an_op_that_is_not(op):
    with pytest.raises(AssertionError, match="rows from"):
        assert_row_independent(op, torch.randn(POOL_ROWS, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 7, 40, 384])
def test_rms_norm(width, dtype):
    pool, weight = torch.randn(POOL_ROWS, width).to(dtype), torch.randn(width)
    assert_row_independent(lambda x: rms_norm(x, weight, eps=1e-6, zero_centred=True), pool)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 7, 64])
@pytest.mark.parametrize(("activation", "gate_first"), [("silu", False), ("sigmoid", True)])
def test_gated_rms_norm(activation, gate_first, width, dtype):
    x, gate = torch.randn(2, POOL_ROWS, 3, width).to(dtype)
    weight = torch.randn(width)
    assert_row_independent(
        lambda x, gate: gated_rms_norm(
            x, gate, weight, eps=1e-6, activation=activation, gate_first=gate_first
        ),
        x,
        gate,
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation(interleaved):
    spec = RotarySpec(theta=1e4, rotary_dims=6, interleaved=interleaved)
    cos, sin = rotary_angles(spec, torch.randperm(POOL_ROWS), torch.float32)
    assert_row_independent(
        lambda x, c, s: rotate(x, c, s, interleaved), torch.randn(POOL_ROWS, 3, 9), cos, sin
    )


def test_experts():
    num_experts, width, inner = 5, 70, 33
    router = torch.randn(num_experts, width)
    gate_up = torch.randn(num_experts, 2 * inner, width)
    down = torch.randn(num_experts, width, inner)

    def block(x: torch.Tensor) -> torch.Tensor:
        logits = linear(x, router, row_independent=True)
        routing = route(logits, top_k=2, renormalise=True)
        return experts(x, routing, gate_up, down, row_independent=True)

    assert_row_independent(block, torch.randn(POOL_ROWS, width))


def test_sampled_ids_and_their_logprobs():
    """Every kind of setting in one pool, so that batches mix them in different ways."""
    vocabulary, index = 101, torch.arange(POOL_ROWS)
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.3, 0.0])[index % 5]
    top_k = torch.tensor([0, 0, 3, 50, 200, 1, 0])[index % 7]
    top_p = torch.tensor([1.0, 0.9, 0.3])[index % 3]
    min_p = torch.tensor([0.0, 0.0, 0.1, 0.5])[index % 4]
    logits = torch.randn(POOL_ROWS, vocabulary)
    logits = torch.where(index[:, None] % 4 == 0, (2 * logits).round(), logits)  # with ties

    def ids(*pools: torch.Tensor) -> torch.Tensor:
        return sample(*pools).ids[:, None]

    settings = (temperature, min_p, top_k, top_p)
    assert_row_independent(ids, logits, *settings, index * 977, index % 10)

    def logarithms(logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        found = logprobs(logits, chosen, 4)
        return torch.cat(
            (found.chosen[:, None], found.ranks[:, None], found.top, found.top_ids), dim=1
        )

    assert_row_independent(logarithms, logits, index % vocabulary)
