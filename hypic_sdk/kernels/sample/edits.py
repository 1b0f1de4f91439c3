"""What is done to logits before a token is chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """Ids that alone are allowed in a row: a grammar's."""

    rows: torch.Tensor  # [A] int64, each row once
    allowed_bits: torch.Tensor  # [A, ceil(vocab / 32)] int32: id i is bit i % 32 of word i // 32


@dataclass(frozen=True, slots=True, eq=False)
class Bans:
    """Ids that are forbidden in a row: end tokens before the least length."""

    rows: torch.Tensor  # [F] int64
    ids: torch.Tensor  # [F] int64


@dataclass(frozen=True, slots=True, eq=False)
class Biases:
    """What is added to the logit of an id in a row; each pair of row and id once."""

    rows: torch.Tensor  # [B] int64
    ids: torch.Tensor  # [B] int64
    values: torch.Tensor  # [B] fp64


@dataclass(frozen=True, slots=True, eq=False)
class Penalties:
    """What was said before and what saying it again costs."""

    rows: torch.Tensor  # [P] int64, each row once
    in_prompt_PV: torch.Tensor  # [P, vocab] bool: the id stands in the prompt
    counts_PV: torch.Tensor  # [P, vocab] int32: times that it stands in the reply
    repetition_P: torch.Tensor  # [P] fp64, positive; 1 is off
    presence_P: torch.Tensor  # [P] fp64; 0 is off
    frequency_P: torch.Tensor  # [P] fp64; 0 is off


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Everything that is done to the logits of a batch; what a row is not named in is off there."""

    masks: Masks | None = None
    bans: Bans | None = None
    biases: Biases | None = None
    penalties: Penalties | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is done to any row."""
        return (self.masks, self.bans, self.biases, self.penalties) == (None,) * 4
