"""A forward that runs, and tokens that are drawn from it and are on their way to the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

from hypic_sdk.engine.batch import Batch, FiniteFlags, Sampled, StepResult
from hypic_sdk.engine.request import Reply
from hypic_sdk.transport.messages import TokenLogprobs


@final
class Download:
    """A tensor on its way to the host; whoever reads it waits for it, and for nothing behind it."""

    def __init__(self, there: torch.Tensor) -> None:
        self._here, self._event = there, None
        if there.is_cuda:
            self._here = torch.empty(there.shape, dtype=there.dtype, pin_memory=True)
            self._here.copy_(there, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> torch.Tensor:
        """The same numbers on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._here


@dataclass(frozen=True, slots=True, eq=False)
class DrawnLogprobs:
    """Log-probabilities of some of the drawn tokens."""

    rows: list[int]  # of `Drawn`
    wanted: list[int]  # of each, how many of the best are told
    ids: Download  # [rows, 2 + n] int64: token, its rank, the n best
    logprobs: Download  # [rows, 1 + n]: of the token, and of these

    def read(self) -> dict[int, TokenLogprobs]:
        """By row."""
        told = {}
        columns = (self.ids.read().tolist(), self.logprobs.read().tolist())
        for row, count, ids, values in zip(self.rows, self.wanted, *columns, strict=True):
            best = tuple(zip(ids[2 : 2 + count], values[1 : 1 + count], strict=True))
            told[row] = TokenLogprobs(ids[0], values[0], ids[1], best)
        return told


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One token for each of some replies."""

    ids_R: torch.Tensor  # [R] int64 on the device
    columns: Download  # [3, R] int64: id, whether the logits are finite, whether any is allowed
    logprobs: DrawnLogprobs | None

    def read(self) -> tuple[Sampled, ...]:
        """The tokens, once they are there."""
        columns = self.columns.read().tolist()
        told = {} if self.logprobs is None else self.logprobs.read()
        return tuple(
            Sampled(
                token_id,
                bool(is_finite),
                told.get(row),
                is_stuck=bool(is_finite and not is_usable),
            )
            for row, (token_id, is_finite, is_usable) in enumerate(zip(*columns, strict=True))
        )


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """What the host knows of a forward before it has waited for any of its tokens."""

    batch: Batch
    replies: tuple[Reply, ...]  # that a token was drawn for
    drawn: Drawn | None  # in that order; none: for nobody
    held: tuple[tuple[Reply, torch.Tensor], ...]  # of whom the mask was late, with their logits
    finite: Callable[[], FiniteFlags]  # waits for them
    prompt_logprobs: tuple[list[TokenLogprobs], ...]
    start_s: float

    def result(self) -> StepResult:
        """Wait for the tokens."""
        sampled = () if self.drawn is None else self.drawn.read()
        return StepResult(
            tuple(zip(self.replies, sampled, strict=True)),
            self.held,
            self.finite(),
            1e3 * (time.monotonic() - self.start_s),
            self.prompt_logprobs,
        )
