"""One generation's times and tokens, counted while it streams."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import final

from hypic_sdk.service import AsyncReplyStream, ReplyDelta
from hypic_sdk.telemetry import PromptTokens, Telemetry


@final
class Meter:
    """The deltas of a stream, each noted on its way."""

    def __init__(
        self,
        stream: AsyncReplyStream,
        telemetry: Telemetry,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The time to the first token runs from here."""
        self._stream = stream
        self._telemetry = telemetry
        self._clock = clock
        self._last_s = clock()
        self._has_begun = False

    def __aiter__(self) -> AsyncIterator[ReplyDelta]:
        return self

    async def __anext__(self) -> ReplyDelta:
        delta = await anext(self._stream)
        now_s = self._clock()
        wait = self._telemetry.inter_token if self._has_begun else self._telemetry.ttft
        wait.observe(now_s - self._last_s)
        self._last_s, self._has_begun = now_s, True
        return delta

    def close(self) -> None:
        """Count the tokens of what was said, whole or not."""
        reply = self._stream.reply
        prompt = None
        if reply.report is not None:
            report = reply.report
            prompt = PromptTokens(
                chain=report.chain_tokens,
                segment=report.cached_tokens - report.chain_tokens,
                seam=report.seam_tokens,
                live=report.live_tokens,
                cold=report.cold_tokens,
            )
        self._telemetry.note_reply(prompt, reply.num_tokens)
