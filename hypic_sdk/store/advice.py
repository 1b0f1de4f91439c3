"""What to change where the pools are too small: the option, the setting behind it, and a figure.

Who started a server knows options; who made an `EngineConfig` knows settings; so both are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, final

from hypic_sdk.config import MIB, StoreConfig
from hypic_sdk.errors import PoolExhausted
from hypic_sdk.store.arena import Amount
from hypic_sdk.store.layout import StoreLayout

OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "budget_bytes": "--cache-mib",
        "expected_segment_tokens": "--segment-tokens",
        "segments_per_request": "--segments-per-request",
    }
)
"""Options of `hypic serve` by the fields of `StoreConfig` that they set."""

# times the present one, the nearest first: a split for segments of other lengths is tried
_OTHER_LENGTHS = tuple(factor for k in range(1, 9) for factor in (2.0**k, 0.5**k))


@dataclass(frozen=True, slots=True)
class Enough:
    """Changes each of which alone would give room; none where no budget was split."""

    budget_bytes: int | None = None
    cache_mib: int | None = None  # at least that budget, in whole MiB
    segment_tokens: int | None = None  # with the present budget; none: there is no such length


@final
class Advice:
    """Makes every `PoolExhausted` of one store."""

    def __init__(self, layout: StoreLayout, config: StoreConfig, *, is_split: bool) -> None:
        """
        Args:
            is_split: whether the slabs are a split of the config's budget; else no figure is known.
        """
        self._layout = layout
        self._config = config
        self._is_split = is_split

    def enough(self, needed: Amount) -> Enough:
        """What would hold so many slots of each kind at once."""
        if not self._is_split:
            return Enough()
        budget_bytes = self._layout.budget_for(self._config, *needed)
        mib = -(-budget_bytes // MIB)
        # a larger budget may have a row more and a few slots fewer
        while not self._holds(needed, replace(self._config, budget_bytes=mib * MIB)):
            mib += 1
        present = self._config.expected_segment_tokens
        lengths = (max(1, int(factor * present)) for factor in _OTHER_LENGTHS)
        splits = (replace(self._config, expected_segment_tokens=length) for length in lengths)
        held = (one.expected_segment_tokens for one in splits if self._holds(needed, one))
        return Enough(budget_bytes, mib, next(held, None))

    def _holds(self, needed: Amount, config: StoreConfig) -> bool:
        return self._layout.holds(config, *needed)

    def exhausted(
        self, what: str, needed: Amount, *, budget_bytes: int, instead: str, **details: Any
    ) -> PoolExhausted:
        """The error.

        Args:
            what: what does not fit, with both numbers.
            needed: slots that would have to be there at once.
            budget_bytes: the present budget.
            instead: what else the caller can do, after "or".
            details: numbers of `what`, and whether a retry makes sense where it makes none.
        """
        enough = self.enough(needed)
        return PoolExhausted(
            f"{what}: {self._remedies(enough, budget_bytes)}, or {instead}",
            setting="budget_bytes",
            option=OPTIONS["budget_bytes"],
            budget_bytes=budget_bytes,
            enough_bytes=enough.budget_bytes,
            enough_mib=enough.cache_mib,
            enough_segment_tokens=enough.segment_tokens,
            **details,
        )

    def _remedies(self, enough: Enough, budget_bytes: int) -> str:
        budget, length = OPTIONS["budget_bytes"], OPTIONS["expected_segment_tokens"]
        present = self._config.expected_segment_tokens
        if enough.budget_bytes is None:
            return f"raise {budget} (budget_bytes, now {budget_bytes})"
        raised = (
            f"raise {budget} to {enough.cache_mib} (budget_bytes from {budget_bytes} to "
            f"{enough.budget_bytes})"
        )
        setting = f"{length} (expected_segment_tokens, now {present})"
        if enough.segment_tokens is None:
            return f"{raised}; no other {setting} splits the present one so that it fits"
        return f"{raised}, or set {setting} to {enough.segment_tokens}, which splits it otherwise"
