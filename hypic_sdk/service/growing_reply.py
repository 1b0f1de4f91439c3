"""One request and its reply as it grows.  No I/O: a blocking and an asyncio stream drive it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from hypic_sdk.errors import RequestCancelled
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service.reply import FinishText, ReplyAssembler, ReplyDelta
from hypic_sdk.transport.messages import EngineReport, EngineRequest, TokenEvent, TokenLogprobs


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A checked request: the message to the engine, and what the reply is made with."""

    message: EngineRequest
    stops: tuple[str, ...]
    num_logprobs: int | None
    report_level: str
    created_at: int
    include_usage: bool

    @property
    def request_id(self) -> str:
        """The id by which logs, events and the reply know this request."""
        return self.message.request_id

    def assembler(self, tokenizer: PromptTokenizer) -> ReplyAssembler:
        """What turns this request's events into text."""
        return ReplyAssembler(tokenizer, self.stops)


OnEnd = Callable[[PreparedRequest, ReplyAssembler], None]


@final
class GrowingReply:
    """Feeds on a request's events; keeps what was said, and in the end why it ended."""

    def __init__(
        self,
        prepared: PreparedRequest,
        tokenizer: PromptTokenizer,
        on_end: OnEnd = lambda prepared, reply: None,
    ) -> None:
        """`on_end` is called once when the reply is whole, not when it fails or is closed."""
        self.prepared = prepared
        self.finish_reason: FinishText | None = None
        self.report: EngineReport | None = None
        self.logprobs: list[TokenLogprobs] = []
        self._assembler = prepared.assembler(tokenizer)
        self._on_end = on_end
        self._was_cancelled = False

    @property
    def text(self) -> str:
        """All text so far."""
        return self._assembler.text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All ids so far."""
        return self._assembler.token_ids

    @property
    def num_tokens(self) -> int:
        """Tokens of the reply so far."""
        return len(self._assembler.token_ids)

    @property
    def is_over(self) -> bool:
        """Whether the last event has come."""
        return self._assembler.is_over

    def feed(self, event: TokenEvent) -> ReplyDelta | None:
        """Take the next event; none if there is nothing to say yet.

        Raises:
            HypicError: the one that ended the request.
        """
        delta = self._assembler.feed(event)
        if delta is None:
            return None
        self.logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason, self.report = delta.finish_reason, delta.report
            self._on_end(self.prepared, self._assembler)
        return delta

    def must_cancel(self) -> bool:
        """True once: a stop string was found, so the driver has to cancel the request.

        Its last event still comes, with the report.
        """
        if self._was_cancelled or not self._assembler.wants_cancel:
            return False
        self._was_cancelled = True
        return True

    def ending(self) -> FinishText:
        """Why the reply ended.

        Raises:
            RequestCancelled: it did not; its stream was closed.
        """
        if self.finish_reason is None:
            raise RequestCancelled("the stream was closed", request_id=self.prepared.request_id)
        return self.finish_reason
