from __future__ import annotations

import math

import pytest
import torch

from hypic_sdk.kernels.activation import sigmoid, silu, softplus
from tests.closeness import assert_close

DEFINITIONS = {
    sigmoid: lambda x: 1 / (1 + (-x).exp()),
    silu: lambda x: x / (1 + (-x).exp()),
    softplus: lambda x: x.clamp_min(0) + (-x.abs()).exp().log1p(),
}
# a few roundings of exp, sum and quotient; in bf16 three roundings of 2^-9 each
BOUNDS = {torch.float64: 1e-15, torch.float32: 3e-7, torch.bfloat16: 3 * 2**-9}


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("function", DEFINITIONS, ids=lambda function: function.__name__)
def test_values(function, dtype):
    x = (4 * torch.randn(7, 101)).to(dtype)
    got = function(x)
    assert got.dtype == dtype
    assert_close(function.__name__, got, DEFINITIONS[function](x.double()), rel_rms=BOUNDS[dtype])


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (sigmoid, [0.0, 0.0, 0.5, 1.0, 1.0]),
        (silu, [0.0, 0.0, 0.0, 200.0, 1e4]),
        (softplus, [0.0, 0.0, math.log(2.0), 200.0, 1e4]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_far_out_there_is_no_overflow(function, want):
    """exp(200) is no fp32 number."""
    got = function(torch.tensor([-1e4, -200.0, 0.0, 200.0, 1e4]))
    torch.testing.assert_close(got, torch.tensor(want), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("function", DEFINITIONS, ids=lambda function: function.__name__)
def test_an_element_does_not_know_its_place(function, dtype):
    """Any cut of a tensor gives the same bits, which torch's own functions do not."""
    x = 4 * torch.randn(40_013, dtype=dtype)  # odd, and large enough to be shared among threads
    whole = function(x)
    for start, length in ((0, 1), (1, 3), (5, 16), (17, 33), (39_990, 23), (7, 35_001)):
        part = function(x[start : start + length])
        assert torch.equal(part, whole[start : start + length])
    # strided memory too
    assert torch.equal(function(x[:40_000].view(-1, 5).t()), whole[:40_000].view(-1, 5).t())
