"""A warm request in flight."""

from __future__ import annotations

from collections import deque
from typing import final

from hypic_sdk.prompt.segment import PromptPart, SegmentKey
from hypic_sdk.transport.messages import WarmRequest


@final
class WarmRun:
    """Segments still to be looked at, and those that are being computed.  Plain state."""

    def __init__(self, message: WarmRequest) -> None:
        self.message = message
        self.parts = deque(message.segments)
        self.pending: dict[SegmentKey, list[PromptPart]] = {}
        self.blocked_since_s: float | None = None  # the first part waits for room

    @property
    def request_id(self) -> str:
        """The caller's id."""
        return self.message.request_id
