"""What a reply tells besides its text, on whichever chunk of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from hypic_sdk.integrations.contract import Cut, report_values
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk, Completion
from hypic_sdk.wire.report import CacheReport, Usage

Reply = ChatCompletion | ChatCompletionChunk | Completion


@final
class ReplyEnd:
    """Takes chunks, or one whole reply; `seen` is the last of them."""

    def __init__(self) -> None:
        self.seen: Reply | None = None
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self._report: CacheReport | None = None

    @classmethod
    def of(cls, reply: Reply) -> ReplyEnd:
        """That of a whole reply."""
        end = cls()
        end.take(reply)
        return end

    def take(self, reply: Reply) -> None:
        """Take the next chunk."""
        self.seen = reply
        self.usage = reply.usage or self.usage
        self._report = reply.hypic or self._report
        # of several replies the first; the others tell their own
        for choice in reply.choices[:1]:
            self.finish_reason = choice.finish_reason or self.finish_reason

    def report(self, cuts: Iterable[Cut]) -> dict[str, Any]:
        """The cache report as JSON-ready values, with what was found in plain text."""
        return report_values(self._report, cuts)

    def raw(self) -> Reply | None:
        """The last chunk, with usage and report wherever they stood."""
        if self.seen is None:
            return None
        return self.seen.model_copy(update={"usage": self.usage, "hypic": self._report})
