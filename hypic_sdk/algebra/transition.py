"""What a stretch of tokens does to any incoming state: a number, a diagonal or a matrix a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self, final

import torch


class Transition(Protocol):
    """The linear part of a stretch: `S <- T S` on the K rows of every head."""

    def apply(self, state_HKV: torch.Tensor) -> torch.Tensor:
        """T S in the state's dtype, a new tensor of the state's shape [.., H, K, V]."""
        ...

    def then(self, later: Self) -> Self:
        """The transition of both stretches, this one first: T_later T_self."""
        ...

    def identity(self) -> Self:
        """The transition of no tokens, of the same kind, shape, dtype and device."""
        ...

    def to_dense(self, key_size: int) -> torch.Tensor:
        """The same as a matrix: [.., H, K, K]."""
        ...


@final
@dataclass(frozen=True, slots=True, eq=False)
class ScalarTransition:
    """One number a head, kept as its log: a product in 16 bit would underflow, a sum does not."""

    log_decay: torch.Tensor  # [.., H]

    @classmethod
    def constant(cls, log_decay: torch.Tensor, num_tokens: int) -> ScalarTransition:
        """The closed form of `num_tokens` tokens with the same decay [.., H]."""
        return cls(log_decay * num_tokens)

    def apply(self, state_HKV: torch.Tensor) -> torch.Tensor:
        """exp(log) S, in the state's dtype."""
        return state_HKV * self.log_decay.to(state_HKV.dtype).exp()[..., None, None]

    def then(self, later: ScalarTransition) -> ScalarTransition:
        """The sum of the logs."""
        return ScalarTransition(self.log_decay + later.log_decay)

    def identity(self) -> ScalarTransition:
        """A log of zero."""
        return ScalarTransition(torch.zeros_like(self.log_decay))

    def to_dense(self, key_size: int) -> torch.Tensor:
        """A multiple of the identity matrix, [.., H, K, K]."""
        log_decay = self.log_decay[..., None].expand(*self.log_decay.shape, key_size)
        return torch.diag_embed(log_decay.exp())


@final
@dataclass(frozen=True, slots=True, eq=False)
class DiagonalTransition:
    """One number a key row, kept as its log."""

    log_decay: torch.Tensor  # [.., H, K]

    def apply(self, state_HKV: torch.Tensor) -> torch.Tensor:
        """diag(exp(log)) S, in the state's dtype."""
        return state_HKV * self.log_decay.to(state_HKV.dtype).exp()[..., None]

    def then(self, later: DiagonalTransition) -> DiagonalTransition:
        """The sum of the logs."""
        return DiagonalTransition(self.log_decay + later.log_decay)

    def identity(self) -> DiagonalTransition:
        """Logs of zero."""
        return DiagonalTransition(torch.zeros_like(self.log_decay))

    def to_dense(self, key_size: int) -> torch.Tensor:
        """A diagonal matrix, [.., H, K, K]."""
        if self.log_decay.shape[-1] != key_size:
            raise ValueError(f"{self.log_decay.shape[-1]} key rows, asked for {key_size}")
        return torch.diag_embed(self.log_decay.exp())


@final
@dataclass(frozen=True, slots=True, eq=False)
class DenseTransition:
    """A matrix a head; with unit keys no entry is larger than 1, so fp16 holds it."""

    matrix: torch.Tensor  # [.., H, K, K], acts from the left

    def apply(self, state_HKV: torch.Tensor) -> torch.Tensor:
        """T S, the matrix taken up to the state's dtype first."""
        return self.matrix.to(state_HKV.dtype) @ state_HKV

    def then(self, later: DenseTransition) -> DenseTransition:
        """T_later T_self in fp32 at least, rounded to this matrix's dtype."""
        dtype = torch.promote_types(self.matrix.dtype, torch.float32)
        product = later.matrix.to(dtype) @ self.matrix.to(dtype)
        return DenseTransition(product.to(self.matrix.dtype))

    def identity(self) -> DenseTransition:
        """The identity matrix for each head."""
        key_size = self.matrix.shape[-1]
        eye = torch.eye(key_size, dtype=self.matrix.dtype, device=self.matrix.device)
        return DenseTransition(eye.expand_as(self.matrix))

    def to_dense(self, key_size: int) -> torch.Tensor:
        """The matrix itself."""
        if self.matrix.shape[-1] != key_size:
            raise ValueError(f"{self.matrix.shape[-1]} key rows, asked for {key_size}")
        return self.matrix


ConstantTransition = ScalarTransition
"""A constant decay is a scalar one whose log is a closed form: `ScalarTransition.constant`."""
