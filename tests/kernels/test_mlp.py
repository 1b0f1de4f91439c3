"""Gates of feed-forward blocks: the definition, and the kernel in interpreter mode."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.kernels.mlp import kernel, reference
from hypic_sdk.kernels.mlp.op import add_gated, swiglu
from tests.closeness import assert_close

# in 16 bits a rounding may fall the other way: one unit in the last place
BOUNDS = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 2**-10}
sizes = st.sampled_from([(0, 3), (1, 1), (5, 7), (3, 40)])
dtypes = st.sampled_from(list(BOUNDS))


@settings(max_examples=20)
@given(size=sizes, dtype=dtypes, seed=st.integers(0, 2**31))
def test_swiglu_is_the_gate_times_up(size, dtype, seed):
    torch.manual_seed(seed)
    rows, inner = size
    wide = torch.randn(rows, 2 * inner + 3).to(dtype)
    gate_up = wide[:, : 2 * inner]  # a slice of a projection
    gate, up = gate_up.double().chunk(2, dim=1)
    want = gate / (1 + (-gate).exp()) * up
    for run in (swiglu, reference.swiglu, kernel.swiglu):
        got = run(gate_up)
        assert got.dtype == dtype
        assert got.shape == (rows, inner)
        if rows:
            assert_close("swiglu", got, want, rel_rms=BOUNDS[dtype])


@settings(max_examples=20)
@given(size=sizes, dtype=dtypes, seed=st.integers(0, 2**31))
def test_add_gated_adds_the_share_of_a_row(size, dtype, seed):
    torch.manual_seed(seed)
    rows, width = size
    routed, shared = (torch.randn(rows, width).to(dtype) for _ in range(2))
    gate = torch.randn(rows, 1).to(dtype)
    before = routed.clone(), shared.clone()
    want = routed.double() + shared.double() / (1 + (-gate.double()).exp())
    for run in (add_gated, reference.add_gated, kernel.add_gated):
        got = run(routed, shared, gate)
        assert got.dtype == dtype
        assert got.shape == (rows, width)
        if rows:
            assert_close("sum", got, want, rel_rms=BOUNDS[dtype])
    assert torch.equal(routed, before[0])
    assert torch.equal(shared, before[1])


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        swiglu(torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"gate \(3, 1\)"):
        add_gated(torch.randn(2, 3), torch.randn(2, 3), torch.randn(3, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_on_a_device_they_are_the_definition(device, dtype):
    gate_up, gate = torch.randn(300, 1024, device=device).to(dtype), torch.randn(300, 1).to(dtype)
    routed, shared = torch.randn(2, 300, 2048, device=device).to(dtype)
    bound = 2**-7 if dtype == torch.bfloat16 else 1e-6
    got = swiglu(gate_up), add_gated(routed, shared, gate.to(device))
    want = (
        reference.swiglu(gate_up.double().cpu()),
        reference.add_gated(routed.double().cpu(), shared.double().cpu(), gate.double()),
    )
    for mine, right in zip(got, want, strict=True):
        assert_close("rows", mine.cpu(), right, rel_rms=bound)
