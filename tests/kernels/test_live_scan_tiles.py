"""Live sequences in tiles of 16 rows: the definition's states and outputs, bits, what is left."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.kernels.items import Item, ItemKind
from hypic_sdk.kernels.live_scan import kernel, reference, tiles
from hypic_sdk.kernels.live_scan.walk import Walk
from hypic_sdk.kernels.scan_inputs import ScanInputs
from tests.closeness import assert_close
from tests.strategies import SHAPES, Shape, drawn, seeds

LAYERS, LAYER = 3, 1  # an op gets one layer's view, which is not contiguous
LOAD, RUN, GAP, SAVE = ItemKind
LONGEST = 40  # longer runs go through `segment_scan`'s tiles, between two launches
# each operand of a product is rounded to fp16, 2^-12 at most of the largest number of its block and
# a third of that on average; a gap and a tile take four such products one behind the other
STATES = 1e-3
# the interpreter cuts bf16 where a device rounds it: a whole unit of 2^-8 at most
OUTPUTS = {torch.float16: STATES, torch.bfloat16: 2**-7}
TRANSITIONS = ["fp16", "fp32", "int8", "unused"]


def inputs_of(
    shape: Shape, num_rows: int, seed: int, dtype: torch.dtype, *, size: float = 1.0
) -> ScanInputs:
    """Of the gated delta rule; values are multiplied by `size`, half of the heads forget a lot."""
    drawn_inputs = drawn("gated_delta_rule", num_rows, shape, seed, torch.float32).scan_inputs()
    assert drawn_inputs.log_decay is not None
    log_decay = drawn_inputs.log_decay.clone()
    log_decay[::3, ::2] -= 40.0
    query, key, value, erase = (
        x.to(dtype)
        for x in (
            drawn_inputs.query,
            drawn_inputs.key,
            size * drawn_inputs.value,
            drawn_inputs.erase,
        )
    )
    return replace(
        drawn_inputs, query=query, key=key, value=value, erase=erase, log_decay=log_decay
    )


def in_fp64(inputs: ScanInputs) -> ScanInputs:
    names = ("query", "key", "value", "erase", "log_decay")
    wide = {name: getattr(inputs, name) for name in names}
    return replace(inputs, **{n: None if x is None else x.double() for n, x in wide.items()})


def transitions_of(
    kind: str, shape: Shape, seed: int, states: torch.Tensor
) -> torch.Tensor | Int8Pairs:
    """Four rows of a slab whose other rows are NaN."""
    rng = torch.Generator().manual_seed(seed)
    H, K, V = shape.H, shape.K, shape.V
    drawn_HKK = torch.randn(4, H, K, K, generator=rng) / (2 * K**0.5)
    if kind == "int8":
        pairs = Int8Pairs.allocate((4,), (H, K, V), (H, K, K), torch.float32, states.device)
        pairs.write(range(4), drawn_HKK, states[:4].contiguous())
        return pairs
    slab = torch.full((6, LAYERS, H, K, K), torch.nan)[:, LAYER]
    slab[:4] = drawn_HKK
    return slab if kind == "fp32" else slab.half()


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Item], int]:
    """Sequences of runs, gaps and snapshots over slots of their own, rows of nobody between."""
    items, row = [], draw(st.integers(0, 2))
    lengths = st.sampled_from([0, 1, 2, 3, 15, 16, 17, 33, LONGEST + 5])
    for number in range(draw(st.integers(1, 4))):
        own = 4 + 3 * number
        items.append(Item(LOAD, slot=draw(st.sampled_from([-1, own]))))
        kinds = st.sampled_from([RUN, GAP, SAVE])
        for kind in [*draw(st.lists(kinds, max_size=4)), RUN]:
            if kind == RUN:
                stop = row + draw(lengths)
                items.append(Item(RUN, row, stop))
                row = stop
            elif kind == GAP:
                slots = st.integers(0, 3)
                items.append(Item(GAP, slot=draw(slots), transition_slot=draw(slots), num_tokens=9))
            else:
                items.append(Item(SAVE, slot=own + draw(st.integers(1, 2))))
        items.append(Item(SAVE, slot=own))
        row += draw(st.integers(0, 2))
    return items, row + 1


def states_of(shape: Shape, seed: int, size: float) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return size * torch.randn(18, LAYERS, shape.H, shape.K, shape.V, generator=rng)[:, LAYER]


def walked(
    inputs: ScanInputs,
    items: list[Item] | Walk,
    states: torch.Tensor,
    transitions: torch.Tensor | Int8Pairs,
    *,
    use_transition: bool = True,
) -> torch.Tensor:
    """The kernels' path, into an output of NaN."""
    out = torch.full_like(inputs.value, torch.nan)
    options = {"gap_rotation": None, "use_transition": use_transition}
    with mock.patch.object(kernel, "LONGEST_WALK", LONGEST):
        kernel.live_scan(inputs, items, states, transitions, out, **options)
    return out


@settings(max_examples=20)  # the interpreter runs one program at a time
@given(
    batch=batches(),
    shape=st.sampled_from([*SHAPES, Shape(2, 20, 40)]),
    dtype=st.sampled_from(list(OUTPUTS)),
    kind=st.sampled_from(TRANSITIONS),
    size=st.sampled_from([1.0, 1e4, 1e-4]),
    has_decay=st.booleans(),
    seed=seeds(),
)
def test_tiles_agree_with_the_definition(batch, shape, dtype, kind, size, has_decay, seed):
    """Rows, columns and slots that are nobody's stay as they are, and no NaN of them is met."""
    items, num_rows = batch
    size = min(size, 1e2) if dtype == torch.float16 else size  # its values end at 65504
    inputs = inputs_of(shape, num_rows, seed, dtype, size=size)
    if not has_decay:
        inputs = replace(inputs, log_decay=None)
    assert tiles.suits(inputs)
    states = states_of(shape, seed, size)
    read = {item.slot for item in items if item.kind in (LOAD, GAP)}
    states[[slot for slot in range(18) if slot not in read and slot > 3]] = torch.nan
    transitions = transitions_of(kind, shape, seed, states)
    use = kind != "unused"
    wide = transitions if isinstance(transitions, Int8Pairs) else transitions.double()
    want, want_states = torch.full(inputs.value.shape, torch.nan).double(), states.double()
    options = {"gap_rotation": None, "use_transition": use}
    reference.live_scan(in_fp64(inputs), items, want_states, wide, want, **options)
    got = walked(inputs, items, states, transitions, use_transition=use)
    for name, mine, definition, bound in (
        ("outputs", got, want, OUTPUTS[dtype]),
        ("states", states, want_states, STATES),
    ):
        assert torch.equal(mine.isnan(), definition.isnan()), f"{name}: other places were written"
        assert_close(name, mine.nan_to_num(0.0), definition.nan_to_num(0.0), rel_rms=bound)


def one_request(row: int, slot: int) -> list[Item]:
    """Gaps before, side by side and between runs; a run of two tiles and more."""
    gap = [Item(GAP, slot=i, transition_slot=3 - i) for i in range(4)]
    return [
        *(Item(LOAD, slot=slot), gap[0], Item(RUN, row, row + 5), gap[1], gap[2]),
        *(Item(RUN, row + 5, row + 40), Item(SAVE, slot=slot + 1), gap[3]),
        *(Item(RUN, row + 40, row + 41), Item(SAVE, slot=slot)),
    ]


def test_bits_are_the_sequences_own():
    """Alone or among others, at any rows and slots, whichever programs take the sequences."""
    shape = Shape(2, 17, 6)
    mine = inputs_of(shape, 41, 0, torch.bfloat16)
    other = inputs_of(shape, 90, 1, torch.bfloat16)
    start = states_of(shape, 5, 1.0)
    transitions = transitions_of("fp16", shape, 2, start)
    names = ("query", "key", "value", "erase", "log_decay")

    def walk_at(row: int, slot: int, before: list[Item], num_walkers: int | None) -> list[float]:
        rows = {n: torch.cat([getattr(other, n)[:row], getattr(mine, n)]) for n in names}
        batch = replace(mine, **rows)
        states = start.clone()
        states[slot] = start[10]
        items: list[Item] | Walk = [*before, *one_request(row, slot)]
        if num_walkers is not None:
            walk = Walk.of(items, LONGEST, None, torch.device("cpu"))
            tiled = tuple(
                None if one is None else replace(one, num_walkers=num_walkers) for one in walk.tiled
            )
            items = replace(walk, tiled=tiled)
        out = walked(batch, items, states, transitions)
        return [*out[row:].flatten().tolist(), *states[[slot, slot + 1]].flatten().tolist()]

    decode = [Item(LOAD, slot=4), Item(RUN, 0, 1), Item(SAVE, slot=4)]
    want = walk_at(0, 10, [], None)
    assert want == walk_at(3, 12, decode, None)
    assert want == walk_at(44, 14, [*decode, *one_request(2, 8)], None)
    for num_walkers in (1, 2, 5):
        assert want == walk_at(85, 15, [*one_request(1, 6), *one_request(43, 8)], num_walkers)


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_bits_are_the_same_for_every_block_of_columns(kind, monkeypatch):
    """Many sequences go in wider blocks; columns of a state are of sizes from 1 to 10^6."""
    shape = Shape(1, 17, 70)
    inputs = inputs_of(shape, 90, 0, torch.bfloat16)
    start = states_of(shape, 5, 1.0) * 10.0 ** torch.linspace(0, 6, shape.V)
    transitions = transitions_of(kind, shape, 2, start)
    items = [*one_request(1, 8), *one_request(45, 11)]
    blocks, found = [], []
    launch = tiles._walk_tiles_kernel.run
    for many in (1, 10**6):
        monkeypatch.setattr(tiles, "_MANY_WALKERS", many)
        states = start.clone()
        seen = mock.Mock(side_effect=launch)
        with mock.patch.object(tiles._walk_tiles_kernel, "run", seen):
            out = walked(inputs, items, states, transitions)
        blocks.append({call.kwargs["BLOCK_V"] for call in seen.call_args_list})
        found.append((out.nan_to_num(0.0), states))
    assert blocks == [{64}, {32}]
    (out, states), (narrow_out, narrow_states) = found
    assert torch.equal(out, narrow_out)
    assert torch.equal(states, narrow_states)


def decoding(row: int, slot: int) -> list[Item]:
    """Rows one by one, two at once, none, with a snapshot between."""
    return [
        *(Item(LOAD, slot=slot), Item(RUN, row, row + 1), Item(SAVE, slot=slot + 1)),
        *(Item(RUN, row, row), Item(RUN, row + 1, row + 3), Item(SAVE, slot=slot)),
    ]


@pytest.mark.parametrize("dtype", OUTPUTS)
@pytest.mark.parametrize("shape", [Shape(2, 17, 6), Shape(1, 5, 40), Shape(3, 20, 33)], ids=str)
def test_a_few_rows_are_the_definitions_and_their_bits_their_own(shape, dtype):
    """Of decoding, which goes row by row: each sequence alone, and all of them side by side."""
    inputs = inputs_of(shape, 9, 0, dtype)
    sequences = [decoding(3, 4), [Item(LOAD), *decoding(0, 7)[1:]], decoding(6, 10)]
    start = states_of(shape, 5, 1.0)
    start[[5, 7, 8, 11]] = torch.nan  # what is written only
    transitions = transitions_of("fp16", shape, 2, start)
    together = start.clone()
    with mock.patch.object(tiles, "walk_tiles", side_effect=AssertionError("no tiles")):
        out = walked(inputs, [item for one in sequences for item in one], together, transitions)
    want, want_states = torch.full(inputs.value.shape, torch.nan).double(), start.double()
    options = {"gap_rotation": None, "use_transition": True}
    apart, apart_out = start.clone(), torch.full_like(out, torch.nan)
    for items in sequences:
        own = walked(inputs, items, apart, transitions)
        apart_out = torch.where(own.isnan(), apart_out, own)
        reference.live_scan(in_fp64(inputs), items, want_states, None, want, **options)
    assert torch.equal(out, apart_out)
    assert torch.equal(together.nan_to_num(9.0), apart.nan_to_num(9.0))
    written = ~want_states.isnan()
    assert torch.equal(~together.isnan(), written)
    assert_close("states", together[written], want_states[written], rel_rms=1e-6)
    assert_close("outputs", out, want, rel_rms=2 * torch.finfo(dtype).eps)


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # of the interpreter's numpy
def test_what_is_not_finite_is_not_hidden():
    """An infinite number of T or S0, or a NaN, reaches the state that it leads to."""
    shape = Shape(1, 5, 3)
    inputs = inputs_of(shape, 41, 0, torch.bfloat16)
    for bad in (torch.inf, torch.nan):
        for where in ("transition", "end state", "state"):
            states = states_of(shape, 5, 1.0)
            transitions = transitions_of("fp16", shape, 2, states)
            assert isinstance(transitions, torch.Tensor)
            target = {"transition": transitions, "end state": states[1:], "state": states[10:]}
            target[where][0, 0, 2, 1] = bad
            walked(inputs, one_request(0, 10), states, transitions)
            assert not states[10].isfinite().all(), (where, bad)


@pytest.mark.parametrize("family", FAMILIES)
def test_tiles_are_for_what_they_serve(family):
    """Dense transitions of unit keys with a decay of a head; not fp32, whose bound they miss."""
    large = drawn(family, 2, Shape(1, 144, 3), 0, torch.bfloat16).scan_inputs()
    assert not tiles.suits(large)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        inputs = drawn(family, 9, Shape(2, 5, 3), 0, dtype).scan_inputs()
        is_low = dtype in (torch.bfloat16, torch.float16)
        assert tiles.suits(inputs) == (is_low and family in ("delta_rule", "gated_delta_rule"))
        if inputs.unit_keys:
            assert not tiles.suits(replace(inputs, unit_keys=False))
