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

from hypic_sdk.integrations.contract import Cut, cache_details
from hypic_sdk.integrations.llama_index.tool_calls import CallsSoFar
from hypic_sdk.integrations.reply_end import ReplyEnd
from hypic_sdk.wire.replies import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Delta,
    Logprobs,
    ReplyMessage,
)


def chat_response(reply: ChatCompletion, cuts: Sequence[Cut]) -> ChatResponse:
    """A whole reply to a chat."""
    [choice, *_] = reply.choices
    said = _Said()
    said.take(choice.message)
    return ChatResponse(
        message=said.message(),
        raw=reply,
        logprobs=_logprobs(choice.logprobs),
        additional_kwargs=_told(ReplyEnd.of(reply), cuts),
    )


def completion_response(reply: Completion, cuts: Sequence[Cut]) -> CompletionResponse:
    """A whole reply to a plain prompt."""
    [choice, *_] = reply.choices
    return CompletionResponse(
        text=choice.text,
        raw=reply,
        additional_kwargs=_told(ReplyEnd.of(reply), cuts),
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
        self._end = ReplyEnd()

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
            additional_kwargs=_told(self._end, cuts),
        )


@final
class CompletionReader:
    """The same of a plain prompt."""

    def __init__(self) -> None:
        self._text = ""
        self._end = ReplyEnd()

    def feed(self, chunk: Completion) -> Iterator[CompletionResponse]:
        """The reply so far, if the chunk adds to it."""
        self._end.take(chunk)
        for choice in chunk.choices[:1]:
            self._text += choice.text
            if choice.text:
                yield CompletionResponse(text=self._text, delta=choice.text, raw=chunk)

    def last(self, cuts: Sequence[Cut]) -> CompletionResponse:
        """The response behind the text."""
        told = _told(self._end, cuts)
        raw = self._end.raw()
        return CompletionResponse(text=self._text, delta="", raw=raw, additional_kwargs=told)


def _told(end: ReplyEnd, cuts: Sequence[Cut]) -> dict[str, Any]:
    """Tokens by OpenAI's names, tokens of the cache, and the report as JSON-ready values."""
    told: dict[str, Any] = {"finish_reason": end.finish_reason, "hypic": end.report(cuts)}
    usage = end.usage
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
