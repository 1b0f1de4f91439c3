from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.kernels.items import NO_SLOT
from hypic_sdk.kernels.place_kv import kernel, reference
from hypic_sdk.kernels.place_kv.op import place_entries, place_kv
from hypic_sdk.kernels.rotation import RotarySpec, rotary_angles
from tests.closeness import assert_close

# two products and a sum; low precision: one rounding of the result
BOUNDS = {torch.float64: 1e-15, torch.float32: 2e-7, torch.bfloat16: 2**-8, torch.float16: 2**-11}
# (L, G, E, rotary dims); odd heads and sizes, one row, all or part of a head rotated, none
SHAPES = [(1, 1, 4, 4), (5, 3, 7, 6), (17, 2, 10, 2), (33, 1, 64, 16), (9, 2, 21, 0)]
NUM_SLOTS = 41


def rotated(key: torch.Tensor, positions: torch.Tensor, spec: RotarySpec | None) -> torch.Tensor:
    """The definition, pair by pair as complex numbers in fp64."""
    out = key.double()
    for pair in range(spec.rotary_dims // 2 if spec else 0):
        first = 2 * pair if spec.interleaved else pair
        second = first + (1 if spec.interleaved else spec.rotary_dims // 2)
        angle = positions.double() * spec.theta ** (-2 * pair / spec.rotary_dims)
        turned = torch.complex(out[..., first], out[..., second])
        turned = turned * torch.polar(torch.ones_like(angle), angle)[:, None]
        out[..., first], out[..., second] = turned.real, turned.imag
    return out


def angles(spec: RotarySpec | None, positions: torch.Tensor, dtype: torch.dtype) -> dict:
    """Keyword arguments of an op."""
    if spec is None:
        return {"cos": None, "sin": None, "interleaved": False}
    wide = torch.promote_types(dtype, torch.float32)
    cos, sin = rotary_angles(spec, positions, wide)
    return {"cos": cos, "sin": sin, "interleaved": spec.interleaved}


def poisoned_slabs(*shape: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = torch.full((2, *shape), float("nan"), dtype=dtype)
    return keys, values


def drawn_rotary(rotary_dims: int, interleaved: bool) -> RotarySpec | None:
    return RotarySpec(1e4, rotary_dims, interleaved) if rotary_dims else None


@given(
    shape=st.sampled_from(SHAPES),
    interleaved=st.booleans(),
    dtype=st.sampled_from(list(BOUNDS)),
    share_placed=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_place_kv_writes_the_rows_that_have_a_slot(shape, interleaved, dtype, share_placed, seed):
    torch.manual_seed(seed)
    L, G, E, rotary_dims = shape
    spec, positions = drawn_rotary(rotary_dims, interleaved), torch.randint(0, 5000, (L,))
    key, value = torch.randn(2, L, G, E).to(dtype)
    slots = torch.randperm(NUM_SLOTS)[:L]
    placed = torch.rand(L) < share_placed
    slots[~placed] = NO_SLOT
    keys, values = poisoned_slabs(NUM_SLOTS, G, E, dtype=dtype)

    place_kv(key, value, slots, keys, values, **angles(spec, positions, dtype))

    untouched = torch.ones(NUM_SLOTS, dtype=torch.bool)
    untouched[slots[placed]] = False
    assert keys[untouched].isnan().all()
    assert values[untouched].isnan().all()
    assert torch.equal(values[slots[placed]], value[placed])
    if placed.any():
        want = rotated(key, positions, spec)[placed]
        # angles in fp32 are rounded to 2^-25 of at most 5000 radians' cosine
        assert_close("keys", keys[slots[placed]], want, rel_rms=BOUNDS[dtype])


@given(
    shape=st.sampled_from(SHAPES),
    interleaved=st.booleans(),
    dtype=st.sampled_from(list(BOUNDS)),
    seed=st.integers(0, 2**31),
)
def test_a_copied_entry_has_the_bits_of_a_live_row(shape, interleaved, dtype, seed):
    torch.manual_seed(seed)
    L, G, E, rotary_dims = shape
    A, num_slots = 3, 2 * L + 3
    spec, positions = drawn_rotary(rotary_dims, interleaved), torch.randint(0, 5000, (L,))
    turn = angles(spec, positions, dtype)
    key, value = torch.randn(2, A, L, G, E).to(dtype)
    slots = torch.randperm(num_slots)
    source, target = slots[:L], slots[L : 2 * L].clone()
    keys, values = poisoned_slabs(A, num_slots, G, E, dtype=dtype)
    keys[:, source], values[:, source] = key, value
    target[0] = NO_SLOT
    want_keys, want_values = keys.clone(), values.clone()
    for layer in range(A):
        place_kv(key[layer], value[layer], target, want_keys[layer], want_values[layer], **turn)

    place_entries(keys, values, source, target, **turn)

    assert torch.equal(keys.nan_to_num(9.0), want_keys.nan_to_num(9.0))
    assert torch.equal(values.nan_to_num(9.0), want_values.nan_to_num(9.0))


def test_turning_by_position_zero_is_a_plain_copy():
    key, value = torch.randn(2, 4, 2, 6)
    keys, values = poisoned_slabs(4, 2, 6, dtype=torch.float32)
    turn = angles(RotarySpec(1e4, 6), torch.zeros(4, dtype=torch.long), torch.float32)
    place_kv(key, value, torch.arange(4), keys, values, **turn)
    assert torch.equal(keys, key)


KERNEL_SETTINGS = settings(max_examples=25)  # the interpreter runs one program at a time


@KERNEL_SETTINGS
@given(
    shape=st.sampled_from(SHAPES),
    interleaved=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16]),
    strided=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_kernel_places_as_the_reference_does(device, shape, interleaved, dtype, strided, seed):
    torch.manual_seed(seed)
    L, G, E, rotary_dims = shape
    spec, positions = drawn_rotary(rotary_dims, interleaved), torch.randint(0, 5000, (L,))
    turn = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in angles(spec, positions, dtype).items()
    }
    key, value = torch.randn(2, L, G, E, device=device).to(dtype)
    if strided:  # a slice of a wider projection, and a transposed one
        key = torch.stack((key, key), dim=2)[:, :, 1]
        value = value.transpose(1, 2).contiguous().transpose(1, 2)
    slots = torch.randperm(NUM_SLOTS, device=device)[:L]
    slots[torch.rand(L) < 0.3] = NO_SLOT
    slabs = [slab.to(device) for slab in poisoned_slabs(NUM_SLOTS, G, E, dtype=dtype)]
    # clones: on a CPU `to` hands the same memory back
    got, want = ([slab.clone() for slab in slabs] for _ in range(2))
    kernel.place_kv(key, value, slots, *got, **turn)
    reference.place_kv(key, value, slots, *want, **turn)
    compare_slabs(got, want, BOUNDS[dtype])


@KERNEL_SETTINGS
@given(
    shape=st.sampled_from(SHAPES),
    interleaved=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16]),
    seed=st.integers(0, 2**31),
)
def test_kernel_copies_entries_as_the_reference_does(device, shape, interleaved, dtype, seed):
    torch.manual_seed(seed)
    L, G, E, rotary_dims = shape
    spec, positions = drawn_rotary(rotary_dims, interleaved), torch.randint(0, 5000, (L,))
    turn = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in angles(spec, positions, dtype).items()
    }
    slots = torch.randperm(2 * L + 3, device=device)
    source, target = slots[:L], slots[L : 2 * L].clone()
    target[0] = NO_SLOT
    slabs = [slab.to(device) for slab in poisoned_slabs(2, 2 * L + 3, G, E, dtype=dtype)]
    for slab in slabs:
        slab[:, source] = torch.randn(2, L, G, E, device=device).to(dtype)
    got, want = ([slab.clone() for slab in slabs] for _ in range(2))
    kernel.place_entries(*got, source, target, **turn)
    reference.place_entries(*want, source, target, **turn)
    compare_slabs(got, want, BOUNDS[dtype])


def compare_slabs(got: list[torch.Tensor], want: list[torch.Tensor], rel_rms: float) -> None:
    """Fail unless the same elements were written, to the same values."""
    for name, got_slab, want_slab in zip(("keys", "values"), got, want, strict=True):
        assert torch.equal(got_slab.isnan(), want_slab.isnan()), f"other {name} were written"
        assert_close(name, got_slab.nan_to_num(0.0), want_slab.nan_to_num(0.0), rel_rms=rel_rms)


def test_wrong_shapes_are_named():
    key, slots = torch.zeros(4, 2, 6), torch.arange(4)
    slab = torch.zeros(9, 2, 6)
    angle = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"\(4, 1, 6\)"):
        place_kv(key, key[:, :1], slots, slab, slab)
    with pytest.raises(ValueError, match=r"\(9, 1, 6\)"):
        place_kv(key, key, slots, slab[:, :1], slab[:, :1])
    with pytest.raises(ValueError, match=r"slots \(3,\)"):
        place_kv(key, key, slots[1:], slab, slab)
    with pytest.raises(ValueError, match="come together"):
        place_kv(key, key, slots, slab, slab, cos=angle)
    with pytest.raises(ValueError, match="4 rows of 6"):
        place_kv(key, key, slots, slab, slab, cos=torch.zeros(4, 4), sin=torch.zeros(4, 4))
    with pytest.raises(ValueError, match="no slabs"):
        place_entries(slab, slab, slots, slots)
    with pytest.raises(ValueError, match=r"\(4,\).*\(3,\)"):
        place_entries(slab[None], slab[None], slots, slots[1:])
