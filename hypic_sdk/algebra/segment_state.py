"""The pair (transition, end state) of a stretch of tokens: a monoid under composition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, final

import torch

from hypic_sdk.algebra.transition import (
    DenseTransition,
    DiagonalTransition,
    ScalarTransition,
    Transition,
)
from hypic_sdk.kernels.scan_inputs import ScanInputs
from hypic_sdk.kernels.segment_scan.step import step_scan

T = TypeVar("T", bound=Transition)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SegmentState(Generic[T]):
    """A stretch of tokens as an affine map of the state before it: S <- transition S + end_state.

    Source: HYPIC section 4.1, Eq. 6.
    """

    transition: T
    end_state: torch.Tensor  # [.., H, K, V] fp32 or fp64, from a zero start

    def apply(self, state_HKV: torch.Tensor) -> torch.Tensor:
        """The state after the stretch."""
        return self.transition.apply(state_HKV) + self.end_state

    def then(self, later: SegmentState[T]) -> SegmentState[T]:
        """Both stretches as one, this one first; associative."""
        return SegmentState(self.transition.then(later.transition), later.apply(self.end_state))

    def identity(self) -> SegmentState[T]:
        """The stretch of no tokens, of the same kind and shape."""
        return SegmentState(self.transition.identity(), torch.zeros_like(self.end_state))


def fold(states: Sequence[SegmentState[T]]) -> SegmentState[T]:
    """Compose stretches that follow each other, as a tree of pairs.

    Raises:
        ValueError: there is none (the identity needs a shape; `SegmentState.identity` has one).
    """
    if not states:
        raise ValueError("nothing to fold")
    level = list(states)
    while len(level) > 1:
        pairs = [
            earlier.then(later) for earlier, later in zip(level[::2], level[1::2], strict=False)
        ]
        level = pairs + level[len(level) - len(level) % 2 :]
    return level[0]


def scan_segment_state(inputs: ScanInputs) -> SegmentState[Transition]:
    """The pair of all tokens by the definition: one step a token, also for the transition."""
    shape = (inputs.num_heads, inputs.key_size, inputs.value.shape[2])
    zeros = torch.zeros(shape, dtype=inputs.work_dtype, device=inputs.value.device)
    _, end_state = step_scan(inputs, zeros)
    return SegmentState(_transition(inputs), end_state)


def _transition(inputs: ScanInputs) -> Transition:
    if inputs.is_dense:
        return DenseTransition(_dense_matrix(inputs))
    dtype = inputs.work_dtype
    if inputs.constant_log_decay is not None:
        return ScalarTransition.constant(inputs.constant_log_decay.to(dtype), inputs.num_tokens)
    if inputs.rates is not None:
        assert inputs.steps is not None, "steps and rates come together"
        return DiagonalTransition(inputs.steps.to(dtype).sum(0)[:, None] * inputs.rates.to(dtype))
    if inputs.log_decay is None:
        zeros = torch.zeros(inputs.num_heads, dtype=dtype, device=inputs.value.device)
        return ScalarTransition(zeros)
    total = inputs.log_decay.to(dtype).sum(0)
    return ScalarTransition(total) if total.ndim == 1 else DiagonalTransition(total)


def _dense_matrix(inputs: ScanInputs) -> torch.Tensor:
    """Columns of the identity, put through the recurrence with nothing written."""
    size = inputs.key_size
    eye = torch.eye(size, dtype=inputs.work_dtype, device=inputs.value.device)
    columns = inputs.value.new_zeros((inputs.num_tokens, inputs.num_heads, size))
    silent = ScanInputs(
        inputs.query,
        inputs.key,
        columns,
        inputs.log_decay,
        inputs.erase,
        unit_keys=inputs.unit_keys,
        constant_log_decay=inputs.constant_log_decay,
    )
    return step_scan(silent, eye.expand(inputs.num_heads, -1, -1))[1]
