"""Rotation of rows: the definition, pair by pair, in fp64; the kernel; what rows owe each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.kernels.rotate_rows import kernel, reference
from hypic_sdk.kernels.rotate_rows.op import rotate_rows
from hypic_sdk.kernels.rotation import RotarySpec, rotary_angles
from tests.closeness import assert_close

# two products and a sum of what is given; low precision: one rounding of the result, which the
# interpreter cuts in bf16
BOUNDS = {torch.float64: 1e-14, torch.float32: 2e-7, torch.float16: 2**-11, torch.bfloat16: 2**-7}


def by_hand(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Each pair as a complex number."""
    out, half = x.double().clone(), cos.shape[1]
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        turn = torch.complex(cos[:, i].double(), sin[:, i].double())[:, None]
        turned = turn * torch.complex(x[..., a].double(), x[..., b].double())
        out[..., a], out[..., b] = turned.real, turned.imag
    return out


@pytest.mark.parametrize(
    "run", [reference.rotate_rows, kernel.rotate_rows], ids=["torch", "triton"]
)
@given(
    rows=st.integers(0, 5),
    heads=st.sampled_from([1, 3, 16]),
    sizes=st.sampled_from([(2, 2), (21, 8), (64, 64), (33, 6)]),
    dtype=st.sampled_from(list(BOUNDS)),
    interleaved=st.booleans(),
    is_slice=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_both_agree_with_the_definition(
    run, rows, heads, sizes, dtype, interleaved, is_slice, seed
):
    """Also where heads are a slice of a projection; nothing but the rows is read."""
    rng = torch.Generator().manual_seed(seed)
    head_size, rotary_dims = sizes
    width = 2 * head_size if is_slice else head_size
    whole = torch.full((rows, heads, width), torch.nan, dtype=dtype)
    x = whole[..., :head_size]
    x.copy_(torch.randn(x.shape, generator=rng))
    positions = torch.randint(0, 100_000, (rows,), generator=rng)
    angle_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = rotary_angles(RotarySpec(1e4, rotary_dims), positions, angle_dtype)
    got = run(x, cos, sin, interleaved=interleaved)
    assert got.dtype == dtype
    if rows:
        assert_close("turned", got, by_hand(x, cos, sin, interleaved), rel_rms=BOUNDS[dtype])
    assert torch.equal(got[..., rotary_dims:], x[..., rotary_dims:])
    if rows > 1:
        alone = run(x[-1:], cos[-1:], sin[-1:], interleaved=interleaved)
        assert torch.equal(alone, got[-1:])


def test_what_does_not_fit_is_named():
    x, angles = torch.zeros(3, 2, 8), torch.zeros(3, 5)
    with pytest.raises(ValueError, match="10 of 8"):
        rotate_rows(x, angles, angles, interleaved=False)
    with pytest.raises(ValueError, match=r"\(2, 5\)"):
        rotate_rows(x, angles[:2], angles[:2], interleaved=False)
    with pytest.raises(ValueError, match=r"\(3, 8\)"):
        rotate_rows(x[:, 0], angles, angles, interleaved=False)
