"""Chunks of a stream joined to the reply that they are of.  No I/O."""

from __future__ import annotations

from typing import final

from hypic_sdk.errors import RequestCancelled
from hypic_sdk.wire.replies import (
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    FinishReason,
    Logprobs,
    ReplyMessage,
    TokenLogprob,
)
from hypic_sdk.wire.report import CacheReport, Usage


@final
class WholeChat:
    """Feeds on the chunks of a chat."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._finish_reason: FinishReason | None = None
        self._usage: Usage | None = None
        self._report: CacheReport | None = None
        self._last: ChatCompletionChunk | None = None

    def feed(self, chunk: ChatCompletionChunk) -> None:
        """Take the next chunk."""
        self._last = chunk
        self._usage = chunk.usage or self._usage
        self._report = chunk.hypic or self._report
        for choice in chunk.choices:
            self._said.append(choice.delta.content or "")
            self._finish_reason = choice.finish_reason or self._finish_reason
            if choice.logprobs is not None:
                self._logprobs = [*(self._logprobs or ()), *choice.logprobs.content]

    def completion(self) -> ChatCompletion:
        """The reply.  Raises RequestCancelled: its stream was closed before the end."""
        if self._last is None or self._finish_reason is None:
            raise RequestCancelled("the stream was closed")
        logprobs = None if self._logprobs is None else Logprobs(content=self._logprobs)
        return ChatCompletion(
            id=self._last.id,
            created=self._last.created,
            model=self._last.model,
            choices=[
                ChatChoice(
                    message=ReplyMessage(content="".join(self._said)),
                    finish_reason=self._finish_reason,
                    logprobs=logprobs,
                )
            ],
            usage=self._usage or Usage(),
            hypic=self._report,
        )


@final
class WholeCompletion:
    """Feeds on the chunks of a plain completion."""

    def __init__(self) -> None:
        self._chunks: list[Completion] = []

    def feed(self, chunk: Completion) -> None:
        """Take the next chunk."""
        self._chunks.append(chunk)

    def completion(self) -> Completion:
        """The reply.  Raises RequestCancelled: its stream was closed before the end."""
        choices = [choice for chunk in self._chunks for choice in chunk.choices]
        if not choices or choices[-1].finish_reason is None:
            raise RequestCancelled("the stream was closed")
        last = self._chunks[-1]
        choice = CompletionChoice(
            text="".join(choice.text for choice in choices),
            finish_reason=choices[-1].finish_reason,
            logprobs=_joined([one.logprobs for one in choices if one.logprobs is not None]),
        )
        return last.model_copy(update={"choices": [choice]})


def _joined(logprobs: list[CompletionLogprobs]) -> CompletionLogprobs | None:
    if not logprobs:
        return None
    return CompletionLogprobs(
        tokens=[token for one in logprobs for token in one.tokens],
        token_logprobs=[value for one in logprobs for value in one.token_logprobs],
        top_logprobs=[top for one in logprobs for top in one.top_logprobs],
        text_offset=[offset for one in logprobs for offset in one.text_offset],
    )
