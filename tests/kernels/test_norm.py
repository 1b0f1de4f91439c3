from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.kernels.norm import kernel, op
from hypic_sdk.kernels.norm.op import add_rms_norm, gated_rms_norm, rms_norm
from tests.closeness import assert_close

# fp32 and fp64: a handful of roundings; low precision: one rounding of the result
BOUNDS = {torch.float64: 1e-15, torch.float32: 3e-7, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.fixture(autouse=True, scope="module", params=["reference", "kernel"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs the definition, and the kernel in interpreter mode."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "kernel":
            patch.setattr(kernel, "BLOCK", 128)  # so that several programs share short rows
            patch.setattr(op.reference, "rms_norm", kernel.rms_norm)
            patch.setattr(op.reference, "gated_rms_norm", kernel.gated_rms_norm)
            patch.setattr(op.reference, "add_rms_norm", kernel.add_rms_norm)
        yield request.param


def bound_of(dtype: torch.dtype, implementation: str) -> float:
    """The interpreter cuts a bf16 off where a device rounds it."""
    cut = implementation == "kernel" and dtype == torch.bfloat16
    return 2.0 * BOUNDS[dtype] if cut else BOUNDS[dtype]


def normalised(x: torch.Tensor, eps: float) -> torch.Tensor:
    """The definition, row by row in fp64."""
    rows = x.reshape(-1, x.shape[-1])
    scaled = [row / (row.square().sum() / len(row) + eps).sqrt() for row in rows]
    return torch.stack(scaled).reshape(x.shape)


@given(
    rows=st.integers(1, 9),
    width=st.integers(1, 130),
    eps=st.sampled_from([1e-6, 1e-5, 0.5]),
    zero_centred=st.booleans(),
    dtype=st.sampled_from(list(BOUNDS)),
    scale=st.sampled_from([1e-3, 1.0, 1e2]),
    seed=st.integers(0, 2**31),
)
def test_rms_norm(implementation, rows, width, eps, zero_centred, dtype, scale, seed):
    torch.manual_seed(seed)
    x, weight = (scale * torch.randn(rows, 2, width)).to(dtype), torch.randn(width)
    got = rms_norm(x, weight, eps=eps, zero_centred=zero_centred)
    factor = weight.double() + (1.0 if zero_centred else 0.0)
    assert got.dtype == dtype
    assert_close(
        "norm", got, normalised(x.double(), eps) * factor, rel_rms=bound_of(dtype, implementation)
    )


@given(
    rows=st.integers(1, 5),
    heads=st.integers(1, 3),
    width=st.integers(1, 70),
    activation=st.sampled_from(["silu", "sigmoid"]),
    gate_first=st.booleans(),
    weight_by_head=st.booleans(),
    dtype=st.sampled_from(list(BOUNDS)),
    seed=st.integers(0, 2**31),
)
def test_gated_rms_norm(
    implementation, rows, heads, width, activation, gate_first, weight_by_head, dtype, seed
):
    torch.manual_seed(seed)
    x, gate = torch.randn(2, rows, heads, width).to(dtype)
    weight = torch.randn((heads, width) if weight_by_head else (width,))
    got = gated_rms_norm(x, gate, weight, eps=1e-5, activation=activation, gate_first=gate_first)
    wide, opened = x.double(), 1 / (1 + (-gate.double()).exp())
    if activation == "silu":
        opened = opened * gate.double()
    want = normalised(wide * opened, 1e-5) if gate_first else normalised(wide, 1e-5) * opened
    assert got.dtype == dtype
    assert_close("gated norm", got, want * weight.double(), rel_rms=bound_of(dtype, implementation))


@given(
    rows=st.integers(1, 9),
    width=st.integers(1, 130),
    zero_centred=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16]),
    is_slice=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_residual_and_norm_are_the_two_steps_bit_for_bit(
    rows, width, zero_centred, dtype, is_slice, seed
):
    torch.manual_seed(seed)
    x, weight = torch.randn(rows, width).to(dtype), torch.randn(width)
    added = torch.randn(rows, 2 * width).to(dtype)
    added = added[:, width:] if is_slice else added[:, :width].contiguous()
    kept = x.clone(), added.clone()
    total, normed = add_rms_norm(x, added, weight, eps=1e-6, zero_centred=zero_centred)
    assert torch.equal(total, kept[0] + kept[1])
    want = rms_norm(total, weight, eps=1e-6, zero_centred=zero_centred)
    assert torch.equal(normed, want)
    assert torch.equal(x, kept[0])
    assert torch.equal(added, kept[1])
    with pytest.raises(ValueError, match="added"):
        add_rms_norm(x, added[:, 1:], weight, eps=1e-6, zero_centred=zero_centred)


@pytest.mark.parametrize("width", [5, 64, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_bits_are_the_rows_own(width, dtype):
    """Alone and among others, wherever it stands in the program that takes it."""
    x, gate = torch.randn(2, 11, 3, width).to(dtype)
    weight, by_head = torch.randn(width), torch.randn(3, width)
    options = {"eps": 1e-6, "activation": "silu", "gate_first": False}

    def run(rows: slice) -> list[torch.Tensor]:
        normed = rms_norm(x[rows], weight, eps=1e-6, zero_centred=True)
        both = add_rms_norm(x[rows], gate[rows], weight, eps=1e-6, zero_centred=True)
        return [normed, *both, gated_rms_norm(x[rows], gate[rows], by_head, **options)]

    whole = run(slice(None))
    for start, stop in ((0, 1), (4, 5), (10, 11), (3, 9)):
        own = run(slice(start, stop))
        assert all(torch.equal(a, b[start:stop]) for a, b in zip(own, whole, strict=True))


def test_inputs_are_left_alone():
    x, gate, weight = torch.randn(3, 2, 8), torch.randn(3, 2, 8), torch.randn(8)
    kept = [tensor.clone() for tensor in (x, gate, weight)]
    for gate_first in (False, True):
        gated_rms_norm(x, gate, weight, eps=1e-6, activation="silu", gate_first=gate_first)
    rms_norm(x, weight, eps=1e-6, zero_centred=True)
    rms_norm(x, weight, eps=1e-6, zero_centred=False)
    assert all(torch.equal(a, b) for a, b in zip(kept, (x, gate, weight), strict=True))


def test_a_row_of_zeros_stays_zero():
    assert rms_norm(torch.zeros(1, 5), torch.ones(5), eps=1e-6, zero_centred=False).eq(0).all()


def test_low_precision_is_normalised_in_fp32():
    """The squares of 300 overflow fp16, their mean in fp32 does not."""
    x = torch.full((1, 64), 300.0, dtype=torch.float16)
    got = rms_norm(x, torch.ones(64, dtype=torch.float16), eps=1e-6, zero_centred=False)
    assert torch.equal(got, torch.ones(1, 64, dtype=torch.float16))


def test_wrong_shapes_are_named():
    x = torch.ones(3, 2, 8)
    with pytest.raises(ValueError, match=r"\(7,\).*\(3, 2, 8\)"):
        rms_norm(x, torch.ones(7), eps=1e-6, zero_centred=False)
    with pytest.raises(ValueError, match=r"\(3, 2, 7\)"):
        gated_rms_norm(x, x[..., 1:], torch.ones(8), eps=1e-6, activation="silu", gate_first=False)
    with pytest.raises(ValueError, match=r"\(3, 8\)"):
        gated_rms_norm(x, x, torch.ones(3, 8), eps=1e-6, activation="silu", gate_first=False)
    with pytest.raises(ValueError, match="gelu"):
        gated_rms_norm(x, x, torch.ones(8), eps=1e-6, activation="gelu", gate_first=False)
