from __future__ import annotations

import cmath

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.algebra.rotary import RotarySpec, rotary_angles, rotate, rotate_state
from tests.closeness import assert_close


def specs() -> st.SearchStrategy[RotarySpec]:
    return st.builds(
        RotarySpec,
        theta=st.sampled_from([10.0, 1e4, 1e7]),
        rotary_dims=st.sampled_from([2, 6, 10]),
        interleaved=st.booleans(),
    )


def by_complex_numbers(x: torch.Tensor, spec: RotarySpec, positions: list[int]) -> torch.Tensor:
    """Every pair as a complex number, one row and one pair at a time."""
    out = x.double().clone()
    half = spec.rotary_dims // 2
    for row, position in enumerate(positions):
        for pair in range(half):
            a, b = (2 * pair, 2 * pair + 1) if spec.interleaved else (pair, pair + half)
            turn = cmath.exp(1j * position * spec.theta ** (-2 * pair / spec.rotary_dims))
            turned = torch.complex(x[row, :, a].double(), x[row, :, b].double()) * turn
            out[row, :, a], out[row, :, b] = turned.real, turned.imag
    return out


@given(
    spec=specs(),
    positions=st.lists(st.integers(-5, 300_000), min_size=1, max_size=5),
    rest=st.integers(0, 3),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 2**31),
)
def test_rotation_is_the_complex_one(spec, positions, rest, dtype, seed):
    torch.manual_seed(seed)
    x = torch.randn(len(positions), 3, spec.rotary_dims + rest, dtype=dtype)
    cos, sin = rotary_angles(spec, torch.tensor(positions), dtype)
    got = rotate(x, cos, sin, spec.interleaved)
    # fp64 angles of 3e5 are 3e-11 off; one rounding of tables and products in fp32
    bound = 1e-10 if dtype == torch.float64 else 3e-7
    assert_close("rotated", got, by_complex_numbers(x, spec, positions), rel_rms=bound)
    assert torch.equal(got[..., spec.rotary_dims :], x[..., spec.rotary_dims :])


@given(spec=specs(), first=st.integers(0, 9999), second=st.integers(-9999, 9999))
def test_turns_add_up(spec, first, second):
    """R(b) R(a) = R(a + b): what moves a cached key, or state, to another position."""
    torch.manual_seed(first)
    state = torch.randn(2, 3, spec.rotary_dims + 1, 4, dtype=torch.float64)
    twice = rotate_state(rotate_state(state, spec, first), spec, second)
    assert_close("state", twice, rotate_state(state, spec, first + second), rel_rms=1e-10)


@given(spec=specs(), position=st.integers(0, 100_000), seed=st.integers(0, 2**31))
def test_turning_a_state_turns_the_keys_in_it(spec, position, seed):
    """The state of rotated keys, turned on, is the state of keys rotated further on."""
    torch.manual_seed(seed)
    key = torch.randn(7, 2, spec.rotary_dims + 2, dtype=torch.float64)
    value = torch.randn(7, 2, 3, dtype=torch.float64)

    def state_at(start: int) -> torch.Tensor:
        cos, sin = rotary_angles(spec, torch.arange(start, start + 7), torch.float64)
        rotated = rotate(key, cos, sin, spec.interleaved)
        return torch.einsum("lhk,lhv->hkv", rotated, value)

    moved = rotate_state(state_at(0), spec, position)
    assert_close("state", moved, state_at(position), rel_rms=1e-10)


def test_far_away_is_as_exact_as_near_in_fp32():
    """Angles come from integers in fp64: fp32 positions of 1e6 would be 6e-2 rad off."""
    spec = RotarySpec(theta=1e4, rotary_dims=64)
    torch.manual_seed(0)
    state = torch.randn(2, 64, 5)
    got = rotate_state(state, spec, 1_000_003)
    want = rotate_state(state.double(), spec, 1_000_003)
    assert got.dtype == torch.float32
    assert_close("state", got, want, rel_rms=3e-7)


@given(start=st.integers(0, 40), seed=st.integers(0, 2**31))
def test_a_row_is_the_same_in_any_company(start, seed):
    spec = RotarySpec(theta=1e4, rotary_dims=6)
    torch.manual_seed(seed)
    x = torch.randn(60, 3, 7)
    cos, sin = rotary_angles(spec, torch.arange(60), torch.float32)
    alone_cos, alone_sin = rotary_angles(spec, torch.arange(start, start + 5), torch.float32)
    alone = rotate(x[start : start + 5], alone_cos, alone_sin)
    assert torch.equal(alone, rotate(x, cos, sin)[start : start + 5])


@pytest.mark.parametrize("arguments", [(1e4, 3), (1e4, 0), (0.0, 4)])
def test_what_no_rotation_has_is_refused(arguments):
    with pytest.raises(ValueError, match=r"rotary_dims|theta"):
        RotarySpec(*arguments)


def test_more_dims_than_there_are_and_wrong_tables_are_refused():
    spec = RotarySpec(1e4, 8)
    cos, sin = rotary_angles(spec, torch.arange(3), torch.float32)
    with pytest.raises(ValueError, match="8 of 6"):
        rotate(torch.zeros(3, 2, 6), cos, sin)
    with pytest.raises(ValueError, match="do not fit"):
        rotate(torch.zeros(4, 2, 8), cos, sin)
    with pytest.raises(ValueError, match="integers"):
        rotary_angles(spec, torch.zeros(3), torch.float32)
