"""What work takes, in milliseconds: measured, and asked before work is spread over workers."""

from __future__ import annotations

from dataclasses import dataclass

from hypic_sdk.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CostModel:
    """Times of one worker, as straight lines in tokens.

    Measured by `hypic bench scatter`; the defaults are no figure of any machine, only such that a
    request of a few hundred tokens stays where it is.
    """

    prefill_ms: float = 20.0  # of any cold segment, however short
    prefill_ms_per_token: float = 0.5
    transfer_ms: float = 5.0  # of any entry: message, lease, check
    transfer_ms_per_token: float = 0.01
    live_ms_per_token: float = 0.5

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ConfigError(f"{name} {value} is not a time: 0 or more, and finite")

    def cold(self, num_tokens: int) -> float:
        """Milliseconds that a worker computes one cold segment."""
        return self.prefill_ms + self.prefill_ms_per_token * num_tokens

    def transfer(self, num_tokens: int) -> float:
        """Milliseconds from a finished entry on one worker to the same entry on another."""
        return self.transfer_ms + self.transfer_ms_per_token * num_tokens

    def live(self, num_tokens: int) -> float:
        """Milliseconds of the live tokens of an assembly."""
        return self.live_ms_per_token * num_tokens
