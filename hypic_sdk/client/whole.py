"""Chunks of a stream joined to the reply that they are of.  No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from hypic_sdk.errors import RequestCancelled
from hypic_sdk.wire.replies import (
    CalledFunction,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChunkChoice,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    FinishReason,
    Logprobs,
    PromptLogprobs,
    ReplyMessage,
    ReplyToolCall,
    TokenLogprob,
    ToolCallDelta,
)
from hypic_sdk.wire.report import CacheReport, Usage


@final
class WholeChat:
    """Feeds on the chunks of a chat; of several replies each grows on its own."""

    def __init__(self) -> None:
        self._replies: dict[int, _GrowingReply] = {}
        self._usage: Usage | None = None
        self._report: CacheReport | None = None
        self._prompt_logprobs: PromptLogprobs | None = None
        self._last: ChatCompletionChunk | None = None

    def feed(self, chunk: ChatCompletionChunk) -> None:
        """Take the next chunk."""
        self._last = chunk
        self._usage = chunk.usage or self._usage
        self._report = chunk.hypic or self._report
        self._prompt_logprobs = chunk.prompt_logprobs or self._prompt_logprobs
        for choice in chunk.choices:
            self._replies.setdefault(choice.index, _GrowingReply()).feed(choice)

    def completion(self) -> ChatCompletion:
        """The reply.  Raises RequestCancelled: its stream was closed before the end."""
        if self._last is None or not self._replies:
            raise RequestCancelled("the stream was closed")
        return ChatCompletion(
            id=self._last.id,
            created=self._last.created,
            model=self._last.model,
            choices=[reply.choice(index) for index, reply in sorted(self._replies.items())],
            usage=self._usage or Usage(),
            prompt_logprobs=self._prompt_logprobs,
            hypic=self._report,
        )


@final
class _GrowingReply:
    """One reply of a chat, chunk by chunk."""

    def __init__(self) -> None:
        self._said = ""
        self._reasoning = ""
        self._calls: dict[int, _GrowingCall] = {}
        self._logprobs: list[TokenLogprob] | None = None
        self._finish_reason: FinishReason | None = None

    def feed(self, choice: ChunkChoice) -> None:
        self._said += choice.delta.content or ""
        self._reasoning += choice.delta.reasoning_content or ""
        for piece in choice.delta.tool_calls or ():
            self._calls.setdefault(piece.index, _GrowingCall()).feed(piece)
        self._finish_reason = choice.finish_reason or self._finish_reason
        if choice.logprobs is not None:
            self._logprobs = [*(self._logprobs or ()), *choice.logprobs.content]

    def choice(self, index: int) -> ChatChoice:
        if self._finish_reason is None:
            raise RequestCancelled("the stream was closed")
        calls = [call.whole() for _, call in sorted(self._calls.items())]
        message = ReplyMessage(
            # null where it says nothing but calls, as in a reply that is not streamed
            content=self._said or (None if calls else ""),
            reasoning_content=self._reasoning or None,
            tool_calls=calls or None,
        )
        return ChatChoice(
            index=index,
            message=message,
            finish_reason=self._finish_reason,
            logprobs=None if self._logprobs is None else Logprobs(content=self._logprobs),
        )


@final
class _GrowingCall:
    """A call of a tool, piece by piece: its id and name first, then its arguments."""

    def __init__(self) -> None:
        self._id = ""
        self._name = ""
        self._arguments = ""

    def feed(self, piece: ToolCallDelta) -> None:
        self._id = piece.id or self._id
        self._name = piece.function.name or self._name
        self._arguments += piece.function.arguments

    def whole(self) -> ReplyToolCall:
        function = CalledFunction(name=self._name, arguments=self._arguments)
        return ReplyToolCall(id=self._id, function=function)


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
        choices: dict[int, list[CompletionChoice]] = {}
        for chunk in self._chunks:
            for choice in chunk.choices:
                choices.setdefault(choice.index, []).append(choice)
        if not choices:
            raise RequestCancelled("the stream was closed")
        told = {
            name: value
            for chunk in self._chunks
            for name in ("usage", "hypic")
            if (value := getattr(chunk, name)) is not None
        }
        whole = [_whole(index, pieces) for index, pieces in sorted(choices.items())]
        return self._chunks[-1].model_copy(update={"choices": whole, **told})


def _whole(index: int, pieces: list[CompletionChoice]) -> CompletionChoice:
    """One reply to a plain prompt."""
    if pieces[-1].finish_reason is None:
        raise RequestCancelled("the stream was closed")
    return CompletionChoice(
        index=index,
        text="".join(piece.text for piece in pieces),
        finish_reason=pieces[-1].finish_reason,
        logprobs=_joined(one.logprobs for one in pieces),
        prompt_logprobs=next((one.prompt_logprobs for one in pieces if one.prompt_logprobs), None),
    )


def _joined(pieces: Iterable[CompletionLogprobs | None]) -> CompletionLogprobs | None:
    logprobs = [one for one in pieces if one is not None]
    if not logprobs:
        return None
    return CompletionLogprobs(
        tokens=[token for one in logprobs for token in one.tokens],
        token_logprobs=[value for one in logprobs for value in one.token_logprobs],
        top_logprobs=[top for one in logprobs for top in one.top_logprobs],
        text_offset=[offset for one in logprobs for offset in one.text_offset],
    )
