"""Pairs in 8 bits: the error that rounding may make, whatever the rows are; what is not finite."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.kernels.int8_pairs import LARGEST, Int8Pairs, from_int8, to_int8
from tests.strategies import Shape, seeds, shapes

# a row's largest size, as a power of ten: from zero and the smallest numbers of fp32 to its largest
SIZES = st.sampled_from([None, -45, -42, -39, -38, -37, -30, -8, -3, 0, 2, 5, 20, 38])
DTYPES = st.sampled_from([torch.float32, torch.float64])
NOT_FINITE = (math.nan, math.inf, -math.inf)
# of what a quotient is rounded by before it becomes a whole number
HALF = 0.5 * (1 + 1e-4)


def rows_of(sizes: list[int | None], num_columns: int, seed: int, dtype: torch.dtype):
    """[R, C]: one row of each size, in fp64 what fp32 holds."""
    rng = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(len(sizes), num_columns, generator=rng, dtype=torch.float64) - 1
    scale = torch.tensor([0.0 if size is None else 10.0**size for size in sizes]).double()
    return (x * scale[:, None]).float().to(dtype)


@given(
    sizes=st.lists(SIZES, min_size=1, max_size=6),
    num_columns=st.sampled_from([1, 2, 7, 128]),
    seed=seeds(),
    dtype=DTYPES,
)
def test_no_element_is_off_by_more_than_half_a_scale(sizes, num_columns, seed, dtype):
    x = rows_of(sizes, num_columns, seed, dtype)
    numbers, scales = to_int8(x)
    assert numbers.dtype == torch.int8
    assert int(numbers.int().abs().max()) <= LARGEST
    # the oracle: in fp64, without the code that reads
    read = numbers.double() * scales.double()[:, None]
    assert bool(((x.double() - read).abs() <= HALF * scales.double()[:, None]).all())
    assert torch.equal(from_int8(numbers, scales, torch.float64), read)
    assert torch.equal(from_int8(numbers, scales, torch.float32).double(), read), "exact in fp32"
    # the scale is the row's own, within 0.4 %, unless the row is smaller than any normal number
    wanted = (x.double().abs().amax(-1) / LARGEST).clamp_min(2.0**-126)
    assert bool(((scales.double() / wanted - 1).abs() <= 2.0**-8).all())


@given(sizes=st.lists(SIZES, min_size=2, max_size=5), seed=seeds(), dtype=DTYPES)
def test_a_row_is_rounded_as_it_is_alone(sizes, seed, dtype):
    x = rows_of(sizes, 9, seed, dtype)
    together = to_int8(x)
    for i in range(len(sizes)):
        alone = to_int8(x[i : i + 1].clone())
        assert torch.equal(together[0][i], alone[0][0])
        assert torch.equal(together[1][i], alone[1][0])


@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_row_that_is_not_finite_is_told_by_its_scale_alone(value):
    x = torch.arange(12.0).reshape(3, 4)
    x[1, 2] = value
    numbers, scales = to_int8(x)
    assert scales.isfinite().tolist() == [True, False, True]
    assert torch.equal(numbers[[0, 2]], to_int8(x[[0, 2]])[0])


def test_what_fp64_alone_holds_is_not_finite_in_8_bits():
    assert not to_int8(torch.tensor([[1e300, 1.0]], dtype=torch.float64))[1].isfinite()


def one_layer(shape: Shape, axes: int | None, dtype: torch.dtype = torch.float32) -> Int8Pairs:
    """Poisoned rows of the second of three layers; `axes`: of a transition behind H."""
    H, K, V = shape.H, shape.K, shape.V
    transition = None if axes is None else (H, *[K] * axes)
    pairs = Int8Pairs.allocate((4, 3), (H, K, V), transition, dtype, torch.device("cpu"))
    for slab in pairs.tensors():
        slab.fill_(77 if slab.dtype == torch.int8 else math.nan)
    return pairs.layers()[1]


def pair_of(shape: Shape, axes: int | None, seed: int, dtype: torch.dtype = torch.float32):
    """Two transitions (or log-decays) and two end states."""
    rng = torch.Generator().manual_seed(seed)
    H, K, V = shape.H, shape.K, shape.V

    def drawn(*size: int) -> torch.Tensor:
        return torch.randn(2, H, *size, generator=rng, dtype=dtype)

    if axes is None:
        return None, drawn(K, V)
    transition = drawn(*[K] * axes)
    if axes == 2:
        transition = 0.1 * transition + 0.7 * torch.eye(K, dtype=dtype)
    return transition, drawn(K, V)


@given(shape=shapes(), axes=st.sampled_from([None, 0, 1, 2]), seed=seeds(), dtype=DTYPES)
def test_a_pair_is_read_back_within_its_error(shape, axes, seed, dtype):
    rows = one_layer(shape, axes, dtype)
    transitions, states = pair_of(shape, axes, seed, dtype)
    assert rows.write([3, 1], transitions, states).tolist() == [True, True]
    for i, row in enumerate((3, 1)):
        read = rows.read_state(row, dtype)
        scales = rows.state_scales[row].to(dtype)[..., None]
        assert bool(((states[i] - read).abs() <= HALF * scales).all())
        if transitions is None:
            continue
        got, want = rows.read_transition(row, dtype), transitions[i]
        if axes < 2:
            assert torch.equal(got, want), "log-decays are kept as they are"
            continue
        diagonal = want.diagonal(dim1=-2, dim2=-1)
        assert torch.equal(got.diagonal(dim1=-2, dim2=-1), diagonal.half().to(dtype))
        off = (got - want).abs()
        off.diagonal(dim1=-2, dim2=-1).zero_()
        assert bool((off <= HALF * rows.transition_scales[row].to(dtype)[..., None]).all())
    for slab in rows.tensors():
        others = slab[[0, 2]]
        assert bool((others == 77).all() if slab.dtype == torch.int8 else others.isnan().all())


def test_a_strong_diagonal_does_not_coarsen_its_row():
    """Most of what a transition keeps is on it: beside it, the rest has steps of its own size."""
    rows, (transitions, states) = one_layer(Shape(2, 8, 3), 2), pair_of(Shape(2, 8, 3), 2, 0)
    rows.write([0, 1], transitions, states)
    rest = transitions.clone()
    rest.diagonal(dim1=-2, dim2=-1).zero_()
    scales = rows.transition_scales[:2].float()
    assert bool((scales <= 1.004 * rest.abs().amax(-1) / LARGEST).all())
    assert bool((scales < 0.7 / LARGEST).all())


@pytest.mark.parametrize("value", [*NOT_FINITE, 1e5])
@pytest.mark.parametrize("axes", [None, 0, 1, 2])
def test_a_pair_that_is_not_finite_as_kept_is_told(axes, value):
    """1e5: a diagonal that fp16 does not hold; anywhere else it is a number like others."""
    shape = Shape(2, 5, 3)
    places = ["state"] if axes is None else ["state", "transition"]
    places += ["diagonal"] if axes == 2 else []
    for place, bad in itertools.product(places, (0, 1)):
        rows, (transitions, states) = one_layer(shape, axes), pair_of(shape, axes, 1)
        if place == "state":
            states[bad, 1, 4, 2] = value
        elif place == "diagonal":
            transitions[bad, 1, 4, 4] = value
        else:
            transitions[bad].view(2, -1)[1, 1 if axes else 0] = value
        is_kept = math.isfinite(value) and place != "diagonal"
        want = [True, True]
        want[bad] = is_kept
        assert rows.write([0, 2], transitions, states).tolist() == want, place


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_device_the_same_bits_are_kept(device, dtype):
    x = rows_of([None, -45, -38, -8, 0, 5, 38], 128, 0, dtype)
    for got, want in zip(to_int8(x.to(device)), to_int8(x), strict=True):
        assert torch.equal(got.cpu(), want)
