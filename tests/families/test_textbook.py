"""Each family against its paper's own recurrence, on natural inputs, head by head and by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.families.delta_rule import delta_rule
from hypic_sdk.families.gated_delta_rule import gated_delta_rule
from hypic_sdk.families.gla import gla
from hypic_sdk.families.kda import kda
from hypic_sdk.families.lightning import lightning, lightning_log_decay
from hypic_sdk.families.mamba1 import mamba1
from hypic_sdk.families.mamba2 import mamba2
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.families.retention import retention, retention_log_decay
from tests.closeness import assert_close
from tests.strategies import Shape, explicit_tokens, seeds, shapes

# one token's (S, i, head) -> S and the query row that reads it
Step = Callable[[torch.Tensor, int, int], torch.Tensor]
Case = tuple[Recurrence, Step, Callable[[int, int], torch.Tensor]]
L = 9


class Draw:
    """fp64 normals from one generator."""

    def __init__(self, seed: int) -> None:
        self.rng = torch.Generator().manual_seed(seed)

    def __call__(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, generator=self.rng, dtype=torch.float64)


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / math.sqrt(float(x @ x) + 1e-6)


def softplus(x: torch.Tensor) -> torch.Tensor:
    return (1 + x.exp()).log()


def retention_case(draw: Draw, s: Shape) -> Case:
    q, k, v = draw(L, s.H, s.K), draw(L, s.H, s.K), draw(L, s.H, s.V)

    def step(S, i, h):
        return (1 - 2.0 ** (-5 - h)) * S + torch.outer(k[i, h], v[i, h])

    recurrence = retention(q, k, v, retention_log_decay(s.H, torch.float64))
    return recurrence, step, lambda i, h: q[i, h] / math.sqrt(s.K)


def lightning_case(draw: Draw, s: Shape) -> Case:
    q, k, v = draw(L, s.H, s.K), draw(L, s.H, s.K), draw(L, s.H, s.V)
    rotary = RotarySpec(100.0, 2)

    def turned(x, i):
        angle = float(i + 3)
        turn = torch.eye(s.K, dtype=torch.float64)
        turn[0, 0] = turn[1, 1] = math.cos(angle)
        turn[1, 0], turn[0, 1] = math.sin(angle), -math.sin(angle)
        return turn @ x

    def step(S, i, h):
        return math.exp(-0.3 * h) * S + torch.outer(turned(k[i, h], i), v[i, h])

    log_decay = -0.3 * torch.arange(s.H, dtype=torch.float64)
    recurrence = lightning(q, k, v, log_decay, torch.arange(3, L + 3), rotary=rotary, scale=1.0)
    assert recurrence.key_rotation == rotary
    return recurrence, step, lambda i, h: turned(q[i, h], i)


def mamba2_case(draw: Draw, s: Shape) -> Case:
    groups = 2 if s.H % 2 == 0 else 1
    x, B, C = draw(L, s.H, s.V), draw(L, groups, s.K), draw(L, groups, s.K)
    logits, A_log, bias = draw(L, s.H), draw(s.H), draw(s.H)

    def step(S, i, h):
        delta = min(max(float(softplus(logits[i, h] + bias[h])), 0.1), 2.0)
        write = torch.outer(B[i, h * groups // s.H], delta * x[i, h])
        return math.exp(-delta * math.exp(A_log[h])) * S + write

    recurrence = mamba2(x, B, C, logits, A_log, bias, step_limits=(0.1, 2.0))
    return recurrence, step, lambda i, h: C[i, h * groups // s.H]


def mamba1_case(draw: Draw, s: Shape) -> Case:
    x, B, C = draw(L, s.H, s.V), draw(L, 1, s.K), draw(L, 1, s.K)
    steps, A_log = draw(L, s.H).abs(), draw(s.H, s.K)

    def step(S, i, h):
        decay = (-steps[i, h] * A_log[h].exp()).exp()
        return decay[:, None] * S + torch.outer(B[i, 0], steps[i, h] * x[i, h])

    return mamba1(x, B, C, steps, A_log), step, lambda i, h: C[i, 0]


def gla_case(draw: Draw, s: Shape) -> Case:
    q, k, v = draw(L, s.H, s.K), draw(L, s.H, s.K), draw(L, s.H, s.V)
    gate = draw(L, s.H, s.K)

    def step(S, i, h):
        decay = gate[i, h].sigmoid() ** (1 / 8)
        return decay[:, None] * S + torch.outer(k[i, h], v[i, h])

    recurrence = gla(q, k, v, gate, gate_divisor=8.0, scale=0.25)
    return recurrence, step, lambda i, h: 0.25 * q[i, h]


def erased(S: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: float) -> torch.Tensor:
    """The delta rule: what the key reads is moved towards the value."""
    k = unit(k)
    return S + b * torch.outer(k, v - S.T @ k)


def delta_case(draw: Draw, s: Shape) -> Case:
    q, k, v, logits = draw(L, 1, s.K), draw(L, 1, s.K), draw(L, s.H, s.V), draw(L, s.H)

    def step(S, i, h):
        return erased(S, k[i, 0], v[i, h], float(logits[i, h].sigmoid()))

    recurrence = delta_rule(q, k, v, logits)
    return recurrence, step, lambda i, h: unit(q[i, 0]) / math.sqrt(s.K)


def gated_delta_case(draw: Draw, s: Shape) -> Case:
    groups = 2 if s.H % 2 == 0 else 1
    q, k, v = draw(L, groups, s.K), draw(L, groups, s.K), draw(L, s.H, s.V)
    strength, decay, A_log, bias = draw(L, s.H), draw(L, s.H), draw(s.H), draw(s.H)

    def step(S, i, h):
        g = -math.exp(A_log[h]) * float(softplus(decay[i, h] + bias[h]))
        key = k[i, h * groups // s.H]
        return erased(math.exp(g) * S, key, v[i, h], 2 * float(strength[i, h].sigmoid()))

    recurrence = gated_delta_rule(q, k, v, strength, decay, A_log, bias, strength_max=2.0)
    return recurrence, step, lambda i, h: unit(q[i, h * groups // s.H]) / math.sqrt(s.K)


def kda_case(draw: Draw, s: Shape, lower_bound: float | None = None) -> Case:
    q, k, v = draw(L, s.H, s.K), draw(L, s.H, s.K), draw(L, s.H, s.V)
    strength, gate, A_log, bias = draw(L, s.H), draw(L, s.H, s.K), draw(s.H), draw(s.H, s.K)

    def step(S, i, h):
        shifted, speed = gate[i, h] + bias[h], math.exp(A_log[h])
        g = -speed * softplus(shifted)
        if lower_bound is not None:
            g = lower_bound * (speed * shifted).sigmoid()
        return erased(g.exp()[:, None] * S, k[i, h], v[i, h], float(strength[i, h].sigmoid()))

    recurrence = kda(q, k, v, strength, gate, A_log, bias, lower_bound=lower_bound)
    return recurrence, step, lambda i, h: unit(q[i, h]) / math.sqrt(s.K)


CASES: dict[str, Callable[[Draw, Shape], Case]] = {
    "retention": retention_case,
    "lightning": lightning_case,
    "mamba2": mamba2_case,
    "mamba1": mamba1_case,
    "gla": gla_case,
    "delta_rule": delta_case,
    "gated_delta_rule": gated_delta_case,
    "kda": kda_case,
    "kda, bounded": lambda draw, s: kda_case(draw, s, lower_bound=-5.0),
}


def test_every_family_has_a_case():
    assert {name.partition(",")[0] for name in CASES} == set(FAMILIES)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=10)
@given(shape=shapes(), seed=seeds())
def test_the_recurrence_is_the_papers(name, shape, seed):
    recurrence, step, query = CASES[name](Draw(seed), shape)
    tokens = explicit_tokens(recurrence)
    outputs, end_state = tokens.run(tokens.zeros(), 0, L)
    for h in range(shape.H):
        S = torch.zeros(shape.K, shape.V, dtype=torch.float64)
        for i in range(L):
            S = step(S, i, h)
            assert_close(f"output {i}", outputs[i, h], S.T @ query(i, h), rel_rms=1e-11)
        assert_close("state", end_state[h], S, rel_rms=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=8)
@given(
    num_tokens=st.integers(0, 5),
    shape=shapes(),
    seed=seeds(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_samples_are_what_the_waist_takes(family, num_tokens, shape, seed, dtype):
    rng = torch.Generator().manual_seed(seed)
    recurrence = FAMILIES[family].sample(rng, num_tokens, shape.H, shape.K, shape.V, dtype)
    inputs = recurrence.scan_inputs()
    inputs.check()
    assert recurrence.num_tokens == num_tokens
    assert recurrence.value.shape == (num_tokens, shape.H, shape.V)
    assert {recurrence.query.dtype, recurrence.key.dtype, recurrence.value.dtype} == {dtype}
    wide = torch.promote_types(dtype, torch.float32)
    decays = (recurrence.log_decay, recurrence.constant_log_decay, recurrence.rates)
    for decay in decays:
        assert decay is None or (decay.dtype == wide and bool((decay <= 0).all()))
    assert recurrence.erase is None or recurrence.erase.dtype == wide


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_repeat(family):
    first, second = (
        FAMILIES[family].sample(torch.Generator().manual_seed(5), 4, 2, 3, 5, torch.float32)
        for _ in range(2)
    )
    assert torch.equal(first.value, second.value)
    assert torch.equal(first.key, second.key)


def expected_slopes(num_heads: int) -> Sequence[float]:
    return {
        1: [2.0**-8],
        4: [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8],
        6: [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3],
    }[num_heads]


@pytest.mark.parametrize("num_heads", [1, 4, 6])
@pytest.mark.parametrize("first_layer_full", [True, False])
def test_lightning_slopes(num_heads, first_layer_full):
    """ALiBi's, with its rule for head counts that are no power of two, times a layer's factor."""
    for layer in range(5):
        factor = 1 - (layer if first_layer_full else layer - 1) / 4 + 1e-5
        got = lightning_log_decay(
            num_heads, layer, 5, first_layer_full=first_layer_full, dtype=torch.float64
        )
        want = -factor * torch.tensor(expected_slopes(num_heads), dtype=torch.float64)
        assert_close("slopes", got, want, rel_rms=1e-14)


def test_rows_keep_what_is_the_same_for_all_tokens():
    for family in FAMILIES.values():
        whole = family.sample(torch.Generator().manual_seed(0), 6, 2, 5, 3, torch.float64)
        left, right = whole.split(2)
        assert (left.num_tokens, right.num_tokens) == (2, 4)
        assert torch.equal(right.value, whole.value[2:])
        for part in (left, right):
            assert (part.scale, part.unit_keys) == (whole.scale, whole.unit_keys)
            assert part.key_rotation == whole.key_rotation
            assert part.constant_log_decay is whole.constant_log_decay
            assert part.rates is whole.rates


def test_logits_are_gates_that_are_still_to_be_made():
    """Of all tokens or of some, of the pair too; a strength of up to 2 is made at once."""
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(6, 2, size, generator=rng, dtype=torch.float64) for size in (5, 5, 3))
    logits = torch.randn(2, 6, 2, generator=rng, dtype=torch.float64)
    heads = torch.randn(2, 2, generator=rng, dtype=torch.float64)
    made = gated_delta_rule(q, k, v, *logits, *heads)
    assert made.log_decay is made.erase is None
    whole, part = made.written_out(), made.split(2)[1].written_out()
    assert whole.gate_logits is part.gate_logits is None
    assert whole.written_out() is whole
    assert torch.equal(part.log_decay, whole.log_decay[2:])
    assert torch.equal(part.erase, whole.erase[2:])
    for field in ("transition.matrix", "end_state"):
        got, want = (attrgetter(field)(r.segment_state()) for r in (made, whole))
        assert torch.equal(got, want), field
    doubled = gated_delta_rule(q, k, v, *logits, *heads, strength_max=2.0)
    assert torch.equal(doubled.erase, 2.0 * whole.erase)
    assert torch.equal(doubled.log_decay, whole.log_decay)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("threads", [1, 3])
def test_gates_of_a_token_are_its_own(family, threads):
    """Bits do not depend on the size of the batch, the place in it, or threads (design 3.9)."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole, few = (natural_rows(family, torch.arange(n) % 5) for n in (40_000, 5))
        for name in ("query", "key", "value", "log_decay", "erase", "steps"):
            got, want = getattr(whole, name), getattr(few, name)
            assert got is None or torch.equal(got, want[torch.arange(len(got)) % 5]), name
    finally:
        torch.set_num_threads(before)


def natural_rows(family: str, which: torch.Tensor) -> Recurrence:
    """The family of inputs that repeat five tokens in some order; three heads, fp32."""
    rng = torch.Generator().manual_seed(0)
    wide, narrow = (torch.randn(4, 5, 3, size, generator=rng)[:, which] for size in (2, 1))
    q, k, v, gate = wide
    a, b, *_ = narrow[..., 0]
    head, cell = torch.randn(3, generator=rng), torch.randn(3, 2, generator=rng)
    rotary = RotarySpec(100.0, 2)
    return {
        "retention": lambda: retention(q, k, v, -head.abs()),
        "lightning": lambda: lightning(q, k, v, -head.abs(), which * 1000, rotary=rotary),
        "mamba2": lambda: mamba2(v, k, q, a, head, head),
        "mamba1": lambda: mamba1(v, k, q, a.abs(), cell),
        "gla": lambda: gla(q, k, v, gate),
        "delta_rule": lambda: delta_rule(q, k, v, a),
        "gated_delta_rule": lambda: gated_delta_rule(q, k, v, a, b, head, head).written_out(),
        "kda": lambda: kda(q, k, v, a, gate, head, cell),
    }[family]()
