"""Gates of blocks: the definition, and the kernel in interpreter mode."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.kernels.mlp import kernel, reference
from hypic_sdk.kernels.mlp.op import gate_heads, swiglu
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
@given(
    size=st.sampled_from([(0, 2, 3), (1, 1, 1), (5, 3, 7), (3, 16, 40)]),
    dtype=dtypes,
    block=st.sampled_from([8, 64, 2048]),
    seed=st.integers(0, 2**31),
)
def test_gate_heads_multiplies_by_the_share_of_each_number(size, dtype, block, seed):
    """Gates of a projection [query | gate] of each head, as they lie; nothing else is read."""
    torch.manual_seed(seed)
    wide = torch.full((*size[:2], 2 * size[2] + 1), torch.nan).to(dtype)
    gate, x = wide[..., size[2] : 2 * size[2]], torch.randn(size).to(dtype)
    gate.copy_(4.0 * torch.randn(size))
    before = x.clone()
    want = x.double() / (1 + (-gate.double()).exp())
    with mock.patch.object(kernel, "HEADS_BLOCK", block):
        for run in (gate_heads, reference.gate_heads, kernel.gate_heads):
            got = run(x, gate)
            assert got.dtype == dtype
            assert got.shape == size
            if size[0]:
                assert_close("gated heads", got, want, rel_rms=BOUNDS[dtype])
    assert torch.equal(x, before)


def test_wrong_shapes_are_named():
    x = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match=r"gate \(2, 3\)"):
        gate_heads(x, x[..., 0])
    with pytest.raises(ValueError, match="float64"):
        gate_heads(x, x.double())
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        swiglu(torch.randn(2, 3))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_on_a_device_they_are_the_definition(device, dtype):
    gate_up = torch.randn(300, 1024, device=device).to(dtype)
    bound = 2**-7 if dtype == torch.bfloat16 else 1e-6
    heads, gates = torch.randn(2, 300, 16, 256, device=device).to(dtype)
    got = (
        swiglu(gate_up),
        gate_heads(heads, gates),
    )
    want = (
        reference.swiglu(gate_up.double().cpu()),
        reference.gate_heads(heads.double().cpu(), gates.double().cpu()),
    )
    for mine, right in zip(got, want, strict=True):
        assert_close("rows", mine.cpu(), right, rel_rms=bound)
