"""The chunked scan equals the recurrence, and its inverse is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.demo.scan import (
    RESET_LOG_DECAY,
    _fold_by_doubling,
    _fold_in_order,
    _invert_unit_lower,
    chunk_scan,
    token_scan,
    transition_norm,
)

Fold = Callable[..., tuple[torch.Tensor, torch.Tensor]]
KINDS = [(channels, erases) for channels in (False, True) for erases in (False, True)]
EVERY_KIND = pytest.mark.parametrize(("channels", "erases"), KINDS)
FASTEST = 30.0  # log decay of a token; much faster ones than any that a gate gives


class Inputs(NamedTuple):
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    log_decay: torch.Tensor
    beta: torch.Tensor | None
    start: torch.Tensor

    def since(self, token: int) -> Inputs:
        query, key, value, log_decay = (x[:, token:] for x in self[:4])
        beta = self.beta if self.beta is None else self.beta[:, token:]
        return Inputs(query, key, value, log_decay, beta, self.start)

    def float(self) -> Inputs:
        query, key, value, log_decay = (x.float() for x in self[:4])
        beta = self.beta if self.beta is None else self.beta.float()
        return Inputs(query, key, value, log_decay, beta, self.start.float())


def inputs(
    seed: int, tokens: int, channels: bool = False, erases: bool = True, K: int = 5, V: int = 7
) -> Inputs:
    """Of one kind: a decay for every channel or head, with erase or without."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    query, key = (F.normalize(draw(2, tokens, 3, K), dim=-1) for _ in range(2))
    shape = (2, tokens, 3, K) if channels else (2, tokens, 3)
    log_decay = -draw(*shape).abs() * 0.2
    # now and then all that lay before is lost at once, in one channel or in all
    log_decay = torch.where(draw(*shape) > 2.0, -FASTEST, log_decay)
    beta = draw(2, tokens, 3).sigmoid() if erases else None
    return Inputs(query, key, draw(2, tokens, 3, V), log_decay, beta, draw(2, 3, K, V))


def assert_close(what: str, got: torch.Tensor, want: torch.Tensor) -> None:
    # both are fp64 sums of the same terms in another order
    error = (got - want).norm() / want.norm().clamp_min(1e-300)
    assert error <= 1e-12, f"{what}: {error:.1e}"


@EVERY_KIND
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), tokens=st.integers(1, 150))
def test_chunked_scan_equals_the_recurrence(
    channels: bool, erases: bool, seed: int, tokens: int
) -> None:
    arguments = inputs(seed, tokens, channels, erases)
    for name, got, want in zip(
        ("output", "state"), chunk_scan(*arguments), token_scan(*arguments), strict=True
    ):
        assert_close(name, got, want)


@EVERY_KIND
def test_gradients_equal_those_of_the_recurrence(channels: bool, erases: bool) -> None:
    arguments = inputs(1, 131, channels, erases)
    wanted = [x.requires_grad_() for x in arguments if x is not None]
    grads = []
    for scan in (chunk_scan, token_scan):
        output, state = scan(*arguments)
        grads.append(torch.autograd.grad(output.square().sum() + state.sum(), wanted))
    for index, (got, want) in enumerate(zip(*grads, strict=True)):
        assert_close(f"gradient {index}", got, want)


@EVERY_KIND
def test_a_reset_forgets_what_lay_before(channels: bool, erases: bool) -> None:
    given_ = inputs(2, 90, channels, erases)
    given_.log_decay[:, 40] += RESET_LOG_DECAY
    whole, _ = chunk_scan(*given_)
    after, _ = chunk_scan(*given_.since(40)[:5])
    assert_close("after the reset", whole[:, 40:], after)


@EVERY_KIND
def test_fp32_stands_resets_at_every_token(channels: bool, erases: bool) -> None:
    """As in padding; gradients too must be finite."""
    given_ = inputs(7, 130, channels, erases)
    given_.log_decay[:, 64:] += RESET_LOG_DECAY
    narrow = given_.float()
    wanted = [x.requires_grad_() for x in narrow if x is not None]
    output, state = chunk_scan(*narrow)
    want, _ = chunk_scan(*given_)
    # fp32 sums of log decays that reach 2,600
    assert (output - want).norm() <= 1e-3 * want.norm()
    for grad in torch.autograd.grad(output.square().sum() + state.sum(), wanted):
        assert grad.isfinite().all()


def test_inverse() -> None:
    generator = torch.Generator().manual_seed(3)
    lower = torch.randn(2, 64, 64, generator=generator, dtype=torch.float64).tril(-1) * 0.2
    eye = torch.eye(64, dtype=torch.float64)
    assert_close("inverse", _invert_unit_lower(lower) @ (lower + eye), eye.expand(2, 64, 64))


@pytest.mark.parametrize("fold", [_fold_in_order, _fold_by_doubling])
@pytest.mark.parametrize("columns", [1, 5], ids=["diagonal", "matrix"])
@pytest.mark.parametrize("begins", [False, True])
def test_a_fold_applies_chunk_after_chunk(fold: Fold, columns: int, begins: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    maps = 0.3 * torch.randn(1, 2, 7, 5, columns, generator=generator, dtype=torch.float64)
    written = torch.randn(1, 2, 7, 5, 3, generator=generator, dtype=torch.float64)
    start = torch.randn(1, 2, 5, 3, generator=generator, dtype=torch.float64) if begins else None
    state, wanted = torch.zeros_like(written[:, :, 0]) if start is None else start, []
    for i in range(7):
        wanted.append(state)
        one = maps[:, :, i]
        moved = torch.diag_embed(one[..., 0]) @ state if columns == 1 else one @ state
        state = moved + written[:, :, i]
    before, end = fold(maps, written, start)
    assert_close("before", before, torch.stack(wanted, 2))
    assert_close("end", end, state)


def test_transition_norm_without_writes_is_the_decay() -> None:
    _, key, _, log_decay, beta, _ = inputs(5, 70)
    assert beta is not None
    norms = transition_norm(key, log_decay, torch.zeros_like(beta))
    assert_close("norm", norms, log_decay.sum(1).exp())


@pytest.mark.parametrize("channels", [False, True])
def test_transition_norm_without_erase_is_the_slowest_decay(channels: bool) -> None:
    _, key, _, log_decay, _, _ = inputs(5, 70, channels, erases=False)
    total = log_decay.sum(1).exp()
    norms = transition_norm(key, log_decay)
    assert_close("norm", norms, total.amax(-1) if channels else total)
