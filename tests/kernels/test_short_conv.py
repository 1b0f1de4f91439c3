"""Short conv: against one padded pass over each sequence, tails, chunks, bits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.kernels.items import ColdRun, Item, ItemKind
from hypic_sdk.kernels.short_conv import kernel, op, slide
from hypic_sdk.kernels.short_conv.kernel import Tile
from hypic_sdk.kernels.short_conv.op import short_conv
from hypic_sdk.kernels.short_conv.slide import Stretch
from tests.closeness import assert_close

LOAD, RUN, GAP, SAVE = ItemKind
SLOTS, LAYERS, LAYER = 6, 3, 1
AT_ONCE = Tile(8, 16, 8)
# fp64 and fp32: some roundings; low precision: one rounding of the result
BOUNDS = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


WAYS = {"at once": AT_ONCE, "tiles": Tile(8, 16, 4), "stretches": Stretch(4, 16, 4)}


@pytest.fixture(autouse=True, scope="module", params=["reference", *WAYS])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs the definition, and each way of the kernel in interpreter mode."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "reference":
            patch.setattr(op.reference, "short_conv", kernel.short_conv)
            go(patch, WAYS[request.param])
        yield request.param


def go(patch: pytest.MonkeyPatch, tile: Tile | Stretch) -> None:
    """Let the kernel go one way: all rows at once, in tiles of this size, or in such stretches."""
    patch.setattr(kernel, "AT_ONCE_ROWS", 1 << 62 if tile == AT_ONCE else -1)
    patch.setattr(kernel, "FEWER_ROWS", -1 if isinstance(tile, Stretch) else 1 << 62)
    if isinstance(tile, Stretch):
        patch.setattr(slide, "STRETCHES", ((1 << 62, tile),))
    else:
        patch.setattr(kernel, "AT_ONCE_TILE", tile)
        patch.setattr(kernel, "TILES", ((1 << 62, tile),))


class Layer:
    """A conv layer with poisoned tail slabs, as the engine hands them over."""

    def __init__(
        self,
        channels: int,
        width: int,
        seed: int,
        dtype: torch.dtype = torch.float64,
        *,
        bias: bool = True,
        activation: str | None = "silu",
    ) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.weight = torch.randn(channels, width, generator=rng).to(dtype)
        self.bias = torch.randn(channels, generator=rng).to(dtype) if bias else None
        self.activation = activation
        self.dtype, self.width, self.rng = dtype, width, rng
        size = (SLOTS, LAYERS, width - 1, channels)
        self.tails = torch.full(size, torch.nan, dtype=dtype)[:, LAYER]
        self.work_tails = torch.full(size, torch.nan, dtype=dtype)[:, LAYER]

    def draw(self, num_tokens: int) -> torch.Tensor:
        shape = (num_tokens, self.weight.shape[0])
        return torch.randn(shape, generator=self.rng).to(self.dtype)

    def __call__(
        self, inputs: torch.Tensor, items: list[Item] = (), cold_runs: list[ColdRun] = ()
    ) -> torch.Tensor:
        return short_conv(
            inputs,
            self.weight,
            self.bias,
            activation=self.activation,
            items=items,
            cold_runs=cold_runs,
            tails_SWC=self.tails,
            work_tails_XWC=self.work_tails,
        )

    def full(self, inputs: torch.Tensor) -> torch.Tensor:
        """The definition in fp64: every token as a sum over the inputs it sees."""
        inputs, weight = inputs.double(), self.weight.double()
        out = torch.zeros_like(inputs)
        for token in range(len(inputs)):
            for back in range(min(self.width, token + 1)):
                out[token] += weight[:, self.width - 1 - back] * inputs[token - back]
        if self.bias is not None:
            out += self.bias.double()
        return out / (1 + (-out).exp()) if self.activation == "silu" else out

    def last(self, inputs: torch.Tensor) -> torch.Tensor:
        """The last W-1 inputs, zeros before the first."""
        padded = torch.cat((torch.zeros_like(self.tails[0]), inputs))
        return padded[len(padded) - (self.width - 1) :]


layers = st.builds(
    Layer,
    channels=st.sampled_from([1, 5, 17]),
    width=st.integers(1, 5),
    seed=st.integers(0, 2**31),
    bias=st.booleans(),
    activation=st.sampled_from([None, "silu"]),
)


@settings(max_examples=12)
@given(layer=layers, lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_runs_continue_each_other(layer, lengths):
    """Any cut of a sequence into runs, shorter than the width too, and its tail at each cut."""
    inputs = layer.draw(sum(lengths))
    items, position = [Item(LOAD)], 0
    for slot, length in enumerate(lengths):
        items += [Item(RUN, position, position + length), Item(SAVE, slot=slot)]
        position += length
    out = layer(inputs, items)
    if position:
        assert_close("outputs", out, layer.full(inputs), rel_rms=BOUNDS[torch.float64])
    position = 0
    for slot, length in enumerate(lengths):
        position += length
        assert torch.equal(layer.tails[slot], layer.last(inputs[:position]))
    assert layer.tails[len(lengths) :].isnan().all()


@settings(max_examples=12)
@given(layer=layers, first=st.integers(0, 9), steps=st.integers(1, 6))
def test_decoding_on_equals_the_longer_forward(layer, first, steps):
    inputs = layer.draw(first + steps)
    layer(inputs[:first], [Item(LOAD), Item(RUN, 0, first), Item(SAVE, slot=2)])
    step = [Item(LOAD, slot=2), Item(RUN, 0, 1), Item(SAVE, slot=2)]
    outputs = [layer(inputs[i : i + 1], step) for i in range(first, first + steps)]
    want = layer.full(inputs)[first:]
    assert_close("outputs", torch.cat(outputs), want, rel_rms=BOUNDS[torch.float64])
    assert torch.equal(layer.tails[2], layer.last(inputs))


@settings(max_examples=12)
@given(layer=layers, before=st.integers(0, 6), after=st.integers(1, 6))
def test_a_run_after_a_gap_starts_from_the_gaps_tail(layer, before, after):
    gap, inputs = layer.draw(layer.width + 2), layer.draw(before + after)
    layer.tails[4] = layer.last(gap)
    items = [Item(LOAD), Item(RUN, 0, before), Item(GAP, slot=4), Item(RUN, before, before + after)]
    out = layer(inputs, [*items, Item(SAVE, slot=1)])
    whole = torch.cat((gap, inputs[before:]))
    want = torch.cat((layer.full(inputs[:before]), layer.full(whole)[len(gap) :]))
    assert_close("outputs", out, want, rel_rms=BOUNDS[torch.float64])
    assert torch.equal(layer.tails[1], layer.last(whole))
    assert torch.equal(layer.tails[4], layer.last(gap))


def test_gaps_first_two_in_a_row_and_a_snapshot_loaded_elsewhere():
    layer = Layer(5, 4, 0)
    first, second, inputs = layer.draw(7), layer.draw(5), layer.draw(8)
    layer.tails[0], layer.tails[1] = layer.last(first), layer.last(second)
    items = [
        *(Item(LOAD), Item(GAP, slot=0), Item(GAP, slot=1), Item(RUN, 0, 2), Item(SAVE, slot=2)),
        *(Item(LOAD, slot=2), Item(RUN, 2, 5), Item(LOAD), Item(RUN, 5, 8)),
    ]
    out = layer(inputs, items)
    followed = layer.full(torch.cat((second, inputs[:5])))[len(second) :]
    want = torch.cat((followed, layer.full(inputs[5:])))
    assert_close("outputs", out, want, rel_rms=BOUNDS[torch.float64])


@settings(max_examples=20)
@given(data=st.data(), layer=layers)
def test_cold_segments_in_chunks(data, layer):
    """The kept tail is the interior's own last W-1 inputs, wherever forwards are cut."""
    head, tail = (data.draw(st.integers(0, 6)) for _ in range(2))
    num_tokens = head + tail + data.draw(st.integers(max(1, layer.width - 1), 12))
    inner = data.draw(st.sets(st.integers(1, num_tokens - 1), max_size=6)) if num_tokens > 1 else ()
    inputs = layer.draw(num_tokens)
    outputs = []
    for start, stop in pairwise([0, *sorted(inner), num_tokens]):
        run = ColdRun(2, 2 + stop - start, start, num_tokens, head, tail, 3, work_slot=5)
        padded = torch.cat((layer.draw(2), inputs[start:stop], layer.draw(1)))
        out = layer(padded, cold_runs=[run])
        assert not out[:2].any()
        assert not out[-1].any()
        outputs.append(out[2:-1])
    assert_close("outputs", torch.cat(outputs), layer.full(inputs), rel_rms=BOUNDS[torch.float64])
    assert torch.equal(layer.tails[3], layer.last(inputs[: num_tokens - tail]))
    assert layer.tails[[0, 1, 2, 4, 5]].isnan().all()


@settings(max_examples=20)
@given(data=st.data(), layer=layers)
def test_a_gap_over_what_a_cold_run_of_the_same_call_keeps(data, layer):
    """The history behind it is the interior's own last inputs, also where an earlier call has
    some of them, or all."""
    head, tail = (data.draw(st.integers(0, 6)) for _ in range(2))
    num_tokens = head + tail + data.draw(st.integers(max(1, layer.width - 1), 12))
    cut = data.draw(st.integers(0, num_tokens - 1))
    inputs, live = layer.draw(num_tokens), layer.draw(data.draw(st.integers(1, 6)))
    if cut:
        layer(inputs[:cut], cold_runs=[ColdRun(0, cut, 0, num_tokens, head, tail, 3, work_slot=5)])
    first = len(live)
    run = ColdRun(first, first + num_tokens - cut, cut, num_tokens, head, tail, 3, work_slot=5)
    items = [Item(LOAD), Item(GAP, slot=3), Item(RUN, 0, first), Item(SAVE, slot=1)]
    out = layer(torch.cat((live, inputs[cut:])), items, [run])
    before = inputs[: num_tokens - tail]
    whole = torch.cat((before, live))
    want = torch.cat((layer.full(whole)[len(before) :], layer.full(inputs)[cut:]))
    assert_close("outputs", out, want, rel_rms=BOUNDS[torch.float64])
    assert torch.equal(layer.tails[3], layer.last(before))
    assert torch.equal(layer.tails[1], layer.last(whole))


@pytest.mark.parametrize("dtype", BOUNDS)
def test_sums_are_taken_in_fp32_at_least(dtype):
    layer = Layer(33, 4, 0, dtype)
    inputs = layer.draw(50)
    out = layer(inputs, [Item(LOAD), Item(RUN, 0, 50)])
    assert out.dtype == dtype
    assert_close("outputs", out, layer.full(inputs), rel_rms=BOUNDS[dtype])


@pytest.mark.parametrize("length", [1, 3, 19])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_are_the_sequences_own(length, dtype):
    """The same alone and among others, at any offset; as a live run and as a cold segment."""
    layer = Layer(13, 4, 0, dtype)
    inputs, others = layer.draw(length), layer.draw(21)
    live, cold = set(), set()
    for offset in (0, 1, 5, 18):
        batch = torch.cat((others[:offset], inputs, others[:3]))
        mine = [Item(LOAD), Item(RUN, offset, offset + length), Item(SAVE, slot=1)]
        out = layer(batch, [Item(LOAD), Item(RUN, 0, offset // 2), *mine])
        live.add(tuple(out[offset : offset + length].flatten().tolist()))
        runs = [ColdRun(offset, offset + length, 0, length, 0, 0, 2, 2)]
        if offset > 3:
            runs.insert(0, ColdRun(0, 4, 0, 4, 0, 0, 0, 0))
        out = layer(batch, cold_runs=runs)
        cold.add(tuple(out[offset : offset + length].flatten().tolist()))
    assert len(live) == len(cold) == 1
    assert live == cold


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_are_the_same_whichever_way_a_row_goes(monkeypatch, dtype, implementation):
    """At once, row by row, in tiles and in stretches that slide over inputs or look them up."""
    if implementation == "reference":
        pytest.skip("the definition goes one way")
    found = []
    tiles = AT_ONCE, Tile(1, 16, 4), Tile(4, 8, 4), Tile(16, 32, 4)
    for tile in (*tiles, Stretch(1, 32, 4), Stretch(4, 8, 4), Stretch(16, 16, 4)):
        go(monkeypatch, tile)
        layer = Layer(19, 4, 0, dtype)
        for slot in range(3):
            layer.tails[slot] = layer.last(layer.draw(5))
        decode = [Item(LOAD, slot=0), Item(RUN, 0, 1), Item(SAVE, slot=0)]
        text = [Item(LOAD), Item(RUN, 2, 23), Item(SAVE, slot=4), Item(GAP, slot=1)]
        out = layer(layer.draw(26), [*decode, *text, Item(RUN, 23, 25), Item(SAVE, slot=2)])
        assert out[[1, 25]].eq(0.0).all()
        found.append((out, layer.tails.nan_to_num(9.0)))
    for out, tails in found[1:]:
        assert torch.equal(out, found[0][0])
        assert torch.equal(tails, found[0][1])


def test_cold_runs_and_items_share_a_batch():
    layer = Layer(5, 3, 0)
    inputs = layer.draw(12)
    run = ColdRun(0, 7, 0, 7, 2, 1, 4, 4)
    out = layer(inputs, [Item(LOAD), Item(RUN, 7, 12)], [run])
    want = torch.cat((layer.full(inputs[:7]), layer.full(inputs[7:])))
    assert_close("outputs", out, want, rel_rms=BOUNDS[torch.float64])
    assert torch.equal(layer.tails[4], inputs[4:6])


def test_what_does_not_fit_is_refused():
    layer = Layer(5, 3, 0)
    inputs = layer.draw(4)
    with pytest.raises(ValueError, match="5 channels"):
        layer(inputs[:, :4])
    with pytest.raises(ValueError, match="starts with LOAD"):
        layer(inputs, [Item(RUN, 0, 4)])
    layer.activation = "relu"
    with pytest.raises(ValueError, match="relu"):
        layer(inputs)
    layer.activation, layer.work_tails = None, None
    with pytest.raises(ValueError, match="work slabs"):
        layer(inputs, cold_runs=[ColdRun(0, 4, 0, 9, 0, 0, 0, 0)])
    layer.tails = layer.tails[:, :1]
    with pytest.raises(ValueError, match="tails"):
        layer(inputs)


@st.composite
def crossing_items(draw: st.DrawFn) -> tuple[list[Item], int]:
    """Sequences over three slots that load what others save, in every order."""
    items, row, slots = [], 0, st.integers(0, 2)
    for _ in range(draw(st.integers(1, 4))):
        items.append(Item(LOAD, slot=draw(st.sampled_from([-1, 0, 1, 2]))))
        for kind in draw(st.lists(st.sampled_from([RUN, GAP, SAVE]), max_size=5)):
            if kind == RUN:
                stop = row + draw(st.integers(0, 5))
                items.append(Item(RUN, row, stop))
                row = stop
            else:
                items.append(Item(kind, slot=draw(slots)))
    return items, row


@settings(max_examples=20)
@given(case=crossing_items(), width=st.integers(1, 5), seed=st.integers(0, 99))
def test_what_is_saved_and_loaded_in_one_call_goes_in_order(case, width, seed):
    """One sequence after the other in the same call as one call for each of them."""
    items, num_rows = case
    together, apart = (Layer(3, width, seed) for _ in range(2))
    inputs = together.draw(num_rows)
    for slot in range(3):
        tail = together.draw(width - 1)
        together.tails[slot], apart.tails[slot] = tail, tail
    out, want = together(inputs, items), torch.zeros_like(inputs)
    starts = [i for i, item in enumerate(items) if item.kind == LOAD]
    for start, stop in pairwise([*starts, len(items)]):
        want += apart(inputs, items[start:stop])
    assert torch.equal(out, want)
    assert torch.equal(together.tails.nan_to_num(9.0), apart.tails.nan_to_num(9.0))


def test_what_is_saved_to_no_slot_is_saved_nowhere():
    tails = torch.full((3, 3, 5), torch.nan)
    items = [Item(LOAD), Item(RUN, 0, 4), Item(SAVE)]
    short_conv(
        torch.randn(4, 5),
        torch.randn(5, 4),
        None,
        activation="silu",
        items=items,
        cold_runs=[],
        tails_SWC=tails,
        work_tails_XWC=None,
    )
    assert bool(tails.isnan().all())
