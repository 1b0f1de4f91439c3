"""What live checks of reuse against full recompute found so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import computed_field

from hypic_sdk.wire.parse import ReplyModel


class ShadowStats(ReplyModel):
    """Replies that reuse gave and that were recomputed in full while nobody waited.

    The sums are over tokens that were looked at; `kl` and `top1` are their means.
    """

    num_replies: int
    num_tokens: int
    num_agreed: int  # tokens whose likeliest is full recompute's
    kl_nats: float  # sum of KL(full recompute || what was served)
    window_tokens: int  # of the latest replies, that the limit is held against
    window_kl_nats: float
    num_dropped: int  # replies that were to be recomputed, and were not
    spent_s: float  # device time
    num_switched_off: int  # engines that reuse nothing until they are told to

    @computed_field
    def kl(self) -> float | None:
        """Nats a token; none: nothing was looked at."""
        return self.kl_nats / self.num_tokens if self.num_tokens else None

    @computed_field
    def window_kl(self) -> float | None:
        """The same of the latest replies."""
        return self.window_kl_nats / self.window_tokens if self.window_tokens else None

    @computed_field
    def top1(self) -> float | None:
        """Share of tokens whose likeliest is full recompute's."""
        return self.num_agreed / self.num_tokens if self.num_tokens else None


def shadow_of(usage: Mapping[str, Any]) -> ShadowStats | None:
    """Of a worker's books (`Question.USAGE`); none: it checks nothing."""
    told = usage.get("shadow")
    return None if told is None else ShadowStats.model_validate(told)
