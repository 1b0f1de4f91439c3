"""What live checks found so far, and the one decision that hangs on it: whether to go on reusing.

Plain numbers, no tensors and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from hypic_sdk.config import ShadowConfig


@dataclass(frozen=True, slots=True)
class ShadowFacts:
    """Live checks of one engine so far; of several engines the sums."""

    num_replies: int  # that were recomputed
    num_tokens: int  # of these replies, as far as they were looked at; an end token counts
    num_agreed: int  # of these, those whose best token is full recompute's
    kl_nats: float  # sum over these tokens of KL(full recompute || what was served)
    window_tokens: int  # of the latest replies, that the limit is held against
    window_kl_nats: float
    num_dropped: int  # replies that were to be recomputed, and were not
    spent_s: float  # device time
    num_switched_off: int  # engines (1 or 0 of one) that reuse nothing until they are told to


@dataclass(frozen=True, slots=True)
class ReplyCheck:
    """One reply against full recompute, token by token."""

    kl_nats: tuple[float, ...]
    agrees: tuple[bool, ...]  # whether the best token is the same


@final
class ShadowBooks:
    """Counts of one engine."""

    def __init__(self, config: ShadowConfig) -> None:
        self._config = config
        self._window: deque[ReplyCheck] = deque(maxlen=config.window)
        self._num_replies = self._num_tokens = self._num_agreed = self._num_dropped = 0
        self._kl_nats = 0.0
        self.spent_s = 0.0
        self.is_switched_off = False

    def note(self, check: ReplyCheck) -> None:
        """Count a reply; over the limit, reuse is switched off from now on."""
        self._window.append(check)
        self._num_replies += 1
        self._num_tokens += len(check.kl_nats)
        self._num_agreed += sum(check.agrees)
        self._kl_nats += sum(check.kl_nats)
        limit, is_full = self._config.limit_kl, len(self._window) == self._config.window
        if limit is not None and is_full and self.window_kl > limit:
            self.is_switched_off = True

    def note_dropped(self) -> None:
        """A reply that was followed is not recomputed after all."""
        self._num_dropped += 1

    def reset(self) -> None:
        """Reuse again; the window begins anew."""
        self._window.clear()
        self.is_switched_off = False

    @property
    def window_kl(self) -> float:
        """Nats a token over the window; 0 while it is empty."""
        return _sum_kl(self._window) / max(1, self._window_tokens)

    @property
    def _window_tokens(self) -> int:
        return sum(len(check.kl_nats) for check in self._window)

    def facts(self) -> ShadowFacts:
        """Everything so far."""
        return ShadowFacts(
            num_replies=self._num_replies,
            num_tokens=self._num_tokens,
            num_agreed=self._num_agreed,
            kl_nats=self._kl_nats,
            window_tokens=self._window_tokens,
            window_kl_nats=_sum_kl(self._window),
            num_dropped=self._num_dropped,
            spent_s=self.spent_s,
            num_switched_off=int(self.is_switched_off),
        )


def _sum_kl(checks: Sequence[ReplyCheck] | deque[ReplyCheck]) -> float:
    return sum(sum(check.kl_nats) for check in checks)
