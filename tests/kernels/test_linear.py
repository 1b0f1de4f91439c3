from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.kernels.linear import kernel, reference
from hypic_sdk.kernels.linear.op import linear
from hypic_sdk.kernels.linear.reference import cut_product, tiled_product
from tests.closeness import assert_close

# K-term sums in the given precision; bf16: one rounding of the result
BOUNDS = {torch.float64: 1e-14, torch.float32: 2e-6, torch.bfloat16: 2**-8}


def draw(rows: int, inputs: int, outputs: int, dtype: torch.dtype, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    shapes = (rows, inputs), (outputs, inputs), (outputs,)
    return [torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for shape in shapes]


@given(
    tiles=st.integers(1, 5),
    inputs=st.integers(1, 700),
    outputs=st.integers(1, 70),
    has_bias=st.booleans(),
    dtype=st.sampled_from(list(BOUNDS)),
    row_independent=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_agrees_with_the_definition(tiles, inputs, outputs, has_bias, dtype, row_independent, seed):
    x, weight, bias = draw(16 * tiles, inputs, outputs, dtype, seed)
    got = linear(x, weight, bias if has_bias else None, row_independent=row_independent)
    want = x.double() @ weight.double().t() + (bias.double() if has_bias else 0.0)
    assert got.dtype == dtype
    assert got.is_contiguous()
    assert_close("product", got, want, rel_rms=BOUNDS[dtype])


@given(
    rows=st.integers(0, 70),
    inputs=st.integers(1, 500),
    outputs=st.integers(1, 40),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 2**31),
)
def test_both_ways_agree_with_the_definition(rows, inputs, outputs, dtype, seed):
    # of so many sums not all cancel
    x, weight, _ = draw(rows + 16, inputs, outputs, dtype, seed)
    want = x.double() @ weight.double().t()
    for product in (cut_product, tiled_product):
        assert_close(product.__name__, product(x, weight), want, rel_rms=BOUNDS[dtype])


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_any_row_count_without_row_independence(rows):
    x, weight, _ = draw(rows, 40, 3, torch.float32)
    got = linear(x, weight, row_independent=False)
    torch.testing.assert_close(got, x @ weight.t())


@pytest.mark.parametrize("outputs", [1, 2, 15, 16])
def test_few_outputs_are_filled_up(monkeypatch, outputs):
    """Else a product is one of a matrix and a vector, which is split by rows."""
    seen = []

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        seen.append(weight.shape[0])
        return cut_product(x, weight)

    monkeypatch.setattr(reference, "cut_product", product)
    monkeypatch.setattr(reference, "tiled_product", product)
    x, weight, bias = draw(16, 40, outputs, torch.float32)
    assert linear(x, weight, bias, row_independent=True).shape == (16, outputs)
    assert seen[-1] == 16


def test_no_rows_at_all():
    x, weight, bias = draw(0, 300, 5, torch.float32)
    assert linear(x, weight, bias, row_independent=True).shape == (0, 5)


def test_row_counts_off_the_grid_are_our_mistake():
    x, weight, _ = draw(17, 40, 3, torch.float32)
    with pytest.raises(AssertionError, match="17 rows"):
        linear(x, weight, row_independent=True)


def test_wrong_shapes_are_named():
    x, weight, _ = draw(16, 40, 3, torch.float32)
    with pytest.raises(ValueError, match=r"\(3, 39\).*\(16, 40\)"):
        linear(x, weight[:, 1:], row_independent=True)
    with pytest.raises(ValueError, match="float64"):
        linear(x, weight.double(), row_independent=False)
    with pytest.raises(ValueError, match=r"bias \(2,\)"):
        linear(x, weight, torch.zeros(2), row_independent=True)


SMALL_TILE = kernel.Tile(16, 16, 16, 4, 2)


@settings(max_examples=20)  # the interpreter runs one program at a time
@given(
    rows=st.integers(0, 70),
    inputs=st.sampled_from([1, 7, 16, 48, 50]),
    outputs=st.sampled_from([1, 5, 16, 40]),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_the_kernel_is_the_definition(rows, inputs, outputs, has_bias, seed):
    """Strided rows and weights.  That a row's bits are its own is seen on a GPU."""
    wide, weight, bias = draw(rows, inputs + 3, outputs, torch.float16, seed)
    x, weight = wide[:, :inputs], weight[:, :inputs]
    bias = bias if has_bias else None
    got = kernel.row_independent_linear(x, weight, bias, SMALL_TILE)
    assert got.shape == (rows, outputs)
    want = x.double() @ weight.double().t() + (bias.double() if has_bias else 0.0)
    if rows:
        assert_close("product", got, want, rel_rms=2**-10)


def test_a_weights_tile_follows_from_its_outputs():
    assert kernel.tile_of(64).outputs < kernel.tile_of(2048).outputs
    assert kernel.tile_of(2048) == kernel.tile_of(12288)
