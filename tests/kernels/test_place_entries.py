from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.kernels.items import NO_SLOT
from hypic_sdk.kernels.place_entries import kernel, reference
from hypic_sdk.kernels.place_entries.op import place_entries
from hypic_sdk.kernels.rotation import RotarySpec, rotary_angles
from tests.closeness import assert_close

# two products and a sum; low precision: one rounding of the result
BOUNDS = {torch.float64: 1e-15, torch.float32: 2e-7, torch.bfloat16: 2**-8, torch.float16: 2**-11}
# (L, G, E, rotary dims); odd heads and sizes, one row, all or part of a head rotated, none
SHAPES = [(1, 1, 4, 4), (5, 3, 7, 6), (17, 2, 10, 2), (33, 1, 64, 16), (9, 2, 21, 0)]
NUM_LAYERS = 3


def rotated(key: torch.Tensor, positions: torch.Tensor, spec: RotarySpec | None) -> torch.Tensor:
    """The definition, pair by pair as complex numbers in fp64; [A, L, G, E]."""
    out = key.double()
    for pair in range(spec.rotary_dims // 2 if spec else 0):
        first = 2 * pair if spec.interleaved else pair
        second = first + (1 if spec.interleaved else spec.rotary_dims // 2)
        angle = positions.double() * spec.theta ** (-2 * pair / spec.rotary_dims)
        turned = torch.complex(out[..., first], out[..., second])
        turned = turned * torch.polar(torch.ones_like(angle), angle)[:, None]
        out[..., first], out[..., second] = turned.real, turned.imag
    return out


def angles(spec: RotarySpec | None, positions: torch.Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """Keyword arguments of an op."""
    if spec is None:
        return {"cos": None, "sin": None, "interleaved": False}
    wide = torch.promote_types(dtype, torch.float32)
    cos, sin = rotary_angles(spec, positions, wide)
    return {"cos": cos, "sin": sin, "interleaved": spec.interleaved}


def slabs_and_slots(
    shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Keys and values at the sources, poison elsewhere; some rows go nowhere."""
    L, G, E, _ = shape
    slots = torch.randperm(2 * L + 3)
    source, target = slots[:L], slots[L : 2 * L].clone()
    target[torch.rand(L) < 0.2] = NO_SLOT
    slabs = torch.full((2, NUM_LAYERS, 2 * L + 3, G, E), torch.nan, dtype=dtype)
    slabs[:, :, source] = torch.randn(2, NUM_LAYERS, L, G, E).to(dtype)
    # a row that goes nowhere may come from nowhere
    source = source.where((target != NO_SLOT) | (torch.rand(L) < 0.5), NO_SLOT)
    return [slabs[0], slabs[1]], source, target


def drawn_rotary(rotary_dims: int, interleaved: bool) -> RotarySpec | None:
    return RotarySpec(1e4, rotary_dims, interleaved) if rotary_dims else None


@given(
    shape=st.sampled_from(SHAPES),
    interleaved=st.booleans(),
    dtype=st.sampled_from(list(BOUNDS)),
    seed=st.integers(0, 2**31),
)
def test_entries_are_copied_to_the_rows_that_have_a_slot(shape, interleaved, dtype, seed):
    torch.manual_seed(seed)
    spec, positions = drawn_rotary(shape[3], interleaved), torch.randint(0, 5000, shape[:1])
    (keys, values), source, target = slabs_and_slots(shape, dtype)
    old_keys, old_values = keys.clone(), values.clone()

    place_entries(keys, values, source, target, **angles(spec, positions, dtype))

    placed = target != NO_SLOT
    untouched = torch.ones(keys.shape[1], dtype=torch.bool)
    untouched[target[placed]] = False
    for slab, old in ((keys, old_keys), (values, old_values)):
        assert torch.equal(slab[:, untouched].nan_to_num(9.0), old[:, untouched].nan_to_num(9.0))
    assert torch.equal(values[:, target[placed]], old_values[:, source[placed]])
    if placed.any():
        want = rotated(old_keys[:, source], positions, spec)[:, placed]
        # angles in fp32 are rounded to 2^-25 of at most 5000 radians' cosine
        assert_close("keys", keys[:, target[placed]], want, rel_rms=BOUNDS[dtype])


def test_turning_by_position_zero_is_a_plain_copy():
    slab = torch.randn(2, 8, 2, 6)
    keys, source, target = slab.clone(), *torch.arange(8).chunk(2)
    turn = angles(RotarySpec(1e4, 6), torch.zeros(4, dtype=torch.long), torch.float32)
    place_entries(keys, slab.clone(), source, target, **turn)
    assert torch.equal(keys[:, target], slab[:, source])


@settings(max_examples=25)  # the interpreter runs one program at a time
@given(
    shape=st.sampled_from(SHAPES),
    interleaved=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16]),
    seed=st.integers(0, 2**31),
)
def test_kernel_copies_entries_as_the_reference_does(device, shape, interleaved, dtype, seed):
    torch.manual_seed(seed)
    spec, positions = drawn_rotary(shape[3], interleaved), torch.randint(0, 5000, shape[:1])
    turn = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in angles(spec, positions, dtype).items()
    }
    slabs, source, target = slabs_and_slots(shape, dtype)
    # clones: on a CPU `to` hands the same memory back
    got, want = ([slab.to(device).clone() for slab in slabs] for _ in range(2))
    places = source.to(device), target.to(device)
    kernel.place_entries(*got, *places, **turn)
    reference.place_entries(*want, *places, **turn)
    for name, mine, right in zip(("keys", "values"), got, want, strict=True):
        assert torch.equal(mine.isnan(), right.isnan()), f"other {name} were written"
        assert_close(name, mine.nan_to_num(0.0), right.nan_to_num(0.0), rel_rms=BOUNDS[dtype])


def test_wrong_shapes_are_named():
    slots, slab, angle = torch.arange(4), torch.zeros(1, 9, 2, 6), torch.zeros(4, 3)
    with pytest.raises(ValueError, match="no slabs"):
        place_entries(slab[0], slab[0], slots, slots)
    with pytest.raises(ValueError, match=r"\(4,\).*\(3,\)"):
        place_entries(slab, slab, slots, slots[1:])
    with pytest.raises(ValueError, match="come together"):
        place_entries(slab, slab, slots, slots, cos=angle)
    with pytest.raises(ValueError, match="4 rows of 6"):
        place_entries(slab, slab, slots, slots, cos=torch.zeros(4, 4), sin=torch.zeros(4, 4))
