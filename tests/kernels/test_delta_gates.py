"""Decay and strength against their formulas in fp64: the definition, and the kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.kernels.delta_gates import kernel, op
from hypic_sdk.kernels.delta_gates.op import delta_gates
from tests.closeness import assert_close

BOUNDS = {torch.float64: 1e-14, torch.float32: 1e-6}


@pytest.fixture(autouse=True, scope="module", params=["reference", "kernel"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs the definition, and the kernel in interpreter mode."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "kernel":
            patch.setattr(op.reference, "delta_gates", kernel.delta_gates)
            patch.setattr(kernel, "_BLOCK", 16)
        yield request.param


@given(
    rows=st.integers(0, 20),
    heads=st.integers(1, 7),
    narrow=st.sampled_from([torch.bfloat16, torch.float32, torch.float64]),
    wide=st.sampled_from(list(BOUNDS)),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    seed=st.integers(0, 2**31),
)
def test_gates_are_their_formulas(rows, heads, narrow, wide, scale, seed):
    torch.manual_seed(seed)
    projected = (scale * torch.randn(rows, 3 * heads)).to(narrow)
    strength, decay = projected[:, :heads], projected[:, 2 * heads :]
    A_log, bias = torch.randn(heads), torch.randn(heads) - 3.0
    log_decay, erase = delta_gates(strength, decay, A_log, bias, wide)
    assert log_decay.dtype == erase.dtype == wide
    # in the wide dtype the sum is rounded before anything else
    shifted = (decay.to(wide) + bias.to(wide)).double()
    want = -A_log.double().exp() * torch.where(
        shifted > 30, shifted + (-shifted).exp(), shifted.exp().log1p()
    )
    if rows:
        for name, got, exact in (
            ("log decay", log_decay, want),
            ("erase", erase, 1 / (1 + (-strength.double()).exp())),
        ):
            assert_close(name, got, exact, rel_rms=BOUNDS[wide])


def test_small_steps_keep_their_digits():
    """Far below zero softplus is exp: a sum with 1 would round it away."""
    decay = torch.linspace(-60.0, -5.0, 40)[:, None]
    log_decay, _ = delta_gates(decay, decay, torch.zeros(1), torch.zeros(1), torch.float32)
    want = -decay.double().exp().log1p()
    assert ((log_decay.double() - want) / want).abs().max() < 1e-6


def test_shapes_that_do_not_fit_are_named():
    x, one = torch.randn(3, 4), torch.randn(4)
    with pytest.raises(ValueError, match=r"\(3, 3\)"):
        delta_gates(x[:, 1:], x, one, one, torch.float32)
    with pytest.raises(ValueError, match=r"\(3,\)"):
        delta_gates(x, x, one[1:], one, torch.float32)
