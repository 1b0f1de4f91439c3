"""Replies of the wire, whole or in chunks, as LlamaIndex's responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    ContentBlock,
    LogProb,
    MessageRole,
    TextBlock,
    ThinkingBlock,
)

from hypic_sdk.integrations.contract import Cut, cache_details, report_values
from hypic_sdk.integrations.llama_index.tool_calls import CallsSoFar
from hypic_sdk.wire.replies import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Delta,
    Logprobs,
    ReplyMessage,
)
from hypic_sdk.wire.report import CacheReport, Usage


def chat_response(reply: ChatCompletion, cuts: Sequence[Cut]) -> ChatResponse:
    """A whole reply to a chat."""
    [choice, *_] = reply.choices
    said = _Said()
    said.take(choice.message)
    return ChatResponse(
        message=said.message(),
        raw=reply,
        logprobs=_logprobs(choice.logprobs),
        additional_kwargs=_told(reply.usage, reply.hypic, choice.finish_reason, cuts),
    )


def completion_response(reply: Completion, cuts: Sequence[Cut]) -> CompletionResponse:
    """A whole reply to a plain prompt."""
    [choice, *_] = reply.choices
    return CompletionResponse(
        text=choice.text,
        raw=reply,
        additional_kwargs=_told(reply.usage, reply.hypic, choice.finish_reason, cuts),
    )


def as_completion(response: ChatResponse) -> CompletionResponse:
    """The response to a chat of one message as that to its text."""
    return CompletionResponse(
        text=response.message.content or "",
        additional_kwargs={**response.message.additional_kwargs, **response.additional_kwargs},
        raw=response.raw,
        logprobs=response.logprobs,
        delta=response.delta,
    )


@final
class _Said:
    """An assistant's message, growing."""

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls = CallsSoFar()

    def take(self, piece: ReplyMessage | Delta) -> tuple[str, str, bool]:
        """Take a message or a delta: the text and reasoning that it adds, whether it has calls."""
        text, reasoning = piece.content or "", piece.reasoning_content or ""
        self.text += text
        self.reasoning += reasoning
        self.calls.take(piece.tool_calls or ())
        return text, reasoning, bool(piece.tool_calls)

    def message(self) -> ChatMessage:
        """The message so far; calls stand in blocks and, for older code, beside them."""
        calls = self.calls.blocks()
        blocks: list[ContentBlock] = []
        if self.reasoning:
            blocks.append(ThinkingBlock(content=self.reasoning))
        if self.text or not calls:
            blocks.append(TextBlock(text=self.text))
        return ChatMessage(
            role=MessageRole.ASSISTANT,
            blocks=[*blocks, *calls],
            additional_kwargs={"tool_calls": self.calls.dicts()} if calls else {},
        )


@final
class ChatReader:
    """Feeds on the chunks of one chat; usage and cache report stand on the last response alone."""

    def __init__(self) -> None:
        self._said = _Said()
        self._end = _End()

    def feed(self, chunk: ChatCompletionChunk) -> Iterator[ChatResponse]:
        """The reply so far, if the chunk adds to it."""
        self._end.take(chunk)
        for choice in chunk.choices[:1]:
            text, reasoning, has_calls = self._said.take(choice.delta)
            if text or reasoning or has_calls:
                yield ChatResponse(
                    message=self._said.message(),
                    delta=text,
                    raw=chunk,
                    logprobs=_logprobs(choice.logprobs),
                    additional_kwargs={"thinking_delta": reasoning} if reasoning else {},
                )

    def last(self, cuts: Sequence[Cut]) -> ChatResponse:
        """The response behind the text."""
        return ChatResponse(
            message=self._said.message(),
            delta="",
            raw=self._end.raw(),
            additional_kwargs=self._end.told(cuts),
        )


@final
class CompletionReader:
    """The same of a plain prompt."""

    def __init__(self) -> None:
        self._text = ""
        self._end = _End()

    def feed(self, chunk: Completion) -> Iterator[CompletionResponse]:
        """The reply so far, if the chunk adds to it."""
        self._end.take(chunk)
        for choice in chunk.choices[:1]:
            self._text += choice.text
            if choice.text:
                yield CompletionResponse(text=self._text, delta=choice.text, raw=chunk)

    def last(self, cuts: Sequence[Cut]) -> CompletionResponse:
        """The response behind the text."""
        told = self._end.told(cuts)
        raw = self._end.raw()
        return CompletionResponse(text=self._text, delta="", raw=raw, additional_kwargs=told)


@final
class _End:
    """What a stream tells besides the text, on whichever chunk."""

    def __init__(self) -> None:
        self._seen: ChatCompletionChunk | Completion | None = None
        self._usage: Usage | None = None
        self._report: CacheReport | None = None
        self._finish_reason: str | None = None

    def take(self, chunk: ChatCompletionChunk | Completion) -> None:
        self._seen = chunk
        self._usage = chunk.usage or self._usage
        self._report = chunk.hypic or self._report
        for choice in chunk.choices[:1]:
            self._finish_reason = choice.finish_reason or self._finish_reason

    def told(self, cuts: Sequence[Cut]) -> dict[str, Any]:
        return _told(self._usage, self._report, self._finish_reason, cuts)

    def raw(self) -> ChatCompletionChunk | Completion | None:
        """The last chunk, with usage and report wherever they stood."""
        if self._seen is None:
            return None
        return self._seen.model_copy(update={"usage": self._usage, "hypic": self._report})


def _told(
    usage: Usage | None,
    report: CacheReport | None,
    finish_reason: str | None,
    cuts: Sequence[Cut],
) -> dict[str, Any]:
    """Tokens by OpenAI's names, tokens of the cache, and the report as JSON-ready values."""
    told: dict[str, Any] = {"finish_reason": finish_reason, "hypic": report_values(report, cuts)}
    if usage is None:
        return told
    read, written = cache_details(usage)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "cached_tokens": read,
        "cache_write_tokens": written,
        **told,
    }


def _logprobs(found: Logprobs | None) -> list[list[LogProb]] | None:
    """Of each token the best ones; the chosen one where no others were asked for."""
    if found is None:
        return None
    return [
        [
            LogProb(token=one.token, logprob=one.logprob, bytes=one.bytes)
            for one in (token.top_logprobs or (token,))
        ]
        for token in found.content
    ]
