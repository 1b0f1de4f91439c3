"""Norms, rotation and placing: the definition head by head, in fp64; the kernel; their bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.kernels.attention_inputs import kernel
from hypic_sdk.kernels.attention_inputs.op import attention_inputs
from hypic_sdk.kernels.head_norms import HeadNorms
from hypic_sdk.kernels.items import NO_SLOT
from hypic_sdk.kernels.norm import kernel as norm_kernel
from hypic_sdk.kernels.place_entries import kernel as place_kernel
from hypic_sdk.kernels.rotation import RotarySpec, rotary_angles
from tests.closeness import assert_close

# a norm and a rotation, each a handful of roundings; low precision: one rounding after each
BOUNDS = {torch.float64: 1e-14, torch.float32: 5e-7, torch.bfloat16: 2**-7, torch.float16: 2**-10}
# (L, Q, G, E, rotary dims); odd heads and sizes, one row, all or part of a head rotated, none
SHAPES = [(1, 1, 1, 4, 4), (5, 6, 3, 7, 6), (17, 2, 2, 10, 2), (11, 4, 1, 64, 16), (9, 3, 1, 21, 0)]
KERNEL_SETTINGS = settings(max_examples=25)  # the interpreter runs one program at a time


@dataclass(frozen=True)
class Drawn:
    """Arguments of the op, fresh ones at each draw; slabs and outputs are poisoned."""

    query: torch.Tensor  # slices of one projection, NaN beside them
    key: torch.Tensor
    value: torch.Tensor
    slots: torch.Tensor
    entry_slots: torch.Tensor | None
    norms: HeadNorms | None
    spec: RotarySpec | None
    positions: torch.Tensor
    slab_dtype: torch.dtype

    @property
    def turn(self) -> dict[str, Any]:
        """Angles, as keyword arguments."""
        if self.spec is None:
            return {"cos": None, "sin": None, "interleaved": False}
        wide = torch.promote_types(self.query.dtype, torch.float32)
        cos, sin = rotary_angles(self.spec, self.positions, wide)
        return {"cos": cos, "sin": sin, "interleaved": self.spec.interleaved}

    def rows(self, rows: slice) -> Drawn:
        """Some of the rows."""
        names = ("query", "key", "value", "slots", "positions")
        entry_slots = None if self.entry_slots is None else self.entry_slots[rows]
        return replace(
            self, entry_slots=entry_slots, **{name: getattr(self, name)[rows] for name in names}
        )

    def run(self, run: Callable[..., torch.Tensor], *, turned: bool = True) -> list[torch.Tensor]:
        """Rotated queries, slabs, and where it is asked for the rows' rotated keys."""
        num_slots, (G, E) = 2 * 17 + 5, self.key.shape[1:]
        # each with strides of its own
        keys, values = (
            torch.full((num_slots, G + x, E + 2 * x), torch.nan, dtype=self.slab_dtype)[:, :G, :E]
            for x in (0, 1)
        )
        # of the dtype of the rows, contiguous, never written
        kept = [torch.full(self.key.shape, torch.nan, dtype=self.key.dtype)] if turned else []
        query = run(
            *(self.query, self.key, self.value, self.slots, keys, values),
            norms=self.norms,
            entry_slots_L=self.entry_slots,
            turned_LGE=kept[0] if turned else None,
            **self.turn,
        )
        return [query, keys, values, *kept]


def drawn(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    seed: int = 0,
    interleaved: bool = False,
    normed: bool = True,
    zero_centred: bool = True,
    entries: bool = True,
    gated: bool = True,
    slab_dtype: torch.dtype | None = None,
) -> Drawn:
    """Some rows have a slot, some an entry's, some both, some none."""
    torch.manual_seed(seed)
    L, Q, G, E, rotary_dims = shape
    step = 2 * E if gated else E
    projected = torch.full((L, Q * step + 2 * G * (E + 1) + 3), torch.nan, dtype=dtype)
    query, key, value, _ = projected.split_with_sizes((Q * step, G * E, G * (E + 2), 3), 1)
    query = query.unflatten(1, (Q, step))[..., :E]
    # heads of keys and of values at distances of their own
    key, value = key.unflatten(1, (G, E)), value.unflatten(1, (G, E + 2))[..., :E]
    for x in (query, key, value):
        x.copy_(3 * torch.randn(x.shape))
    slots, entry_slots = torch.randperm(2 * 17 + 5)[: 2 * L].view(2, L)
    slots[torch.rand(L) < 0.3] = NO_SLOT
    entry_slots[torch.rand(L) < 0.5] = NO_SLOT
    weights = torch.randn(2, E).to(dtype)
    norms = HeadNorms(weights[0], weights[1], eps=1e-3, zero_centred=zero_centred)
    return Drawn(
        *(query, key, value, slots),
        entry_slots=entry_slots if entries else None,
        norms=norms if normed else None,
        spec=RotarySpec(1e4, rotary_dims, interleaved) if rotary_dims else None,
        positions=torch.randint(0, 5000, (L,)),
        slab_dtype=slab_dtype or dtype,
    )


def normed_by_hand(x: torch.Tensor, weight: torch.Tensor, norms: HeadNorms) -> torch.Tensor:
    """Head by head in fp64."""
    factor = weight.double() + (1.0 if norms.zero_centred else 0.0)
    heads = [
        head * factor / (head.square().sum() / len(head) + norms.eps).sqrt()
        for head in x.double().flatten(0, 1)
    ]
    return torch.stack(heads).view(x.shape)


def turned_by_hand(x: torch.Tensor, drawn: Drawn) -> torch.Tensor:
    """Pair by pair as complex numbers in fp64, from the angles that were given."""
    out, spec, turn = x.double().clone(), drawn.spec, drawn.turn
    for pair in range(spec.rotary_dims // 2 if spec else 0):
        first = 2 * pair if spec.interleaved else pair
        second = first + (1 if spec.interleaved else spec.rotary_dims // 2)
        unit = torch.complex(turn["cos"][:, pair].double(), turn["sin"][:, pair].double())
        number = torch.complex(x[..., first].double(), x[..., second].double()) * unit[:, None]
        out[..., first], out[..., second] = number.real, number.imag
    return out


def by_definition(drawn: Drawn) -> list[torch.Tensor]:
    """What `Drawn.run` returns, in fp64."""
    query, key, norms = drawn.query, drawn.key, drawn.norms
    if norms is not None:
        query = normed_by_hand(query, norms.query_E, norms)
        key = normed_by_hand(key, norms.key_E, norms)
    keys, values = torch.full((2, 2 * 17 + 5, *key.shape[1:]), torch.nan, dtype=torch.float64)
    turned = turned_by_hand(key, drawn)
    writes = [(drawn.slots, turned)]
    if drawn.entry_slots is not None:
        writes.append((drawn.entry_slots, key.double()))
    for slots, rows in writes:
        placed = slots != NO_SLOT
        keys[slots[placed]] = rows[placed]
        values[slots[placed]] = drawn.value[placed].double()
    return [turned_by_hand(query, drawn), keys, values, turned]


def compare(got: list[torch.Tensor], want: list[torch.Tensor], rel_rms: float) -> None:
    """Fail unless the same elements were written, to the same values."""
    for name, mine, right in zip(("query", "keys", "values", "turned"), got, want, strict=True):
        assert torch.equal(mine.isnan(), right.isnan()), f"other {name} were written"
        assert_close(name, mine.nan_to_num(0.0), right.nan_to_num(0.0), rel_rms=rel_rms)


def same_bits(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for name, mine, right in zip(("query", "keys", "values", "turned"), got, want, strict=False):
        assert mine.dtype == right.dtype
        assert torch.equal(mine.isnan(), right.isnan()), f"other {name} were written"
        assert torch.equal(mine.nan_to_num(9.0), right.nan_to_num(9.0)), name


@pytest.fixture(autouse=True, scope="module")
def _short_programs() -> Iterator[None]:
    """So that there are several of them at these sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "BLOCK", 128)
        patch.setattr(norm_kernel, "BLOCK", 128)
        yield


OPTIONS = {
    "shape": st.sampled_from(SHAPES),
    "interleaved": st.booleans(),
    "normed": st.booleans(),
    "zero_centred": st.booleans(),
    "entries": st.booleans(),
    "gated": st.booleans(),
    "seed": st.integers(0, 2**31),
}


@pytest.mark.parametrize("run", [attention_inputs, kernel.attention_inputs], ids=["op", "triton"])
@KERNEL_SETTINGS
@given(dtype=st.sampled_from(list(BOUNDS)), **OPTIONS)
def test_both_agree_with_the_definition(run, shape, dtype, **options):
    """The projection's other numbers are not read, other slots are not written."""
    rows = drawn(shape, dtype, **options)
    # the interpreter cuts a bf16 off where a device rounds it
    compare(rows.run(run), by_definition(rows), 2 * BOUNDS[dtype])


@KERNEL_SETTINGS
@given(dtype=st.sampled_from(list(BOUNDS)), **OPTIONS)
def test_kernel_agrees_with_the_reference(shape, dtype, **options):
    rows = drawn(shape, dtype, **options)
    got, want = rows.run(kernel.attention_inputs), rows.run(attention_inputs)
    assert [x.dtype for x in got] == [x.dtype for x in want]
    compare(got, want, 2 * BOUNDS[dtype])


def step_by_step(rows: Drawn) -> list[torch.Tensor]:
    """The kernels of a norm and of placing, one launch after the other."""
    query, key, norms = rows.query, rows.key, rows.norms
    if norms is not None:
        options = {"eps": norms.eps, "zero_centred": norms.zero_centred}
        query = norm_kernel.rms_norm(query, norms.query_E, **options)
        key = norm_kernel.rms_norm(key, norms.key_E, **options)
    turned, turned_query = placed(key, rows), placed(query, rows)
    stages = replace(rows, query=turned_query, norms=None, spec=None)
    late = replace(stages, key=turned, entry_slots=None).run(attention_inputs)
    if rows.entry_slots is not None:
        early = replace(stages, key=key, slots=rows.entry_slots, entry_slots=None)
        for mine, other in zip(late[1:3], early.run(attention_inputs)[1:3], strict=True):
            mine.copy_(torch.where(other.isnan(), mine, other))
    return late


def placed(x: torch.Tensor, rows: Drawn) -> torch.Tensor:
    """Heads as `place_entries` turns them."""
    slab = torch.cat((x, torch.full_like(x, torch.nan)))[None]
    source, target = torch.arange(2 * len(x)).chunk(2)
    place_kernel.place_entries(slab, slab.clone(), source, target, **rows.turn)
    return slab[0, len(x) :]


@KERNEL_SETTINGS
@given(dtype=st.sampled_from(list(BOUNDS)), **OPTIONS)
def test_one_launch_has_the_bits_of_one_after_the_other(shape, dtype, **options):
    """A live key those of a cached one that is placed, too."""
    rows = drawn(shape, dtype, **options)
    same_bits(rows.run(kernel.attention_inputs), step_by_step(rows))


@pytest.mark.parametrize("run", [attention_inputs, kernel.attention_inputs], ids=["op", "triton"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_a_row_depends_on_itself_alone(run, dtype):
    """Not on its neighbours, on where it goes, nor on what else is asked for."""
    rows = drawn((17, 6, 3, 21, 6), dtype)
    query, keys, values, turned = rows.run(run)
    for part in (slice(0, 1), slice(3, 4), slice(5, 17)):
        own = rows.rows(part).run(run)
        assert torch.equal(own[0], query[part])
        assert torch.equal(own[3], turned[part])
    assert torch.equal(keys[rows.slots[rows.slots >= 0]], turned[rows.slots >= 0])
    bare = replace(rows, entry_slots=None)
    for again in (bare.run(run), bare.run(run, turned=False)):
        assert torch.equal(again[0], query)
        for mine, right in zip(again[1:3], (keys, values), strict=True):
            slots = rows.slots[rows.slots >= 0]
            assert torch.equal(mine[slots], right[slots])
            assert mine.isnan().flatten(1).all(1).sum() == len(mine) - len(slots)


@pytest.mark.parametrize("run", [attention_inputs, kernel.attention_inputs], ids=["op", "triton"])
def test_rows_that_go_nowhere_and_no_rows(run):
    """Padding, and a forward without rows."""
    rows = drawn((9, 4, 2, 8, 4), torch.float32)
    nowhere = torch.full((9,), NO_SLOT)
    query, keys, values, turned = replace(rows, slots=nowhere, entry_slots=nowhere).run(run)
    assert keys.isnan().all()
    assert values.isnan().all()
    assert not query.isnan().any()
    assert not turned.isnan().any()
    query, keys, *_ = rows.rows(slice(0, 0)).run(run)
    assert query.shape == (0, 4, 8)
    assert keys.isnan().all()


@pytest.mark.parametrize("run", [attention_inputs, kernel.attention_inputs], ids=["op", "triton"])
def test_queries_that_nothing_changes_are_given_back(run):
    """Without norm and rotation; keys are placed all the same."""
    rows = drawn((9, 4, 2, 8, 0), torch.float32, normed=False)
    query, keys, *_ = rows.run(run)
    assert query is rows.query
    placed = rows.slots >= 0
    assert torch.equal(keys[rows.slots[placed]], rows.key[placed])


@pytest.mark.parametrize("run", [attention_inputs, kernel.attention_inputs], ids=["op", "triton"])
def test_slabs_have_a_dtype_of_their_own(run):
    """A rotated key is rounded once, to that of the slab."""
    rows = drawn((9, 4, 2, 8, 4), torch.float32, slab_dtype=torch.float16)
    query, keys, values, turned = rows.run(run)
    assert (query.dtype, turned.dtype) == (torch.float32, torch.float32)
    assert (keys.dtype, values.dtype) == (torch.float16, torch.float16)
    placed = rows.slots >= 0
    assert torch.equal(keys[rows.slots[placed]], turned[placed].half())
    assert torch.equal(values[rows.slots[placed]], rows.value[placed].half())


def test_last_axes_may_be_strided():
    rows = drawn((9, 4, 2, 8, 4), torch.float32)
    apart = {
        name: getattr(rows, name).transpose(1, 2).contiguous().transpose(1, 2)
        for name in ("query", "key", "value")
    }
    assert apart["key"].stride(2) != 1
    same_bits(
        replace(rows, **apart).run(kernel.attention_inputs), rows.run(kernel.attention_inputs)
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": torch.zeros(4, 1, 6)}, r"values \(4, 1, 6\)"),
        ({"query": torch.zeros(4, 6)}, r"queries \(4, 6\)"),
        ({"query": torch.zeros(4, 4, 8)}, r"queries \(4, 4, 8\)"),
        ({"query": torch.zeros(4, 4, 6).half()}, "one dtype"),
        ({"slots": torch.arange(3)}, r"slots \(3,\)"),
        ({"values": torch.zeros(9, 1, 6)}, r"\(9, 1, 6\)"),
        ({"entry_slots_L": torch.arange(3)}, r"entry slots \(3,\) for 4 rows"),
        ({"turned_LGE": torch.zeros(4, 1, 6)}, r"\(4, 1, 6\)"),
        ({"turned_LGE": torch.zeros(4, 2, 6).half()}, "float16"),
        ({"turned_LGE": torch.zeros(4, 6, 2).transpose(1, 2)}, "cannot take"),
        ({"cos": torch.zeros(4, 3)}, "come together"),
        ({"cos": torch.zeros(4, 4), "sin": torch.zeros(4, 4)}, "4 rows of 6"),
        (
            {"norms": HeadNorms(torch.zeros(6), torch.zeros(5), eps=1e-6, zero_centred=True)},
            r"\(5,\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    arguments = {
        "query": torch.zeros(4, 4, 6),
        "key": torch.zeros(4, 2, 6),
        "value": torch.zeros(4, 2, 6),
        "slots": torch.arange(4),
        "keys": torch.zeros(9, 2, 6),
        "values": torch.zeros(9, 2, 6),
    }
    named = {name: changes.pop(name) for name in list(changes) if name not in arguments}
    with pytest.raises(ValueError, match=message):
        attention_inputs(*{**arguments, **changes}.values(), **named)
