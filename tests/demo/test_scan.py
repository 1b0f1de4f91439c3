"""The chunked scan equals the recurrence, and its inverse is one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.demo.scan import (
    RESET_LOG_DECAY,
    _invert_unit_lower,
    _states_before_chunks,
    chunk_scan,
    token_scan,
    transition_norm,
)


def inputs(seed: int, tokens: int, K: int = 5, V: int = 7) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    query, key = (F.normalize(draw(2, tokens, 3, K), dim=-1) for _ in range(2))
    log_decay, beta = -draw(2, tokens, 3).abs() * 0.2, draw(2, tokens, 3).sigmoid()
    return [query, key, draw(2, tokens, 3, V), log_decay, beta, draw(2, 3, K, V)]


def assert_close(what: str, got: torch.Tensor, want: torch.Tensor) -> None:
    # both are fp64 sums of the same terms in another order
    error = (got - want).norm() / want.norm().clamp_min(1e-300)
    assert error <= 1e-12, f"{what}: {error:.1e}"


@given(seed=st.integers(0, 2**31), tokens=st.integers(1, 150))
def test_chunked_scan_equals_the_recurrence(seed: int, tokens: int) -> None:
    arguments = inputs(seed, tokens)
    for name, got, want in zip(
        ("output", "state"), chunk_scan(*arguments), token_scan(*arguments), strict=True
    ):
        assert_close(name, got, want)


def test_gradients_equal_those_of_the_recurrence() -> None:
    arguments = [x.requires_grad_() for x in inputs(1, 131)]
    grads = []
    for scan in (chunk_scan, token_scan):
        output, state = scan(*arguments)
        grads.append(torch.autograd.grad(output.square().sum() + state.sum(), arguments))
    for index, (got, want) in enumerate(zip(*grads, strict=True)):
        assert_close(f"gradient {index}", got, want)


def test_a_reset_forgets_what_lay_before() -> None:
    query, key, value, log_decay, beta, start = inputs(2, 90)
    log_decay[:, 40] += RESET_LOG_DECAY
    whole, _ = chunk_scan(query, key, value, log_decay, beta, start)
    after, _ = chunk_scan(*(x[:, 40:] for x in (query, key, value, log_decay, beta)))
    assert_close("after the reset", whole[:, 40:], after)


def test_inverse() -> None:
    generator = torch.Generator().manual_seed(3)
    lower = torch.randn(2, 64, 64, generator=generator, dtype=torch.float64).tril(-1) * 0.2
    eye = torch.eye(64, dtype=torch.float64)
    assert_close("inverse", _invert_unit_lower(lower) @ (lower + eye), eye.expand(2, 64, 64))


def test_both_folds_agree() -> None:
    generator = torch.Generator().manual_seed(4)
    maps = 0.3 * torch.randn(1, 2, 7, 5, 5, generator=generator, dtype=torch.float64)
    written = torch.randn(1, 2, 7, 5, 3, generator=generator, dtype=torch.float64)
    start = torch.randn(1, 2, 5, 3, generator=generator, dtype=torch.float64)
    state, wanted = start, []
    for i in range(7):
        wanted.append(state)
        state = maps[:, :, i] @ state + written[:, :, i]
    before, end = _states_before_chunks(maps, written, start)
    assert_close("before", before, torch.stack(wanted, 2))
    assert_close("end", end, state)


def test_transition_norm_without_writes_is_the_decay() -> None:
    _, key, _, log_decay, beta, _ = inputs(5, 70)
    norms = transition_norm(key, log_decay, torch.zeros_like(beta))
    assert_close("norm", norms, log_decay.sum(1).exp())
