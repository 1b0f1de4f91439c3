from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.tools.tensor_descriptor import TensorDescriptor

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
IN_PARTS = kernel.Tile(16, 32, 16, 4, 2, parts=2)


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
    got = kernel.addressed_linear(x, weight, bias, SMALL_TILE)
    assert got.shape == (rows, outputs)
    want = x.double() @ weight.double().t() + (bias.double() if has_bias else 0.0)
    if rows:
        assert_close("product", got, want, rel_rms=2**-10)


@settings(max_examples=30)
@given(
    rows=st.integers(0, 70),
    inputs=st.sampled_from([8, 16, 40, 56]),
    # 40 and 72 are no multiple of a tile, 33 is no multiple of 16 bytes: written element by element
    outputs=st.sampled_from([1, 8, 33, 40, 72]),
    offset=st.sampled_from([0, 1, 3, 8]),
    tile=st.sampled_from([SMALL_TILE, IN_PARTS]),
    num_programs=st.sampled_from([1, 3, 100]),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_whole_tiles_are_the_definition(
    rows, inputs, outputs, offset, tile, num_programs, has_bias, seed
):
    """A program goes from tile to tile; rows may be a slice, anywhere, of wider ones."""
    wide, weight, bias = draw(rows, inputs + offset + 8, outputs, torch.float16, seed)
    x, weight = wide[:, offset : offset + inputs], weight[:, :inputs].contiguous()
    bias = bias if has_bias else None
    assert kernel.can_be_described(weight)
    got = kernel.described_linear(x, weight, bias, tile, num_programs)
    assert got.shape == (rows, outputs)
    assert got.is_contiguous()
    want = x.double() @ weight.double().t() + (bias.double() if has_bias else 0.0)
    if rows:
        assert_close("product", got, want, rel_rms=2**-10)


@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 40),
    offset=st.integers(0, 9),
    width=st.integers(50, 60),
)
def test_a_description_wants_whole_16_bytes(rows, inputs, offset, width):
    x = torch.empty(rows, width, dtype=torch.float16)[:, offset : offset + inputs]
    can = inputs % 8 == 0 and offset % 8 == 0 and width % 8 == 0
    assert kernel.can_be_described(x) == can
    assert not kernel.can_be_described(torch.empty(8, 16, dtype=torch.float16).t())


def test_a_description_is_the_one_that_triton_makes():
    rows = torch.empty(48, 128, dtype=torch.bfloat16)
    for matrix in (rows, rows[:, :64], rows[16:], torch.empty_like(rows)):
        want = TensorDescriptor(matrix, matrix.shape, matrix.stride(), [16, 32])
        got = kernel._description(matrix, 16, 32)
        assert type(got) is TensorDescriptor
        assert got.base is matrix
        assert vars(got) == vars(want)


@pytest.mark.parametrize("fetches", [True, False])
@pytest.mark.parametrize("inputs", [40, 44])
def test_a_kernel_follows_from_weight_and_device(monkeypatch, fetches, inputs):
    """Never from the rows: in another kernel they might get other bits."""
    taken = []

    def noted(name):
        whole = getattr(kernel, name)

        def run(*tensors):
            taken.append(name)
            return whole(*tensors, SMALL_TILE)

        return run

    for name in ("described_linear", "addressed_linear"):
        monkeypatch.setattr(kernel, name, noted(name))
    monkeypatch.setattr(kernel, "_fetches_tiles", lambda device: fetches)
    _, weight, bias = draw(1, inputs, 20, torch.float16)
    for rows, more in ((1, 0), (20, 0), (20, 1), (20, 8)):
        x = draw(rows, inputs + more, 1, torch.float16)[0][:, more:]
        got = kernel.row_independent_linear(x, weight, bias)
        want = x.double() @ weight.double().t() + bias.double()
        assert_close("product", got, want, rel_rms=2**-10)
    described = fetches and inputs % 8 == 0
    assert set(taken) == {"described_linear" if described else "addressed_linear"}


@pytest.mark.parametrize("tile_of", [kernel.tile_of, kernel.described_tile_of])
def test_a_weights_tile_follows_from_its_outputs(tile_of):
    assert tile_of(64).outputs < tile_of(2048).outputs <= tile_of(12288).outputs
    assert tile_of(4096) == tile_of(12288)
    for outputs in (64, 1288, 12352):
        tile = tile_of(outputs)
        fetched = tile.num_stages * tile.inputs * (tile.rows + tile.outputs)
        written = tile.rows * tile.outputs // tile.parts
        assert 2 * (fetched + written) <= 227 << 10  # bytes that a program of an H200 may have
