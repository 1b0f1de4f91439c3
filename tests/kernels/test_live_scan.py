"""Live sequences: the state walks runs and gaps; law 3 for every family, bits, the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.algebra.rotary import RotarySpec, rotate_state
from hypic_sdk.families.lightning import lightning
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.kernels.items import ColdRun, Item, ItemKind
from hypic_sdk.kernels.live_scan import kernel, reference
from hypic_sdk.kernels.live_scan.op import live_scan
from hypic_sdk.kernels.segment_scan.op import segment_scan
from hypic_sdk.kernels.segment_scan.stretch import STEP_TOKENS
from tests.closeness import assert_close
from tests.strategies import BOUNDS, Shape, drawn, explicit_tokens, random_state, seeds, shapes

LAYERS, LAYER = 3, 1  # an op gets one layer's view, which is not contiguous
LOAD, RUN, GAP, SAVE = ItemKind


@dataclass(frozen=True)
class Sequence:
    """Tokens of one prompt, and how a stretch of them looks when it is recorded on its own."""

    whole: Recurrence
    alone: Callable[[int, int], Recurrence]


def sequence(
    family: str, num_tokens: int, shape: Shape, seed: int, dtype: torch.dtype = torch.float64
) -> Sequence:
    """A family's sequence; with rotary keys a stretch is recorded at positions 0, 1, ..."""
    sample = drawn(family, num_tokens, shape, seed, dtype)
    if sample.key_rotation is None:
        return Sequence(sample, sample.rows)
    assert sample.constant_log_decay is not None
    rng = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, num_tokens, shape.H, shape.K, generator=rng, dtype=dtype)
    spec = RotarySpec(1e4, sample.key_rotation.rotary_dims, interleaved=bool(seed % 2))

    def at(start: int, stop: int, position: int) -> Recurrence:
        positions = torch.arange(position, position + stop - start)
        rows = query[start:stop], key[start:stop], sample.value[start:stop]
        return lightning(*rows, sample.constant_log_decay, positions, rotary=spec)

    return Sequence(at(0, num_tokens, 0), lambda start, stop: at(start, stop, 0))


@dataclass
class Slabs:
    """One layer's views of the state and transition slabs."""

    states: torch.Tensor
    transitions: torch.Tensor | None

    @classmethod
    def poisoned(
        cls,
        recurrence: Recurrence,
        *,
        rows: int = 12,
        transition_dtype: torch.dtype | None = None,
        compact: bool = False,
    ) -> Slabs:
        """All NaN; transitions in the work dtype unless told otherwise."""
        inputs = recurrence.scan_inputs()
        shape = inputs.transition_shapes()[0 if compact else -1]
        work = inputs.work_dtype
        state_size = (inputs.num_heads, inputs.key_size, recurrence.value.shape[2])
        states = torch.full((rows, LAYERS, *state_size), torch.nan, dtype=work)[:, LAYER]
        if shape is None:
            return cls(states, None)
        transitions = torch.full((rows, LAYERS, *shape), torch.nan, dtype=transition_dtype or work)
        return cls(states, transitions[:, LAYER])

    def record(self, alone: Recurrence, slot: int) -> Item:
        """Keep a stretch's pair in row `slot` (no seams); the gap that stands for it."""
        n = alone.num_tokens
        run = ColdRun(0, n, 0, n, 0, 0, slot, slot)
        out = torch.empty_like(alone.value)
        segment_scan(alone.scan_inputs(), [run], self.states, self.transitions, out_LHV=out)
        return Item(GAP, slot=slot, transition_slot=slot, num_tokens=n)

    def walk(self, recurrence: Recurrence, items: list[Item], **options: object) -> torch.Tensor:
        """The op on a whole recurrence."""
        return live_scan(
            recurrence.scan_inputs(),
            items,
            self.states,
            self.transitions,
            key_rotation=recurrence.key_rotation,
            **options,
        )


def packed(recurrence: Recurrence, rows: list[int]) -> Recurrence:
    """Some rows of a recurrence, as a batch of their own."""
    per_token = ("query", "key", "value", "log_decay", "erase", "steps")
    fields = {name: getattr(recurrence, name) for name in per_token}
    return replace(recurrence, **{n: x[rows] for n, x in fields.items() if x is not None})


@st.composite
def layouts(draw: st.DrawFn) -> list[tuple[ItemKind, int]]:
    """Runs and gaps with their lengths: two gaps may be neighbours, the first may be one."""
    lengths = st.sampled_from([1, 2, 7, STEP_TOKENS, STEP_TOKENS + 1, 40, 70])
    inner = st.tuples(st.sampled_from([RUN, GAP]), lengths)
    return [*draw(st.lists(inner, max_size=5)), (RUN, draw(lengths))]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25)
@given(layout=layouts(), shape=shapes(), seed=seeds(), compact=st.booleans(), warm=st.booleans())
def test_composed_is_sequential(family, layout, shape, seed, compact, warm):
    """Law 3: for every split and order the composed state equals the sequential one."""
    lengths = [length for _, length in layout]
    tokens = sequence(family, sum(lengths), shape, seed)
    slabs = Slabs.poisoned(tokens.whole, compact=compact)
    explicit = explicit_tokens(tokens.whole)
    start = random_state(shape, seed) if warm else explicit.zeros()
    slabs.states[10] = start
    items, rows, position = [Item(LOAD, slot=10 if warm else -1)], [], 0
    for slot, (kind, length) in enumerate(layout):
        if kind == RUN:
            items.append(Item(RUN, len(rows), len(rows) + length))
            rows += range(position, position + length)
        else:
            gap = slabs.record(tokens.alone(position, position + length), slot)
            items.append(gap._replace(start_position=position))
        position += length
    items.append(Item(SAVE, slot=11))
    before = slabs.states.clone()
    out = slabs.walk(packed(tokens.whole, rows), items)
    want, state = explicit.run(start, 0, position)
    assert_close("outputs", out, want[rows], rel_rms=1e-10)
    assert_close("state", slabs.states[11], state, rel_rms=1e-10)
    assert torch.equal(slabs.states[:11].nan_to_num(9.0), before[:11].nan_to_num(9.0))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=10)
@given(gap=st.sampled_from([1, 50, 130]), run=st.integers(1, 80), shape=shapes(), seed=seeds())
def test_fp32_is_within_its_bound(family, gap, run, shape, seed):
    tokens = sequence(family, gap + run, shape, seed, torch.float32)
    slabs = Slabs.poisoned(tokens.whole)
    start = random_state(shape, seed, torch.float32)
    slabs.states[10] = start
    items = [Item(LOAD, slot=10), slabs.record(tokens.alone(0, gap), 0), Item(RUN, 0, run)]
    out = slabs.walk(tokens.whole.rows(gap, gap + run), [*items, Item(SAVE, slot=10)])
    want, state = explicit_tokens(tokens.whole).run(start.double(), 0, gap + run)
    assert_close("outputs", out, want[gap:], rel_rms=BOUNDS[torch.float32])
    assert_close("state", slabs.states[10], state, rel_rms=BOUNDS[torch.float32])


@pytest.mark.parametrize("family", ["delta_rule", "gated_delta_rule", "kda"])
@settings(max_examples=15)
@given(gap=st.sampled_from([1, 20, 90]), seed=seeds())
def test_an_fp16_transition_costs_what_the_design_says(family, gap, seed):
    """Design 3.7, law 3: at most 5e-4 |T| |S_before| / |S|."""
    shape = Shape(2, 17, 6)
    tokens = sequence(family, gap, shape, seed)
    slabs = Slabs.poisoned(tokens.whole, transition_dtype=torch.float16)
    start = random_state(shape, seed)
    slabs.states[10] = start
    item = slabs.record(tokens.whole, 0)
    slabs.walk(tokens.whole, [Item(LOAD, slot=10), item, Item(SAVE, slot=11)])
    explicit = explicit_tokens(tokens.whole)
    _, state = explicit.run(start, 0, gap)
    error = (slabs.states[11] - state).norm()
    # entries below 6e-5 are rounded to steps of 6e-8, whatever their size
    allowed = 5e-4 * explicit.transition(0, gap).norm() + 6e-8 * shape.K
    assert error <= allowed * start.norm()
    assert error > 0


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=5)
@given(shape=shapes(), seed=seeds())
def test_without_transition_a_gap_only_adds(family, shape, seed):
    tokens = sequence(family, 9, shape, seed)
    slabs = Slabs.poisoned(tokens.whole)
    slabs.states[10] = random_state(shape, seed)
    items = [Item(LOAD, slot=10), slabs.record(tokens.alone(0, 9), 3), Item(SAVE, slot=11)]
    slabs.walk(tokens.whole, items, use_transition=False)
    assert torch.equal(slabs.states[11], slabs.states[10] + slabs.states[3])


@settings(max_examples=10)
@given(position=st.integers(1, 5000), seed=seeds())
def test_a_turn_of_the_gap_can_be_switched_off(position, seed):
    shape = Shape(2, 8, 13)
    tokens = sequence("lightning", 9, shape, seed)
    spec = tokens.whole.key_rotation
    assert spec is not None
    slabs = Slabs.poisoned(tokens.whole)
    gap = slabs.record(tokens.alone(0, 9), 3)._replace(start_position=position)
    items = [Item(LOAD), gap, Item(SAVE, slot=11)]
    for rotate_gap, want in (
        (False, slabs.states[3].clone()),
        (True, rotate_state(slabs.states[3], spec, position)),
    ):
        slabs.walk(tokens.whole, items, rotate_gap=rotate_gap)
        assert_close("state", slabs.states[11], want, rel_rms=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_on_equals_the_longer_forward(family):
    """Law 6; the first forward saves, each step loads, steps and saves in place."""
    shape, prompt, steps = Shape(4, 17, 6), 75, 6
    tokens = sequence(family, prompt + steps, shape, 0)
    slabs = Slabs.poisoned(tokens.whole)
    items = [Item(LOAD), Item(RUN, 0, prompt), Item(SAVE, slot=5)]
    slabs.walk(tokens.whole.rows(0, prompt), items)
    outputs = []
    for step in range(prompt, prompt + steps):
        items = [Item(LOAD, slot=5), Item(RUN, 0, 1), Item(SAVE, slot=5)]
        outputs.append(slabs.walk(tokens.whole.rows(step, step + 1), items))
    explicit = explicit_tokens(tokens.whole)
    want, state = explicit.run(explicit.zeros(), 0, prompt + steps)
    assert_close("outputs", torch.cat(outputs), want[prompt:], rel_rms=1e-10)
    assert_close("state", slabs.states[5], state, rel_rms=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_snapshot_in_the_middle_serves_another_sequence(family):
    """SAVE between two runs, then a LOAD of it in the same call; the snapshot stays as it was."""
    shape = Shape(2, 8, 13)
    tokens = sequence(family, 40, shape, 0)
    slabs = Slabs.poisoned(tokens.whole)
    rows = [*range(40), *range(25, 40)]
    items = [
        *(Item(LOAD), Item(RUN, 0, 25), Item(SAVE, slot=4), Item(RUN, 25, 40), Item(SAVE, slot=5)),
        *(Item(LOAD, slot=4), Item(RUN, 40, 55), Item(SAVE, slot=6)),
        *(Item(LOAD, slot=4), Item(SAVE, slot=7)),
    ]
    out = slabs.walk(packed(tokens.whole, rows), items)
    explicit = explicit_tokens(tokens.whole)
    want, state = explicit.run(explicit.zeros(), 0, 40)
    assert_close("outputs", out, want[rows], rel_rms=1e-10)
    assert torch.equal(out[25:40], out[40:55])
    assert torch.equal(slabs.states[5], slabs.states[6])
    assert_close("state", slabs.states[5], state, rel_rms=1e-10)
    _, snapshot = explicit.run(explicit.zeros(), 0, 25)
    assert torch.equal(slabs.states[4], slabs.states[7])
    assert_close("snapshot", slabs.states[4], snapshot, rel_rms=1e-10)


def test_empty_runs_and_rows_of_nobody():
    tokens = sequence("kda", 9, Shape(2, 5, 3), 0, torch.bfloat16)
    slabs = Slabs.poisoned(tokens.whole)
    items = [Item(LOAD), Item(RUN, 4, 4), Item(RUN, 2, 5), Item(RUN, 9, 9), Item(SAVE, slot=0)]
    out = slabs.walk(tokens.whole, items)
    assert out.dtype == torch.bfloat16
    assert not out[:2].any()
    assert not out[5:].any()
    explicit = explicit_tokens(tokens.whole)
    want, state = explicit.run(explicit.zeros(), 2, 5)
    assert_close("outputs", out[2:5], want, rel_rms=2**-8)
    assert_close("state", slabs.states[0], state, rel_rms=1e-5)
    into = torch.full_like(tokens.whole.value, 7.0)
    assert slabs.walk(tokens.whole, items, out_LHV=into) is into
    assert torch.equal(into[2:5], out[2:5])
    assert bool((into[:2] == 7).all() & (into[5:] == 7).all()), "rows of nobody are left alone"
    assert not slabs.walk(tokens.whole, []).any()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [1, STEP_TOKENS, 30, 150])
def test_bits_are_the_sequences_own(family, length):
    """The same alone and among others, at any offset of the batch, in any rows of the slabs."""
    shape = Shape(3, 17, 6)
    mine = sequence(family, length + 20, shape, 0, torch.float32)
    other = sequence(family, 50, shape, 1, torch.float32).whole
    other = replace(other, constant_log_decay=mine.whole.constant_log_decay, rates=mine.whole.rates)
    seen = set()
    for offset, slot, before in ((0, 0, 0), (5, 3, 0), (37, 2, 20), (45, 7, 45), (0, 5, 0)):
        slabs = Slabs.poisoned(
            mine.whole, transition_dtype=torch.float16 if mine.whole.erase is not None else None
        )
        slabs.states[9] = random_state(shape, 3, torch.float32)
        slabs.states[slot + 1] = random_state(shape, 4, torch.float32)
        gap = slabs.record(mine.alone(0, 20), slot)._replace(start_position=3)
        batch = batched([other.rows(0, offset), mine.whole.rows(20, 20 + length)])
        mine_items = [
            *(Item(LOAD, slot=slot + 1), gap, Item(RUN, offset, offset + length)),
            Item(SAVE, slot=slot + 1),
        ]
        other_items = [Item(LOAD, slot=9), Item(RUN, 0, before), Item(SAVE, slot=9)]
        out = slabs.walk(batch, [*other_items, *mine_items] if before else mine_items)
        result = (*out[offset:].flatten().tolist(), *slabs.states[slot + 1].flatten().tolist())
        seen.add(result)
    assert len(seen) == 1


def batched(parts: list[Recurrence]) -> Recurrence:
    """Recurrences of one family behind each other."""
    per_token = ("query", "key", "value", "log_decay", "erase", "steps")
    fields = {name: [getattr(part, name) for part in parts] for name in per_token}
    return replace(parts[0], **{n: torch.cat(x) for n, x in fields.items() if x[0] is not None})


TRANSITIONS = {
    "identity": lambda H, K: None,
    "scalar": lambda H, K: -torch.rand(5, LAYERS, H)[:, LAYER],
    "diagonal": lambda H, K: -torch.rand(5, LAYERS, H, K)[:, LAYER],
    "dense fp16": lambda H, K: torch.randn(5, LAYERS, H, K, K).half()[:, LAYER],
    "dense fp32": lambda H, K: torch.randn(5, H, K, K),
}


@pytest.mark.parametrize("kind", TRANSITIONS)
@pytest.mark.parametrize("dims", [(1, 16, 16), (3, 20, 7), (2, 5, 3), (1, 70, 66)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaps_are_composed_as_by_hand(kind, dims, dtype, device):
    """One rounding of each product and sum in fp32."""
    torch.manual_seed(0)
    H, K, V = dims
    transitions = TRANSITIONS[kind](H, K)
    transitions = None if transitions is None else transitions.to(device)
    end_states = torch.randn(6, LAYERS, H, K, V, dtype=dtype, device=device)[:, LAYER]
    state = torch.randn(3, H, K, V, dtype=dtype, device=device)
    got = reference.compose(state, transitions, [4, 0, 2], end_states, [5, 1, 1])
    bound = 1e-6 if dtype == torch.float32 else 1e-12
    for i, (transition_slot, state_slot) in enumerate(((4, 5), (0, 1), (2, 1))):
        moved = state[i].double()
        if transitions is not None:
            row = transitions[transition_slot].double()
            shaped = row if row.ndim == 3 else torch.diag_embed(row.exp().view(H, -1).expand(H, K))
            moved = shaped @ moved
        assert_close("by hand", got[i], moved + end_states[state_slot].double(), rel_rms=bound)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([Item(RUN, 0, 2)], "starts with LOAD"),
        ([Item(LOAD), Item(RUN, 3, 10)], "of 9 rows"),
        ([Item(LOAD), Item(RUN, 3, 2)], "of 9 rows"),
        ([Item(LOAD), Item(SAVE)], "SAVE without a slot"),
        ([Item(LOAD), Item(GAP, transition_slot=1)], "GAP without a slot"),
        ([Item(LOAD), Item(GAP, slot=1)], "without a transition"),
    ],
)
def test_items_that_cannot_be_are_refused(items, message):
    tokens = sequence("gla", 9, Shape(2, 5, 3), 0)
    with pytest.raises(ValueError, match=message):
        Slabs.poisoned(tokens.whole).walk(tokens.whole, items)


def test_an_output_that_does_not_fit_is_refused():
    tokens = sequence("gla", 9, Shape(2, 5, 3), 0)
    with pytest.raises(ValueError, match="out"):
        Slabs.poisoned(tokens.whole).walk(tokens.whole, [], out_LHV=torch.zeros(9, 2, 5))


def walked(
    slabs: Slabs, recurrence: Recurrence, items: list[Item] | tuple[Item, ...], **options: object
) -> torch.Tensor:
    """The kernel's walk, into an output of NaN."""
    out = torch.full_like(recurrence.value, torch.nan)
    options = {"gap_rotation": recurrence.key_rotation, "use_transition": True, **options}
    with mock.patch.object(kernel, "LONGEST_WALK", 64):  # some runs are longer
        kernel.live_scan(
            recurrence.scan_inputs(), items, slabs.states, slabs.transitions, out, **options
        )
    return out


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=8)
@given(layout=layouts(), shape=shapes(), seed=seeds(), compact=st.booleans(), warm=st.booleans())
def test_the_kernel_walks_as_the_definition_does(family, layout, shape, seed, compact, warm):
    """Runs shorter and longer than a walk may be, gaps side by side, a decode row behind them."""
    lengths = [length for _, length in layout]
    tokens = sequence(family, sum(lengths) + 1, shape, seed, torch.float32)
    slabs = Slabs.poisoned(tokens.whole, compact=compact)
    explicit = explicit_tokens(tokens.whole)
    start = random_state(shape, seed, torch.float32) if warm else explicit.zeros()
    slabs.states[10] = start
    items, rows, position = [Item(LOAD, slot=10 if warm else -1)], [], 0
    for slot, (kind, length) in enumerate(layout):
        if kind == RUN:
            items.append(Item(RUN, len(rows), len(rows) + length))
            rows += range(position, position + length)
        else:
            gap = slabs.record(tokens.alone(position, position + length), slot)
            items.append(gap._replace(start_position=position))
        position += length
    items += [Item(SAVE, slot=11), Item(LOAD, slot=11), Item(RUN, len(rows), len(rows) + 1)]
    rows.append(position)
    before = slabs.states.clone()
    out = walked(slabs, packed(tokens.whole, rows), items)
    want, _ = explicit.run(start.double(), 0, position + 1)
    _, state = explicit.run(start.double(), 0, position)
    assert_close("outputs", out, want[rows], rel_rms=BOUNDS[torch.float32])
    assert_close("state", slabs.states[11], state, rel_rms=BOUNDS[torch.float32])
    assert torch.equal(slabs.states[:11].nan_to_num(9.0), before[:11].nan_to_num(9.0))


def test_a_walk_serves_all_layers_of_one_forward_and_no_other():
    """The same tuple with other tensors; the same without its rotation; a list that was changed."""
    tokens = sequence("lightning", 9, Shape(2, 8, 13), 0, torch.float32)
    spec = tokens.whole.key_rotation
    slabs = Slabs.poisoned(tokens.whole)
    items = (Item(LOAD), slabs.record(tokens.alone(0, 9), 3)._replace(start_position=70))
    items = (*items, Item(SAVE, slot=11))
    want = rotate_state(slabs.states[3], spec, 70)
    for factor in (1.0, 2.0):
        slabs.states[3] *= factor
        walked(slabs, tokens.whole, items)
        assert_close("state", slabs.states[11], factor * want, rel_rms=1e-6)
    walked(slabs, tokens.whole, items, gap_rotation=None)
    assert torch.equal(slabs.states[11], slabs.states[3])
    changing = list(items)
    for slot in (6, 7):
        changing[-1] = Item(SAVE, slot=slot)
        walked(slabs, tokens.whole, changing, gap_rotation=None)
        assert torch.equal(slabs.states[slot], slabs.states[3])
