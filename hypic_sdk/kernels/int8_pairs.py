"""Pairs (T, S) in 8 bits: whole numbers with one scale a row, the diagonal of T beside them.

What is read back is a pure function of the pair alone, and exact in fp32: a whole number below 128
times a scale of 8 bits.  So whoever reads a row, in whatever order, reads the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import final

import torch

LARGEST = 127
SCALE_DTYPE = torch.bfloat16  # the range of fp32: an fp16 scale would lose large and small rows
DIAGONAL_DTYPE = torch.float16  # with unit keys no entry of T is larger than 1
# below it a scale would be subnormal, and its rounding coarser than half a step of the row
_LEAST_SCALE = torch.finfo(SCALE_DTYPE).tiny


def to_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each row to whole numbers of one scale.

    Args:
        x: [.., R, C], fp32 or fp64.
    Returns:
        [.., R, C] int8 from -127 to 127, and [.., R] bf16 scales; a row that is not finite has a
        scale that is not.
    Error:
        at most half a scale in any element; the scale is the row's largest size over 127, within
        0.4 % (so nothing is larger than 127.5 scales).
    """
    scales = (x.abs().amax(-1) / LARGEST).clamp_min(_LEAST_SCALE).to(SCALE_DTYPE)
    numbers = (x / scales.to(x.dtype)[..., None]).round_()
    # what is not finite is told by the scale; no bits of a number may hang on a cast of it
    return numbers.nan_to_num_(0.0, LARGEST, -LARGEST).to(torch.int8), scales


def from_int8(numbers: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What `to_int8` kept, [.., R, C] in fp32 or fp64: exact, a new tensor."""
    return numbers.to(dtype).mul_(scales.to(dtype)[..., None])


@final
@dataclass(frozen=True, slots=True, eq=False)
class Int8Pairs:
    """Rows of pairs: of all layers [X, J, ..], or one layer's views [X, ..]."""

    states: torch.Tensor  # [X, H, K, V] int8
    state_scales: torch.Tensor  # [X, H, K] bf16
    # with erase [X, H, K, K] int8, zeros on the diagonal; else log-decays [X, H, K] or [X, H] in
    # the work dtype; none for a constant decay
    transitions: torch.Tensor | None
    transition_scales: torch.Tensor | None  # [X, H, K] bf16, with erase
    diagonals: torch.Tensor | None  # [X, H, K] fp16, with erase

    @classmethod
    def allocate(
        cls,
        lead: tuple[int, ...],
        state_shape: tuple[int, int, int],
        transition_shape: tuple[int, ...] | None,
        log_dtype: torch.dtype,
        device: torch.device,
    ) -> Int8Pairs:
        """Memory that is not cleared.

        Args:
            lead: (X, J) or (X,).
            state_shape: (H, K, V).
            transition_shape: (H, K, K), (H, K), (H,) or none.
            log_dtype: of log-decays.
        """

        def rows(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            return torch.empty((*lead, *shape), dtype=dtype, device=device)

        by_row = state_shape[:2]
        is_dense = transition_shape is not None and len(transition_shape) == 3
        transitions = None
        if transition_shape is not None:
            transitions = rows(transition_shape, torch.int8 if is_dense else log_dtype)
        return cls(
            states=rows(state_shape, torch.int8),
            state_scales=rows(by_row, SCALE_DTYPE),
            transitions=transitions,
            transition_scales=rows(by_row, SCALE_DTYPE) if is_dense else None,
            diagonals=rows(by_row, DIAGONAL_DTYPE) if is_dense else None,
        )

    def tensors(self) -> Iterator[torch.Tensor]:
        """All there are, always in one order."""
        for field in fields(self):
            tensor: torch.Tensor | None = getattr(self, field.name)
            if tensor is not None:
                yield tensor

    @property
    def num_bytes(self) -> int:
        """What the tensors take."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())

    def layers(self) -> tuple[Int8Pairs, ...]:
        """Views of each layer, of rows of all layers."""
        num_layers = self.states.shape[1]
        states, state_scales = self.states.unbind(1), self.state_scales.unbind(1)
        others = (
            (None,) * num_layers if slab is None else slab.unbind(1)
            for slab in (self.transitions, self.transition_scales, self.diagonals)
        )
        return tuple(Int8Pairs(*of) for of in zip(states, state_scales, *others, strict=True))

    def read_state(self, row: int, dtype: torch.dtype) -> torch.Tensor:
        """S of one row of a layer, [H, K, V]."""
        return from_int8(self.states[row], self.state_scales[row], dtype)

    def read_transition(self, row: int, dtype: torch.dtype) -> torch.Tensor:
        """T of one row of a layer: [H, K, K], or its log-decay [H, K] or [H]."""
        assert self.transitions is not None, "a constant decay has no transition"
        if self.transition_scales is None or self.diagonals is None:
            return self.transitions[row].to(dtype)
        transition = from_int8(self.transitions[row], self.transition_scales[row], dtype)
        transition.diagonal(dim1=-2, dim2=-1).copy_(self.diagonals[row])
        return transition

    def write(
        self,
        rows: torch.Tensor | Sequence[int],
        transitions: torch.Tensor | None,
        states: torch.Tensor,
    ) -> torch.Tensor:
        """Round pairs into rows of a layer.

        Args:
            rows: n of them.
            transitions: [n, H, K, K], log-decays [n, H, K] or [n, H], or none: as rows keep them.
            states: [n, H, K, V], fp32 or fp64.
        Returns:
            [n] bool, which nobody has waited for: whether all is finite as stored (a diagonal too
            large for fp16 included).
        Error:
            as `to_int8`; on the diagonal of T that of fp16.
        """
        self.states[rows], scales = to_int8(states)
        self.state_scales[rows] = scales
        kept = [scales]
        if self.transitions is not None and transitions is not None:
            if self.transition_scales is None or self.diagonals is None:
                kept.append(transitions.to(self.transitions.dtype))
                self.transitions[rows] = kept[-1]
            else:
                diagonals = transitions.diagonal(dim1=-2, dim2=-1).to(DIAGONAL_DTYPE)
                rest = transitions.clone()
                rest.diagonal(dim1=-2, dim2=-1).zero_()
                self.transitions[rows], scales = to_int8(rest)
                self.transition_scales[rows], self.diagonals[rows] = scales, diagonals
                kept += [scales, diagonals]
        return torch.stack([one.isfinite().flatten(1).all(1) for one in kept]).all(0)
