from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.algebra.transition import (
    ConstantTransition,
    DenseTransition,
    DiagonalTransition,
    ScalarTransition,
    Transition,
)
from tests.closeness import assert_close

KINDS = ("scalar", "diagonal", "dense")
K, V = 5, 3


def drawn(kind: str, seed: int, batch: tuple[int, ...] = (2,)) -> Transition:
    rng = torch.Generator().manual_seed(seed)
    if kind == "scalar":
        return ScalarTransition(-torch.rand(*batch, 3, generator=rng, dtype=torch.float64))
    if kind == "diagonal":
        return DiagonalTransition(-torch.rand(*batch, 3, K, generator=rng, dtype=torch.float64))
    matrix = torch.randn(*batch, 3, K, K, generator=rng, dtype=torch.float64)
    return DenseTransition(matrix / K**0.5)


def state(seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, K, V, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**31))
def test_apply_is_the_matrix_product(kind, seed):
    transition, incoming = drawn(kind, seed), state(seed)
    want = torch.einsum("nhij,nhjv->nhiv", transition.to_dense(K), incoming)
    assert_close("state", transition.apply(incoming), want, rel_rms=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**31))
def test_then_puts_the_later_one_on_the_left(kind, seed):
    first, later, incoming = drawn(kind, seed), drawn(kind, seed + 1), state(seed)
    both = first.then(later)
    assert type(both) is type(first)
    assert_close("matrix", both.to_dense(K), later.to_dense(K) @ first.to_dense(K), rel_rms=1e-14)
    assert_close("state", both.apply(incoming), later.apply(first.apply(incoming)), rel_rms=1e-13)


def test_order_matters_for_dense_transitions():
    first, later = drawn("dense", 0), drawn("dense", 1)
    assert not torch.allclose(first.then(later).to_dense(K), later.then(first).to_dense(K))


@pytest.mark.parametrize("kind", KINDS)
def test_the_identity_does_nothing(kind):
    transition, incoming = drawn(kind, 0), state(0)
    identity = transition.identity()
    assert torch.equal(identity.apply(incoming), incoming)
    for both in (identity.then(transition), transition.then(identity)):
        assert torch.equal(both.to_dense(K), transition.to_dense(K))


def test_a_constant_decay_is_a_closed_form():
    log_decay = torch.tensor([-1e-6, -0.3, -2.0], dtype=torch.float64)
    steps = ConstantTransition(log_decay)
    for _ in range(99):
        steps = steps.then(ConstantTransition(log_decay))
    closed = ConstantTransition.constant(log_decay, 100)
    assert_close("log", steps.log_decay, closed.log_decay, rel_rms=1e-14)
    assert_close(
        "none",
        ConstantTransition.constant(log_decay, 0).to_dense(2),
        torch.eye(2).expand(3, 2, 2),
        rel_rms=0,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_taken_in_the_dtype_of_the_state(kind):
    """A stored transition of low precision is taken up, never the state down."""
    transition = drawn(kind, 3)
    low = (
        DenseTransition(transition.matrix.half())
        if isinstance(transition, DenseTransition)
        else type(transition)(transition.log_decay.float())
    )
    incoming = state(3)
    moved = low.apply(incoming)
    assert moved.dtype == torch.float64
    if isinstance(low, DenseTransition):
        assert_close("moved", moved, low.matrix.double() @ incoming, rel_rms=1e-14)
        assert low.then(low).matrix.dtype == torch.float16


def test_a_wrong_key_size_is_refused():
    for kind in ("diagonal", "dense"):
        with pytest.raises(ValueError, match="5 key rows, asked for 4"):
            drawn(kind, 0).to_dense(4)
