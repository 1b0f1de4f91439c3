"""Decay and strength made by the kernel of decode rows: bits of `delta_gates` and what follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.kernels.delta_gates import kernel as gates_kernel
from hypic_sdk.kernels.delta_gates import op as gates_op
from hypic_sdk.kernels.delta_gates.op import GateLogits
from hypic_sdk.kernels.items import Item, ItemKind
from hypic_sdk.kernels.live_scan import reference, tiles
from hypic_sdk.kernels.live_scan.op import live_scan
from hypic_sdk.kernels.scan_inputs import ScanInputs
from hypic_sdk.kernels.segment_scan.step import step_scan
from hypic_sdk.kernels.segment_scan.tiled import tiled_scan
from tests.closeness import assert_close
from tests.kernels.test_live_scan_tiles import (
    OUTPUTS,
    STATES,
    batches,
    decoding,
    in_fp64,
    inputs_of,
    one_request,
    states_of,
    transitions_of,
    walked,
)
from tests.strategies import SHAPES, Shape, seeds

LOAD, RUN, GAP, SAVE = ItemKind


@pytest.fixture(autouse=True, scope="module")
def gates_of_the_kernel() -> Iterator[None]:
    """What is written out comes from the kernel, in interpreter mode."""
    with mock.patch.object(gates_op.reference, "delta_gates", gates_kernel.delta_gates):
        yield


def logits_of(
    shape: Shape, num_rows: int, seed: int, dtype: torch.dtype, *, scale: float = 3.0
) -> GateLogits:
    """Slices of one projection, as a layer hands them over; half of the heads forget a lot."""
    rng = torch.Generator().manual_seed(seed)
    H = shape.H
    projected = (scale * torch.randn(num_rows, 3 * H + 1, generator=rng)).to(dtype)
    A_log, bias = (torch.randn(H, generator=rng) for _ in range(2))
    A_log[::2] += 3.0
    return GateLogits(projected[:, 1 : H + 1], projected[:, 2 * H : 3 * H], A_log, bias)


def from_logits(
    shape: Shape, num_rows: int, seed: int, dtype: torch.dtype, *, scale: float = 3.0
) -> ScanInputs:
    inputs = inputs_of(shape, num_rows, seed, dtype)
    logits = logits_of(shape, num_rows, seed + 1, dtype, scale=scale)
    return replace(inputs, log_decay=None, erase=None, gate_logits=logits)


@settings(max_examples=20)  # the interpreter runs one program at a time
@given(
    batch=batches(),
    shape=st.sampled_from([*SHAPES, Shape(2, 20, 40)]),
    dtype=st.sampled_from(list(OUTPUTS)),
    scale=st.sampled_from([1e-3, 3.0, 40.0]),
    seed=seeds(),
)
def test_logits_give_the_bits_of_gates_made_before(batch, shape, dtype, scale, seed):
    """Whichever way a row goes: step by step, in tiles, or as a long run."""
    items, num_rows = batch
    inputs = from_logits(shape, num_rows, seed, dtype, scale=scale)
    assert tiles.suits(inputs)
    start = states_of(shape, seed, 1.0)
    transitions = transitions_of("fp16", shape, seed, start)
    states, want_states = start.clone(), start.clone()
    out = walked(inputs, items, states, transitions)
    want = walked(inputs.written_out(), items, want_states, transitions)
    assert torch.equal(out.nan_to_num(9.0), want.nan_to_num(9.0))
    assert torch.equal(states, want_states)


@pytest.mark.parametrize("dtype", OUTPUTS)
def test_logits_agree_with_the_definition(dtype):
    """Beside each other: decode rows, a request with gaps and tiles; gates in fp64 there."""
    shape = Shape(2, 17, 6)
    inputs = from_logits(shape, 60, 0, dtype)
    items = [*decoding(0, 14), *one_request(10, 8)]
    states = states_of(shape, 5, 1.0)
    transitions = transitions_of("fp16", shape, 2, states)
    want, want_states = torch.full(inputs.value.shape, torch.nan).double(), states.double()
    exact = in_fp64(replace(inputs, gate_logits=None))
    exact = replace(exact, gate_logits=inputs.gate_logits)
    options = {"gap_rotation": None, "use_transition": True}
    reference.live_scan(exact, items, want_states, transitions.double(), want, **options)
    out = walked(inputs, items, states, transitions)
    assert torch.equal(out.isnan(), want.isnan())
    assert_close("outputs", out.nan_to_num(0.0), want.nan_to_num(0.0), rel_rms=OUTPUTS[dtype])
    assert_close("states", states, want_states, rel_rms=STATES)


def test_rows_that_are_none_have_no_gates():
    """Logits of zero are no decay of zero: what fills a tile up must not be taken for rows."""
    shape = Shape(2, 5, 3)
    inputs = from_logits(shape, 20, 0, torch.bfloat16)
    items = [Item(LOAD, slot=5), Item(RUN, 0, 3), Item(SAVE, slot=6)]
    start = states_of(shape, 5, 1.0)
    transitions = transitions_of("fp16", shape, 2, start)
    found = []
    for num_rows in (3, 20):
        states = start.clone()
        walked(inputs.rows(0, num_rows), items, states, transitions)
        found.append(states)
    assert torch.equal(*found)
    want_states, want = start.double(), torch.zeros(20, 2, 3).double()
    exact = in_fp64(inputs.written_out())
    options = {"gap_rotation": None, "use_transition": True}
    reference.live_scan(exact, items, want_states, transitions.double(), want, **options)
    assert_close("states", found[0], want_states, rel_rms=STATES)


@pytest.mark.parametrize(
    ("items", "launches"),
    [
        (decoding(0, 8), 0),
        (one_request(0, 8), 1),
        ([*decoding(41, 14), *one_request(0, 8)], 1),
    ],
    ids=["decode", "hit", "both"],
)
def test_decode_rows_need_no_launch_for_their_gates(items, launches):
    shape = Shape(2, 17, 6)
    inputs = from_logits(shape, 50, 0, torch.bfloat16)
    states = states_of(shape, 5, 1.0)
    transitions = transitions_of("fp16", shape, 2, states)
    with mock.patch.object(gates_op, "delta_gates", wraps=gates_op.delta_gates) as gates:
        walked(inputs, items, states, transitions)
    assert gates.call_count == launches


@pytest.mark.parametrize(
    ("by_kernel", "dtype"),
    [(False, torch.float64), (False, torch.float32), (True, torch.float32)],
    ids=str,
)
def test_where_tiles_do_not_serve_gates_are_written_out(by_kernel, dtype):
    """By the op's definition and its kernel alike."""
    shape = Shape(2, 5, 3)
    inputs = from_logits(shape, 60, 0, dtype)
    items = [*decoding(0, 14), *one_request(10, 8)]
    start = states_of(shape, 5, 1.0).to(dtype)
    transitions = transitions_of("fp32", shape, 2, start)
    run = walked if by_kernel else live_scan
    states, want_states = start.clone(), start.clone()
    out = run(inputs, items, states, transitions)
    want = run(inputs.written_out(), items, want_states, transitions)
    assert torch.equal(out.nan_to_num(9.0), want.nan_to_num(9.0))
    assert torch.equal(states, want_states)


def test_rows_of_logits_are_logits_of_rows():
    inputs = from_logits(Shape(3, 8, 13), 9, 0, torch.bfloat16)
    assert inputs.rows(0, 9) is inputs
    part, whole = inputs.rows(2, 7).written_out(), inputs.written_out()
    assert whole.written_out() is whole
    assert part.log_decay is not None
    assert part.erase is not None
    assert torch.equal(part.log_decay, whole.log_decay[2:7])
    assert torch.equal(part.erase, whole.erase[2:7])


def test_other_scans_take_no_logits():
    """Without gates a delta rule would be another one, and nobody would notice."""
    inputs = from_logits(Shape(2, 5, 3), 3, 0, torch.float32)
    for scan in (step_scan, tiled_scan):
        with pytest.raises(AssertionError, match="written out"):
            scan(inputs, torch.zeros(2, 5, 3))


def test_one_form_of_gates():
    inputs = from_logits(Shape(2, 5, 3), 4, 0, torch.float32)
    written, logits = inputs.written_out(), inputs.gate_logits
    inputs.check()
    assert logits is not None
    with pytest.raises(ValueError, match="one form"):
        replace(inputs, log_decay=written.log_decay).check()
    with pytest.raises(ValueError, match="not both"):
        replace(inputs, erase=written.erase).check()
    with pytest.raises(ValueError, match=r"logits \(3, 2\)"):
        replace(inputs, gate_logits=logits.rows(0, 3)).check()
    with pytest.raises(ValueError, match="do not fit each other"):
        replace(inputs, gate_logits=replace(logits, A_log_H=logits.A_log_H[1:])).check()
