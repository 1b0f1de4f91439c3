"""What the kernels of live sequences touch: rows of runs, slots of items, and nothing else."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.kernels.items import Item, ItemKind
from hypic_sdk.kernels.live_scan import kernel
from hypic_sdk.kernels.scan_inputs import ScanInputs
from tests.kernels.watched_memory import watched
from tests.strategies import SHAPES, Shape, drawn, seeds

LAYERS, LAYER = 3, 1  # an op gets one layer's view, which is not contiguous
LOAD, RUN, GAP, SAVE = ItemKind


def in_wide_rows(x: torch.Tensor) -> torch.Tensor:
    """The same numbers as a slice of a projection, NaN beside them."""
    wide = torch.full((len(x) + 1, *x.shape[1:-1], 2 * x.shape[-1] + 3), torch.nan, dtype=x.dtype)
    wide[: len(x), ..., 1 : 1 + x.shape[-1]] = x
    return wide[: len(x), ..., 1 : 1 + x.shape[-1]]


def per_row(inputs: ScanInputs, num_rows: int) -> dict[str, torch.Tensor]:
    """The tensors that have a row for each token."""
    names = ("query", "key", "value", "log_decay", "erase", "steps")
    found = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    return {n: found[n] for n in names if isinstance(found.get(n), torch.Tensor)}


@st.composite
def sequences(draw: st.DrawFn) -> tuple[list[Item], list[int], int]:
    """Items of some sequences, the rows that somebody runs, and how many rows there are.

    Between runs and behind the last one stand rows of nobody; some runs are of no row.
    """
    items: list[Item] = []
    used: list[int] = []
    row = draw(st.integers(0, 1))
    most = draw(st.sampled_from([2, 2, 19]))  # decode rows alone, or runs in tiles too
    has_gaps = most > 2 and draw(st.booleans())
    for number in range(draw(st.integers(1, 3))):
        slot = 4 + 2 * number
        items.append(Item(LOAD, slot=draw(st.sampled_from([-1, slot]))))
        for _ in range(draw(st.integers(1, 3))):
            length = draw(st.integers(0, most))
            items.append(Item(RUN, row, row + length))
            used += range(row, row + length)
            row += length + draw(st.integers(0, 1))
            if has_gaps and draw(st.booleans()):
                items.append(Item(GAP, slot=1, transition_slot=2, num_tokens=9))
            if draw(st.booleans()):
                items.append(Item(SAVE, slot=slot + 1))
        items.append(Item(SAVE, slot=slot))
    return items, used, max(1, row + draw(st.integers(0, 1)))


@pytest.mark.parametrize(
    ("family", "dtype"),
    [(name, torch.float32) for name in FAMILIES]
    + [(name, torch.float16) for name in ("delta_rule", "gated_delta_rule")],
    ids=lambda given: str(given).removeprefix("torch."),
)
@settings(max_examples=4)  # the interpreter runs one program at a time
@given(batch=sequences(), shape=st.sampled_from([*SHAPES, Shape(2, 17, 33)]), seed=seeds())
def test_rows_and_slots_of_nobody_are_not_touched(family, dtype, batch, shape, seed):
    items, used, num_rows = batch
    inputs = drawn(family, num_rows, shape, seed, torch.float32).scan_inputs()
    rows = per_row(inputs, num_rows)
    low = ("query", "key", "value", "erase")
    rows = {n: x.to(dtype) if n in low else x for n, x in rows.items()}
    inputs = replace(inputs, **{n: in_wide_rows(x) for n, x in rows.items()})
    shape_of = inputs.transition_shapes()[0]
    H, K, V = inputs.num_heads, inputs.key_size, inputs.value.shape[2]
    states = torch.zeros(12, LAYERS, H, K, V)[:, LAYER]
    transitions = None if shape_of is None else torch.zeros(4, LAYERS, *shape_of)[:, LAYER]
    out = torch.zeros(num_rows, H, V, dtype=inputs.value.dtype)
    nobody = [row for row in range(num_rows) if row not in used]
    slots = {item.slot for item in items if item.slot >= 0}
    forbidden = [getattr(inputs, n)[row] for n in rows for row in nobody]
    forbidden += [out[row] for row in nobody]
    forbidden += [states[slot] for slot in range(len(states)) if slot not in slots]
    with watched(forbidden):
        kernel.live_scan(
            inputs, items, states, transitions, out, gap_rotation=None, use_transition=True
        )
