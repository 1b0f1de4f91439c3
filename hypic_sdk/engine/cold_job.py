"""A cold segment on its way into the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from hypic_sdk.engine.cold_memory import ColdMemory
from hypic_sdk.prompt.segment import PromptPart, SegmentKey
from hypic_sdk.store.filling import Filling

if TYPE_CHECKING:
    from hypic_sdk.engine.request import Request
    from hypic_sdk.engine.warm_run import WarmRun


@dataclass(frozen=True, slots=True)
class Fetch:
    """An entry that was asked of another worker."""

    worker: str
    ticket: int


@final
class ColdJob:
    """The computation of one entry (design 3.2), shared by all who wait for it."""

    def __init__(self, part: PromptPart, filling: Filling, stamp: int) -> None:
        self.key: SegmentKey = filling.entry.key
        self.part = part
        self.segment_id = part.segment_id
        self.token_ids = part.token_ids
        self.filling = filling
        self.stamp = stamp  # step of its last chunk, or of its birth: who waited longest goes first
        self.done_tokens = 0
        self.cold_ms = 0.0
        self.memory: ColdMemory | None = None
        self.fetch: Fetch | None = None  # while it is set, nothing is computed here
        self.was_fetched = False
        self.requests: list[Request] = []  # that wait for it
        self.warm_runs: list[WarmRun] = []  # that wait for it

    @property
    def num_tokens(self) -> int:
        """Length of the segment."""
        return len(self.token_ids)

    @property
    def remaining_tokens(self) -> int:
        """Tokens that have not gone through the model."""
        return self.num_tokens - self.done_tokens

    @property
    def is_background(self) -> bool:
        """Whether only warm jobs wait that yield to requests."""
        return not self.requests and all(run.message.background for run in self.warm_runs)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits."""
        return bool(self.requests or self.warm_runs)
