"""One generation's times and tokens, counted while it streams."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import final

from hypic_sdk.server.tracing import Trace
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
        self._submitted_ns = time.time_ns()
        self._first_ns: int | None = None
        self._last_ns = self._submitted_ns

    def __aiter__(self) -> AsyncIterator[ReplyDelta]:
        return self

    async def __anext__(self) -> ReplyDelta:
        delta = await anext(self._stream)
        now_s, self._last_ns = self._clock(), time.time_ns()
        if self._first_ns is None:
            self._first_ns = self._last_ns
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

    def trace(self, trace: Trace) -> None:
        """Tell of the request's stretches, as the engine's report says they went."""
        reply = self._stream.reply
        trace.note(completion_tokens=reply.num_tokens)
        report = reply.report
        if report is None:
            return
        first_ns = self._first_ns or self._last_ns
        begun_ns = min(first_ns, self._submitted_ns + int(1e6 * report.queue_ms))
        cold_ns = min(first_ns, begun_ns + int(1e6 * report.cold_ms))
        statuses = Counter(one.status.value for one in report.segments)
        trace.phase("queue", self._submitted_ns, begun_ns)
        trace.phase("cold", begun_ns, cold_ns, cold_tokens=report.cold_tokens)
        trace.phase(
            "assembly",
            cold_ns,
            first_ns,
            live_tokens=report.live_tokens,
            seam_tokens=report.seam_tokens,
            segment_tokens=report.segment_tokens,
            chain_tokens=report.chain_tokens,
        )
        trace.phase("decode", first_ns, self._last_ns, completion_tokens=reply.num_tokens)
        trace.note(
            prompt_tokens=report.prompt_tokens,
            cached_tokens=report.cached_tokens,
            num_segments=len(report.segments),
            **{f"num_{status}": number for status, number in statuses.items()},
        )
