"""Ops on rows, on a CUDA device: products, norms, rotation, experts, sampling."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hypic_sdk.kernels.activation import sigmoid, silu, softplus
from hypic_sdk.kernels.experts.op import Routing, experts, route
from hypic_sdk.kernels.linear.op import linear
from hypic_sdk.kernels.norm.op import gated_rms_norm, rms_norm
from hypic_sdk.kernels.rotation import RotarySpec, rotary_angles, rotate, rotate_state
from hypic_sdk.kernels.sample.noise import uniform
from hypic_sdk.kernels.sample.op import logprobs, sample
from tests.closeness import assert_close
from tests.gpu.placed import BOUNDS, normal

pytestmark = pytest.mark.gpu

DTYPES = list(BOUNDS)
# (rows of the batch, the row of the pool at which it starts)
BATCHES = ((16, 0), (16, 5), (16, 640), (48, 333), (256, 256), (272, 16), (1408, 7))
POOL_ROWS = 2048


def assert_row_independent(rows_op: Callable[..., torch.Tensor], *pools: torch.Tensor) -> None:
    """Fail unless every batch of rows comes out, bit by bit, as the same rows of the pool did."""
    whole = rows_op(*pools)
    assert whole.isfinite().all()
    for rows, start in BATCHES:
        got = rows_op(*(pool[start : start + rows].clone() for pool in pools))
        wrong = int((got != whole[start : start + rows]).flatten(1).any(1).sum())
        assert wrong == 0, f"{wrong} of {rows} rows from {start} on differ"


@pytest.mark.parametrize("row_independent", [False, True])
@pytest.mark.parametrize("sizes", [(16, 40, 3), (48, 300, 191), (272, 2048, 512)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear(device, dtype, sizes, row_independent):
    rows, inputs, outputs = sizes
    x, weight = normal(device, dtype, rows, inputs), normal(device, dtype, outputs, inputs)
    bias = normal(device, dtype, outputs)
    got = linear(x.here, weight.here, bias.here, row_independent=row_independent)
    assert got.dtype == dtype
    assert_close("rows", got.cpu(), x.wide @ weight.wide.T + bias.wide, rel_rms=BOUNDS[dtype])


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [(40, 3), (300, 96), (1000, 191), (2048, 12352), (512, 2048), (2048, 1288), (4096, 2048)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_rows_bits_are_its_own_in_linear(device, dtype, inputs, outputs):
    pool, weight = (normal(device, dtype, n, inputs).here for n in (POOL_ROWS, outputs))
    assert_row_independent(lambda x: linear(x, weight, row_independent=True), pool)


@pytest.mark.parametrize("zero_centred", [False, True])
@pytest.mark.parametrize("shape", [(1, 3), (17, 40), (33, 4, 256), (272, 2048)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm(device, dtype, shape, zero_centred):
    x, weight = normal(device, dtype, *shape), normal(device, dtype, shape[-1])
    got = rms_norm(x.here, weight.here, eps=1e-6, zero_centred=zero_centred)
    want = x.wide / (x.wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    want = want * (weight.wide + zero_centred)
    assert_close("rows", got.cpu(), want, rel_rms=BOUNDS[dtype])


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_rms_norm(device, dtype, activation, gate_first):
    L, H, V = 37, 3, 24
    x, gate = normal(device, dtype, L, H, V), normal(device, dtype, L, H, V)
    weight = normal(device, dtype, H, V)
    got = gated_rms_norm(
        *(x.here, gate.here, weight.here), eps=1e-6, activation=activation, gate_first=gate_first
    )
    factor = gate.wide.sigmoid() * (gate.wide if activation == "silu" else 1.0)
    before = x.wide * factor if gate_first else x.wide
    want = before / (before.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.wide
    assert_close("rows", got.cpu(), want if gate_first else want * factor, rel_rms=BOUNDS[dtype])


@pytest.mark.parametrize("size", [40, 300, 2048, 5120])
def test_a_rows_bits_are_its_own_in_norms(device, size):
    pool = normal(device, torch.bfloat16, POOL_ROWS, size).here
    weight = normal(device, torch.bfloat16, size).here
    assert_row_independent(lambda x: rms_norm(x, weight, eps=1e-6, zero_centred=True), pool)
    heads, gates = (normal(device, torch.float32, POOL_ROWS, 4, 128).here for _ in range(2))
    weight = normal(device, torch.float32, 128).here
    assert_row_independent(
        lambda x, gate: gated_rms_norm(
            x, gate, weight, eps=1e-6, activation="silu", gate_first=False
        ),
        heads,
        gates,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_activations(device, dtype):
    x = normal(device, dtype, 41, 77)
    for name, op, want in (
        ("sigmoid", sigmoid, x.wide.sigmoid()),
        ("silu", silu, x.wide * x.wide.sigmoid()),
        ("softplus", softplus, x.wide.exp().log1p()),
    ):
        assert_close(name, op(x.here).cpu(), want, rel_rms=BOUNDS[dtype])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_rotation(device, dtype, interleaved):
    """Angles come from fp64 on the device too: far positions turn as near ones do."""
    spec = RotarySpec(1e7, 20, interleaved)
    positions = torch.randint(0, 1_000_000, (33,))
    x, wide = normal(device, dtype, 33, 3, 31), torch.promote_types(dtype, torch.float32)
    # a frequency is a power, which devices round apart by 2^-52 of it; a million times that
    bound = 1e6 * 2**-52 if dtype == torch.float64 else BOUNDS[dtype]
    got = rotate(x.here, *rotary_angles(spec, positions.to(device), wide), interleaved)
    want = rotate(x.wide, *rotary_angles(spec, positions, torch.float64), interleaved)
    assert_close("rows", got.cpu(), want, rel_rms=bound)
    if dtype == torch.bfloat16:
        return
    state = normal(device, dtype, 2, 31, 7)
    got = rotate_state(state.here, spec, 999_983)
    assert_close("state", got.cpu(), rotate_state(state.wide, spec, 999_983), rel_rms=bound)


def test_routing_breaks_ties_as_on_a_cpu(device):
    logits = torch.randint(-4, 4, (65, 128)).float()  # a few values, so ties abound
    got, want = (route(x, top_k=8, renormalise=True) for x in (logits.to(device), logits.double()))
    assert torch.equal(got.indices.cpu(), want.indices)
    assert_close("shares", got.weights.cpu(), want.weights, rel_rms=1e-6)


@pytest.mark.parametrize("row_independent", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_experts(device, dtype, row_independent):
    rows, num_experts, width, inner, top_k = 48, 12, 40, 24, 3
    x, logits = normal(device, dtype, rows, width), torch.randn(rows, num_experts)
    gate_up = normal(device, dtype, num_experts, 2 * inner, width)
    down = normal(device, dtype, num_experts, width, inner)
    want_routing = route(logits.double(), top_k=top_k, renormalise=True)
    routing = Routing(want_routing.indices.to(device), want_routing.weights.float().to(device))
    got = experts(x.here, routing, gate_up.here, down.here, row_independent=row_independent)
    want = torch.zeros(rows, width, dtype=torch.float64)
    for row in range(rows):
        for expert, share in zip(*(field[row].tolist() for field in want_routing), strict=True):
            gate, up = (gate_up.wide[expert] @ x.wide[row]).chunk(2)
            want[row] += share * (down.wide[expert] @ (gate * gate.sigmoid() * up))
    assert_close("rows", got.cpu(), want, rel_rms=2 * BOUNDS[dtype])


def test_a_rows_bits_are_its_own_in_experts(device):
    width, inner, num_experts = 64, 48, 16
    pool, router = (normal(device, torch.bfloat16, n, width).here for n in (POOL_ROWS, num_experts))
    gate_up = normal(device, torch.bfloat16, num_experts, 2 * inner, width).here
    down = normal(device, torch.bfloat16, num_experts, width, inner).here

    def block(x: torch.Tensor) -> torch.Tensor:
        routing = route(linear(x, router, row_independent=True), top_k=4, renormalise=True)
        return experts(x, routing, gate_up, down, row_independent=True)

    assert_row_independent(block, pool)


def test_noise_and_greedy_ids_are_those_of_a_cpu(device):
    seeds, steps = torch.randint(-(2**62), 2**62, (2, 300))
    assert torch.equal(uniform(seeds.to(device), steps.to(device)).cpu(), uniform(seeds, steps))
    logits = torch.randint(-30, 30, (50, 1000)).float()  # the best id is seldom the only one
    logits[3, 7], logits[4] = torch.nan, -torch.inf
    settings = sampling_of(50, temperature=0.0, seeds_R=seeds[:50], steps_R=steps[:50])
    got, want = sample(logits.to(device), **settings), sample(logits, **settings)
    assert torch.equal(got.ids.cpu(), want.ids)
    assert torch.equal(got.ok.cpu(), want.ok)
    assert want.ok.tolist().count(False) == 2


def sampling_of(
    rows: int,
    *,
    temperature: float,
    min_p: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    **more: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """The same settings for each row, on the host, as the engine hands them over."""
    return {
        "temperature_R": torch.full((rows,), temperature),
        "min_p_R": torch.full((rows,), min_p),
        "top_k_R": torch.full((rows,), top_k),
        "top_p_R": torch.full((rows,), top_p),
        **more,
    }


@pytest.mark.parametrize("top_k", [0, 40])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_sampled_ids_are_those_of_a_cpu(device, top_k, top_p):
    """Sums differ in their last bits, so an id at the very border of its mass may differ."""
    rows = 400
    logits, seeds = 3.0 * torch.randn(rows, 5000), torch.randint(0, 2**40, (rows,))
    settings = sampling_of(
        rows,
        temperature=0.8,
        min_p=0.001,
        top_k=top_k,
        top_p=top_p,
        seeds_R=seeds,
        steps_R=torch.arange(rows),
    )
    got, want = sample(logits.to(device), **settings), sample(logits, **settings)
    assert got.ok.all()
    assert int((got.ids.cpu() != want.ids).sum()) <= 2
    again = sample(logits[7:9].to(device), **{name: x[7:9] for name, x in settings.items()})
    assert torch.equal(again.ids, got.ids[7:9]), "a row's id is its own"
    told = logprobs(logits.to(device), want.ids.to(device), 5)
    wide = logits.double().log_softmax(-1)
    assert_close("top", told.top.cpu(), wide.topk(5).values, rel_rms=1e-6)
    assert_close("chosen", told.chosen.cpu(), wide.gather(1, want.ids[:, None])[:, 0], rel_rms=1e-6)
