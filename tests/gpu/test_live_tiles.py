"""Live sequences in tiles on a CUDA device, at the head sizes of a large model."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
import torch

from hypic_sdk.kernels.delta_gates import op as gates_op
from hypic_sdk.kernels.delta_gates.op import GateLogits
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.kernels.live_scan import kernel, reference, tiles
from hypic_sdk.kernels.scan_inputs import ScanInputs
from tests.closeness import assert_close
from tests.kernels.test_live_scan_gates import from_logits
from tests.kernels.test_live_scan_tiles import STATES, decoding, in_fp64, inputs_of, one_request
from tests.strategies import Shape

pytestmark = pytest.mark.gpu

SHAPE = Shape(32, 128, 128)
NUM_ROWS = 2 * 41 + 3


def on(device: torch.device, inputs: ScanInputs) -> ScanInputs:
    names = ("query", "key", "value", "erase", "log_decay")
    moved = {name: getattr(inputs, name) for name in names}
    return replace(inputs, **{n: None if x is None else x.to(device) for n, x in moved.items()})


def transitions_of(
    kind: str, states: torch.Tensor, rng: torch.Generator
) -> torch.Tensor | Int8Pairs:
    H, K, V = states.shape[1:]
    drawn = torch.randn(4, H, K, K, generator=rng).to(states.device) / (2 * K**0.5)
    if kind != "int8":
        return drawn if kind == "fp32" else drawn.half()
    pairs = Int8Pairs.allocate((4,), (H, K, V), (H, K, K), torch.float32, states.device)
    pairs.write(torch.arange(4, device=states.device), drawn, states[:4])
    return pairs


@pytest.mark.parametrize("kind", ["fp16", "int8"])
@pytest.mark.parametrize("shape", [SHAPE, Shape(2, 70, 130), Shape(4, 128, 64)], ids=str)
def test_bits_are_the_same_for_every_block_of_columns(device, kind, shape, monkeypatch):
    """Many sequences go in wider blocks; columns of a state are of sizes from 1 to 10^6."""
    rng = torch.Generator().manual_seed(3)
    inputs = on(device, inputs_of(shape, NUM_ROWS, 7, torch.bfloat16))
    sizes = 10.0 ** torch.linspace(0, 6, shape.V)
    start = (torch.randn(14, shape.H, shape.K, shape.V, generator=rng) * sizes).to(device)
    transitions = transitions_of(kind, start, rng)
    found = []
    for many in (1, 10**6):
        monkeypatch.setattr(tiles, "_MANY_WALKERS", many)
        states, out = start.clone(), torch.full_like(inputs.value, torch.nan)
        items = [*one_request(1, 8), *one_request(43, 10)]
        options = {"gap_rotation": None, "use_transition": True}
        kernel.live_scan(inputs, items, states, transitions, out, **options)
        found.append((out.nan_to_num(0.0), states))
    (out, states), (narrow_out, narrow_states) = found
    assert torch.equal(out, narrow_out)
    assert torch.equal(states, narrow_states)


@pytest.mark.parametrize("kind", ["fp16", "fp32", "int8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [SHAPE, Shape(2, 70, 130), Shape(4, 17, 6)], ids=str)
def test_tiles_agree_with_fp64(device, kind, dtype, shape):
    """Two requests beside each other; poisoned outputs, and bits that are their own."""
    rng = torch.Generator().manual_seed(3)
    inputs = on(device, inputs_of(shape, NUM_ROWS, 7, dtype))
    assert tiles.suits(inputs)
    start = torch.randn(14, shape.H, shape.K, shape.V, generator=rng).to(device)
    transitions = transitions_of(kind, start, rng)
    wide = transitions if isinstance(transitions, Int8Pairs) else transitions.double()
    options = {"gap_rotation": None, "use_transition": True}

    def walk(items: list) -> tuple[torch.Tensor, torch.Tensor]:
        states, out = start.clone(), torch.full_like(inputs.value, torch.nan)
        kernel.live_scan(inputs, items, states, transitions, out, **options)
        return states, out

    items = [*one_request(1, 8), *one_request(43, 10)]
    states, out = walk(items)
    want, want_states = torch.full(out.shape, torch.nan, device=device).double(), start.double()
    reference.live_scan(in_fp64(inputs), items, want_states, wide, want, **options)
    assert torch.equal(out.isnan(), want.isnan()), "other rows were written"
    # outputs are rounded once more, to the dtype
    bound = STATES if dtype == torch.float16 else 2**-8
    assert_close("outputs", out.nan_to_num(0.0), want.nan_to_num(0.0), rel_rms=bound)
    assert_close("states", states, want_states, rel_rms=STATES)
    alone, alone_out = walk(one_request(43, 10))
    assert torch.equal(alone[10:12], states[10:12])
    assert torch.equal(alone_out[43:84], out[43:84])


def projected_on(device: torch.device, logits: GateLogits) -> GateLogits:
    """Slices of one projection there, too."""
    (num_rows, H), tensors = logits.decay_LH.shape, (logits.strength_LH, logits.decay_LH)
    projected = torch.cat([torch.zeros(num_rows, 2 * H), *tensors], 1).to(logits.decay_LH.dtype)
    strength_LH, decay_LH = projected.to(device)[:, 2 * H :].chunk(2, 1)
    return GateLogits(strength_LH, decay_LH, logits.A_log_H.to(device), logits.bias_H.to(device))


@pytest.mark.parametrize("scale", [1e-3, 3.0, 40.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [SHAPE, Shape(2, 70, 130), Shape(4, 17, 6)], ids=str)
def test_logits_give_the_bits_of_gates_made_before(device, dtype, shape, scale):
    """Decode rows make their gates themselves, by no launch; who stands beside tiles not."""
    rng = torch.Generator().manual_seed(3)
    num_rows, tiled = 3 * 64 + 41, 3 * 64
    given = from_logits(shape, num_rows, 7, dtype, scale=scale)
    assert given.gate_logits is not None
    logits = projected_on(device, given.gate_logits)
    inputs = replace(on(device, given), gate_logits=logits)
    written = inputs.written_out()
    start = torch.randn(140, shape.H, shape.K, shape.V, generator=rng).to(device)
    transitions = transitions_of("fp16", start, rng)
    decode = [item for i in range(64) for item in decoding(3 * i, 10 + 2 * i)]
    options = {"gap_rotation": None, "use_transition": True}
    both = [*decode, *one_request(tiled, 4)]
    for items, launches in ((decode, 0), (one_request(tiled, 4), 1), (both, 1)):
        found = []
        for one, wanted in ((written, 0), (inputs, launches)):
            states, out = start.clone(), torch.full_like(inputs.value, torch.nan)
            with mock.patch.object(gates_op, "delta_gates", wraps=gates_op.delta_gates) as gates:
                kernel.live_scan(one, items, states, transitions, out, **options)
            assert gates.call_count == wanted
            found.append((out.nan_to_num(0.0), states))
        (want, want_states), (out, states) = found
        assert torch.equal(out, want)
        assert torch.equal(states, want_states)
