"""One request and its replies as they grow.  No I/O: a blocking and an asyncio stream drive it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from hypic_sdk.errors import RequestCancelled
from hypic_sdk.prompt.reply_reader import PLAIN, ReplyRules
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service.reply import FinishText, ReplyAssembler, ReplyDelta
from hypic_sdk.transport.messages import (
    EngineReport,
    EngineRequest,
    FinishReason,
    TokenEvent,
    TokenLogprobs,
)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A checked request: the message to the engine, and what the replies are made with."""

    message: EngineRequest
    stops: tuple[str, ...]
    num_logprobs: int | None
    report_level: str
    created_at: int
    include_usage: bool
    degraded: str | None = None  # see RenderedPrompt
    rules: ReplyRules = PLAIN
    echo: bool = False  # a plain completion says its prompt first
    tells_prompt: bool = False  # log-probabilities of the prompt, by their own field

    @property
    def request_id(self) -> str:
        """The id by which logs, events and the reply know this request."""
        return self.message.request_id

    def assembler(self, tokenizer: PromptTokenizer) -> ReplyAssembler:
        """What turns the events of one of its replies into text."""
        return ReplyAssembler(
            tokenizer, self.stops, self.rules, min_tokens=self.message.sampling.min_tokens
        )


OnEnd = Callable[[PreparedRequest, ReplyAssembler], None]


@final
class GrowingReply:
    """Feeds on a request's events; keeps what was said, and in the end why it ended.

    `text`, `token_ids` and the like are those of the first reply, `replies` are all.
    """

    def __init__(
        self,
        prepared: PreparedRequest,
        tokenizer: PromptTokenizer,
        on_end: OnEnd = lambda prepared, reply: None,
    ) -> None:
        """`on_end` is called once for each reply that is whole, not for one that fails."""
        self.prepared = prepared
        self.report: EngineReport | None = None
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.replies = [prepared.assembler(tokenizer) for _ in range(prepared.message.num_replies)]
        self._on_end = on_end
        self._finishing: set[int] = set()  # replies that the driver was told to finish

    @property
    def text(self) -> str:
        """All text so far."""
        return self.replies[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All ids so far."""
        return self.replies[0].token_ids

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """All log-probabilities so far."""
        return self.replies[0].logprobs

    @property
    def finish_reason(self) -> FinishText | None:
        """Why it ended; none: it did not."""
        return self.replies[0].finish_reason

    @property
    def num_tokens(self) -> int:
        """Tokens of all replies so far."""
        return sum(len(reply.token_ids) for reply in self.replies)

    @property
    def is_over(self) -> bool:
        """Whether the last event has come."""
        return all(reply.is_over for reply in self.replies)

    def feed(self, event: TokenEvent) -> list[ReplyDelta]:
        """Take the next event; the deltas that it gives, often one.

        Raises:
            HypicError: the one that ended the request.
        """
        self.prompt_logprobs.extend(event.prompt_logprobs)
        self.report = event.report or self.report
        indices = [event.reply_index]
        if event.finish_reason is FinishReason.ERROR:
            # it ends all of them; those that had what they wanted end well
            indices = [index for index, reply in enumerate(self.replies) if not reply.is_over]
            indices.sort(key=lambda index: self.replies[index].wants_finish)
        deltas = []
        try:
            for index in indices:
                deltas += self._feed_one(index, event)
        except Exception:
            for reply in self.replies:
                reply.is_over = True
            raise
        return deltas

    def _feed_one(self, index: int, event: TokenEvent) -> list[ReplyDelta]:
        reply = self.replies[index]
        delta = reply.feed(event)
        if delta is None:
            return []
        if reply.is_over:
            self._on_end(self.prepared, reply)
        return [replace(delta, reply_index=index, is_last=self.is_over)]

    def to_finish(self) -> list[int]:
        """Replies in which a stop string was found, each told once: the driver has to finish them.

        Their last events still come.
        """
        found = {index for index, reply in enumerate(self.replies) if reply.wants_finish}
        fresh = sorted(found - self._finishing)
        self._finishing |= found
        return fresh

    def ending(self, index: int = 0) -> FinishText:
        """Why a reply ended.

        Raises:
            RequestCancelled: it did not; its stream was closed.
        """
        finish_reason = self.replies[index].finish_reason
        if finish_reason is None:
            raise RequestCancelled("the stream was closed", request_id=self.prepared.request_id)
        return finish_reason
