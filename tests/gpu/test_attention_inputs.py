"""Queries, keys and values before attention, on a CUDA device; cached keys to other slots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from hypic_sdk.kernels.attention_inputs.op import attention_inputs
from hypic_sdk.kernels.head_norms import HeadNorms
from hypic_sdk.kernels.items import NO_SLOT
from hypic_sdk.kernels.norm.op import rms_norm
from hypic_sdk.kernels.place_entries.op import place_entries
from hypic_sdk.kernels.rotation import RotarySpec, rotary_angles
from tests.closeness import assert_close
from tests.gpu.placed import BOUNDS, normal, same_places_written

pytestmark = pytest.mark.gpu

DTYPES = list(BOUNDS)
NAMES = ("query", "keys", "values", "turned")
# (L, Q, G, E, rotary dims)
SMALL = [(1, 1, 1, 4, 4), (5, 6, 3, 7, 6), (17, 2, 2, 10, 2), (33, 4, 1, 64, 16), (9, 2, 2, 21, 0)]
LARGE = (300, 16, 2, 256, 64)


def angles(spec: RotarySpec | None, positions: torch.Tensor, like: torch.Tensor) -> dict[str, Any]:
    """Keyword arguments of an op, on the device and in the width of `like`."""
    if spec is None:
        return {}
    wide = torch.promote_types(like.dtype, torch.float32)
    cos, sin = rotary_angles(spec, positions.to(like.device), wide)
    return {"cos": cos, "sin": sin, "interleaved": spec.interleaved}


@dataclass(frozen=True)
class Rows:
    """One projection's queries, keys and values, and where they go."""

    projected: torch.Tensor  # [L, (2 Q + 2 G) E], half of a query head a gate
    weights: torch.Tensor | None  # [2, E]
    slots: torch.Tensor
    entry_slots: torch.Tensor | None
    positions: torch.Tensor
    num_heads: tuple[int, int]  # Q, G
    spec: RotarySpec | None

    @property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Slices [L, heads, E]."""
        (Q, G), width = self.num_heads, self.projected.shape[1]
        size = width // (2 * Q + 2 * G)
        query, key, value = self.projected.split((2 * Q * size, G * size, G * size), 1)
        query = query.unflatten(1, (Q, 2 * size))[..., :size]
        return query, key.unflatten(1, (G, size)), value.unflatten(1, (G, size))

    @property
    def norms(self) -> HeadNorms | None:
        """Of the weights."""
        if self.weights is None:
            return None
        return HeadNorms(self.weights[0], self.weights[1], eps=1e-6, zero_centred=True)

    def some(self, rows: slice) -> Rows:
        """Fewer of them, in memory of their own."""
        return replace(
            self,
            projected=self.projected[rows].clone(),
            slots=self.slots[rows].clone(),
            entry_slots=None if self.entry_slots is None else self.entry_slots[rows].clone(),
            positions=self.positions[rows].clone(),
        )

    def run(self, num_slots: int, *, turned: bool = True) -> list[torch.Tensor]:
        """Rotated queries, slabs, rotated keys; what was not written is NaN."""
        query, key, value = self.parts
        keys, values = (key.new_full((num_slots, *key.shape[1:]), torch.nan) for _ in range(2))
        kept = [key.new_full(key.shape, torch.nan)] if turned else []
        out = attention_inputs(
            *(query, key, value, self.slots, keys, values),
            norms=self.norms,
            entry_slots_L=self.entry_slots,
            turned_LGE=kept[0] if kept else None,
            **angles(self.spec, self.positions, key),
        )
        return [out, keys, values, *kept]


def rows_of(
    device: torch.device,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    *,
    interleaved: bool = False,
    normed: bool = True,
) -> tuple[Rows, Rows]:
    """On the device, and the same numbers in fp64 on the CPU."""
    L, Q, G, E, rotary_dims = shape
    projected = normal(device, dtype, L, (2 * Q + 2 * G) * E)
    weights = normal(device, dtype, 2, E)
    slots, entry_slots = torch.randperm(2 * L + 3)[: 2 * L].view(2, L)
    slots[torch.rand(L) < 0.3] = NO_SLOT
    entry_slots[torch.rand(L) < 0.5] = NO_SLOT
    positions = torch.randint(0, 5000, (L,))
    spec = RotarySpec(1e4, rotary_dims, interleaved) if rotary_dims else None
    places = slots, entry_slots, positions
    here, wide = (
        Rows(x, w if normed else None, *(p.to(x.device) for p in places), (Q, G), spec)
        for x, w in ((projected.here, weights.here), (projected.wide, weights.wide))
    )
    return here, wide


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [*SMALL, LARGE], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_inputs(device, dtype, shape, interleaved, normed):
    here, wide = rows_of(device, dtype, shape, interleaved=interleaved, normed=normed)
    num_slots = 2 * shape[0] + 3
    for name, got, want in zip(NAMES, here.run(num_slots), wide.run(num_slots), strict=True):
        same_places_written(name, got, want)
        # a norm and a rotation, each rounded; cosines in fp32 are rounded to 2^-25, in fp64 an
        # angle of 5000 is known to 2^-40
        bound = 2**-39 if dtype == torch.float64 else 2 * BOUNDS[dtype]
        assert_close(name, got.cpu().nan_to_num(0.0), want.nan_to_num(0.0), rel_rms=bound)


def step_by_step(rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and rotated key by the kernels of a norm and of placing."""
    (query, key, _), norms = rows.parts, rows.norms
    if norms is not None:
        query = rms_norm(query, norms.query_E, eps=norms.eps, zero_centred=True)
        key = rms_norm(key, norms.key_E, eps=norms.eps, zero_centred=True)
    return placed(query, rows), key, placed(key, rows)


def placed(x: torch.Tensor, rows: Rows) -> torch.Tensor:
    slab = torch.cat((x, torch.full_like(x, torch.nan)))[None]
    source, target = torch.arange(2 * len(x), device=x.device).chunk(2)
    place_entries(slab, slab.clone(), source, target, **angles(rows.spec, rows.positions, x))
    return slab[0, len(x) :]


def fills_blocks(shape: tuple[int, ...]) -> bool:
    """Whether heads are of as many numbers as a program's blocks."""
    return shape[3] & (shape[3] - 1) == 0


def same(got: torch.Tensor, want: torch.Tensor, *, bits: bool) -> None:
    rounding = 0.0 if bits else 4 * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got, want, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("shape", [*SMALL, LARGE, (2048, 16, 2, 256, 64)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_launch_has_the_bits_of_one_after_the_other(device, dtype, shape, normed):
    """In a norm the order of sums may differ, where a head fills no whole block."""
    rows, _ = rows_of(device, dtype, shape, normed=normed)
    query, keys, values, turned = rows.run(2 * shape[0] + 3)
    want_query, key, want_turned = step_by_step(rows)
    bits = not normed or fills_blocks(shape)
    same(query, want_query, bits=bits)
    same(turned, want_turned, bits=bits)
    for slots, want in ((rows.slots, want_turned), (rows.entry_slots, key)):
        has_slot = slots != NO_SLOT
        same(keys[slots[has_slot]], want[has_slot], bits=bits)
        assert torch.equal(values[slots[has_slot]], rows.parts[2][has_slot])


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("shape", [*SMALL, LARGE, (2048, 16, 2, 256, 64)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_live_key_has_the_bits_of_a_cached_one_that_is_placed(device, dtype, shape, normed):
    """In fp64, of which no law promises bits, a compiler may sum the numbers of a norm twice."""
    rows, _ = rows_of(device, dtype, shape, normed=normed)
    _, keys, _, turned = rows.run(2 * shape[0] + 3)
    has_entry = rows.entry_slots != NO_SLOT
    cached = torch.zeros_like(turned)
    cached[has_entry] = keys[rows.entry_slots[has_entry]]
    bits = dtype != torch.float64 or not normed or fills_blocks(shape)
    same(placed(cached, rows)[has_entry], turned[has_entry], bits=bits)


@pytest.mark.parametrize("shape", [(33, 4, 1, 64, 16), LARGE], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_depends_on_itself_alone(device, dtype, shape):
    """Not on its neighbours, nor on what else is asked for: warm and cold forwards differ in it."""
    rows, _ = rows_of(device, dtype, shape)
    num_slots = 2 * shape[0] + 3
    query, keys, _, turned = rows.run(num_slots)
    for part in (slice(0, 1), slice(7, 8), slice(5, 33)):
        own = rows.some(part).run(num_slots)
        assert torch.equal(own[0], query[part])
        assert torch.equal(own[3], turned[part])
    bare = replace(rows, entry_slots=None).run(num_slots, turned=False)
    slots = rows.slots[rows.slots != NO_SLOT]
    assert torch.equal(bare[0], query)
    assert torch.equal(bare[1][slots], keys[slots])


def test_a_graph_reads_its_rows_anew(device):
    """Captured once; numbers, slots and angles that lie there later are what is run."""
    rows, _ = rows_of(device, torch.bfloat16, (32, 16, 2, 256, 64))
    query, key, value = rows.parts
    keys, values = (key.new_zeros((67, *key.shape[1:])) for _ in range(2))
    turn = angles(rows.spec, rows.positions, key)

    def forward() -> torch.Tensor:
        return attention_inputs(
            query, key, value, rows.slots, keys, values, norms=rows.norms, **turn
        )

    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        forward()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = forward()
    later, _ = rows_of(device, torch.bfloat16, (32, 16, 2, 256, 64))
    rows.projected.copy_(later.projected)
    rows.slots.copy_(later.slots)
    for name, x in angles(later.spec, later.positions, key).items():
        if isinstance(x, torch.Tensor):
            turn[name].copy_(x)
    keys.zero_()
    graph.replay()
    torch.cuda.synchronize(device)
    same = replace(later, weights=rows.weights, entry_slots=None)
    want_query, want_keys, *_ = same.run(67, turned=False)
    assert torch.equal(out, want_query)
    assert torch.equal(keys, want_keys.nan_to_num(0.0))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [*SMALL, LARGE], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_place_entries(device, dtype, shape, interleaved):
    L, _, G, E, rotary_dims = shape
    spec = RotarySpec(1e4, rotary_dims, interleaved) if rotary_dims else None
    positions, places = torch.randint(0, 5000, (L,)), torch.randperm(2 * L + 3)
    source, target = places[:L], places[L : 2 * L].clone()
    target[0] = NO_SLOT
    entries = normal(device, dtype, 2, 3, L, G, E)
    results = []
    for rows in (entries.here, entries.wide):
        slabs = rows.new_full((2, 3, 2 * L + 3, G, E), torch.nan)
        slabs[:, :, source.to(rows.device)] = rows
        keys, values = slabs[:, ::2]  # layers that do not lie side by side
        there = source.to(rows.device), target.to(rows.device)
        place_entries(keys, values, *there, **angles(spec, positions, rows))
        results.append({"keys": keys.cpu(), "values": values.cpu()})
    for name, want in results[1].items():
        same_places_written(name, results[0][name], want)
        got = results[0][name].nan_to_num(0.0)
        # cosines in fp32 are rounded to 2^-25; in fp64 an angle of 5000 is known to 2^-40
        bound = {torch.float64: 2**-40, torch.float32: 2e-7}.get(dtype, BOUNDS[dtype])
        assert_close(name, got, want.nan_to_num(0.0), rel_rms=bound)


def test_slabs_of_more_than_2_to_the_31_keys(device):
    G, E, L = 2, 256, 6
    num_slots = 2**30 // (G * E) + 40  # two layers: the second ends beyond 2^31
    keys, values = (
        torch.empty(2, num_slots, G, E, dtype=torch.float16, device=device) for _ in range(2)
    )
    assert keys.numel() > 2**31
    key, value = (normal(device, torch.float16, 2, L, G, E).here for _ in range(2))
    query = normal(device, torch.float16, L, G, E).here
    source = torch.arange(num_slots - L, num_slots, device=device)
    target = source - 2 * L
    keys[:, target], values[:, target] = torch.nan, torch.nan
    for layer in range(2):
        attention_inputs(query, key[layer], value[layer], source, keys[layer], values[layer])
    place_entries(keys, values, source, target)
    assert torch.equal(keys[:, target], key)
    assert torch.equal(values[:, target], value)
    whole = keys.view(1, 2 * num_slots, G, E)[0], values.view(1, 2 * num_slots, G, E)[0]
    attention_inputs(query, key[1], value[1], target + num_slots + L, *whole)
    assert torch.equal(keys[1, target + L], key[1])
    assert torch.equal(values[1, target + L], value[1])
