"""One scripted request between its submit and its last event."""

from __future__ import annotations

import time
from collections import deque
from typing import final

from hypic_sdk.errors import HypicError
from hypic_sdk.scripted.author import Author, within_limits
from hypic_sdk.scripted.books import Books, Opened
from hypic_sdk.scripted.reports import report_of
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import (
    EngineReport,
    EngineRequest,
    FinishReason,
    SegmentStatus,
    TokenEvent,
    TokenLogprobs,
    WarmEvent,
    WarmRequest,
)

LOGPROB = -0.125  # of every token that is said; those beside it are less likely


@final
class Running:
    """A generation: one token of each reply a step."""

    def __init__(self, message: EngineRequest) -> None:
        self.message = message
        self.submitted_s = time.monotonic()
        self.is_begun = False
        self._opened: Opened | None = None
        self._report: EngineReport | None = None
        self._replies: list[tuple[tuple[int, ...], bool]] = []
        self._position = 0
        self._left = message.num_replies

    def begin(self, books: Books, author: Author, max_context_tokens: int) -> None:
        """Look the prompt up and write the replies; raises RequestError for a wrong grammar."""
        self.is_begun = True
        sampling, num_tokens = self.message.sampling, self.message.prompt.num_tokens
        max_tokens = min(sampling.max_tokens, max_context_tokens - num_tokens)
        for index in range(self.message.num_replies):
            token_ids = author.reply(self.message, index) if max_tokens else ()
            self._replies.append(within_limits(token_ids, sampling, max_tokens))
        started_s = time.monotonic()
        self._opened = books.open(self.message)
        self._report = report_of(
            self._opened,
            queue_ms=1e3 * (started_s - self.submitted_s),
            ttft_ms=1e3 * (time.monotonic() - self.submitted_s),
        )

    def step(self, books: Books) -> list[Event]:
        """The events of the next token of every reply."""
        place, self._position = self._position, self._position + 1
        events: list[Event] = []
        for index, (token_ids, ends) in enumerate(self._replies):
            last = len(token_ids) if ends else max(0, len(token_ids) - 1)
            if place <= last:
                events.append(self._event(index, place, is_last=place == last, books=books))
        return events

    def finish(self, index: int) -> None:
        """Say no more of one reply, and end it with the next step."""
        if not self.is_begun or not 0 <= index < len(self._replies):
            return
        token_ids, ends = self._replies[index]
        if self._position < (len(token_ids) if ends else len(token_ids) - 1):
            self._replies[index] = token_ids[: self._position], True

    def failed(self, error: HypicError) -> TokenEvent:
        """The last event of one that could not go on."""
        payload = {**error.to_payload(), "request_id": self.message.request_id}
        return TokenEvent(
            self.message.request_id,
            finish_reason=FinishReason.ERROR,
            report=self._report,
            error=payload,
        )

    def _event(self, index: int, place: int, *, is_last: bool, books: Books) -> TokenEvent:
        token_ids, ends = self._replies[index]
        said = token_ids[place : place + 1]
        finish, report = None, None
        if is_last:
            finish = FinishReason.STOP if ends else FinishReason.LENGTH
            self._left -= 1
            report = self._report if self._left == 0 else None
            if index == 0 and self._opened is not None:
                fed = token_ids if ends else token_ids[:-1]
                books.keep_reply(self.message, self._opened, fed)
        return TokenEvent(
            self.message.request_id,
            said,
            tuple(filter(None, map(self._logprobs, said))),
            finish_reason=finish,
            report=report,
            reply_index=index,
            replies_left=self._left,
            prompt_logprobs=self._prompt_logprobs() if index == place == 0 else (),
        )

    def _logprobs(self, token_id: int) -> TokenLogprobs | None:
        num_top = self.message.sampling.logprobs
        return None if num_top is None else _logprobs(token_id, num_top)

    def _prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        num_top = self.message.sampling.prompt_logprobs
        if num_top is None:
            return ()
        return tuple(_logprobs(one, num_top) for one in self.message.prompt.token_ids[1:])


def _logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    others = (one for one in range(num_top + 1) if one != token_id)
    best = [(token_id, LOGPROB), *((one, LOGPROB - rank) for rank, one in enumerate(others, 3))]
    return TokenLogprobs(token_id, LOGPROB, 1, tuple(best[:num_top]))


@final
class Warming:
    """A warm job: one segment a step."""

    def __init__(self, message: WarmRequest) -> None:
        self.message = message
        self.submitted_s = time.monotonic()
        self._left = deque(message.segments)

    def step(self, books: Books) -> list[Event]:
        """The event of the next segment, or the last one."""
        request_id = self.message.request_id
        if not self._left:
            return [WarmEvent(request_id, done=True)]
        part = self._left.popleft()
        was_held = books.warm(part, self.message.namespace)
        if was_held is None:
            status = SegmentStatus.LIVE
        else:
            status = SegmentStatus.HIT if was_held else SegmentStatus.COLD
        return [WarmEvent(request_id, part.segment_id, status, num_tokens=len(part.token_ids))]
