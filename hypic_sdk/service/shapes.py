"""Replies to chats and plain prompts: whole, or chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from hypic_sdk.errors import RequestCancelled
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service.render import cache_report, chat_logprobs, completion_logprobs, usage
from hypic_sdk.service.reply import FinishText, ReplyDelta
from hypic_sdk.service.stream import ReplyStream
from hypic_sdk.wire.replies import (
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChunkChoice,
    Completion,
    CompletionChoice,
    Delta,
    ReplyMessage,
)
from hypic_sdk.wire.report import CacheReport, Usage


def _drain(stream: ReplyStream) -> FinishText:
    for _ in stream:
        pass  # the stream itself keeps what it has said
    if stream.finish_reason is None:
        raise RequestCancelled("the stream was closed", request_id=stream.prepared.request_id)
    return stream.finish_reason


def _usage(stream: ReplyStream) -> Usage:
    return usage(
        stream.report,
        prompt_tokens=stream.prepared.message.prompt.num_tokens,
        completion_tokens=stream.num_tokens,
    )


def _report(stream: ReplyStream) -> CacheReport | None:
    return cache_report(stream.report, stream.prepared.report_level)


@final
class ChatShape:
    """Replies in the shape of chat completions."""

    def __init__(self, model_name: str, tokenizer: PromptTokenizer) -> None:
        self._model_name = model_name
        self._tokenizer = tokenizer

    def whole(self, stream: ReplyStream) -> ChatCompletion:
        """Wait for the reply; raises what ended the request."""
        finish_reason = _drain(stream)
        prepared = stream.prepared
        return ChatCompletion(
            id=prepared.request_id,
            created=prepared.created_at,
            model=self._model_name,
            choices=[
                ChatChoice(
                    message=ReplyMessage(content=stream.text),
                    finish_reason=finish_reason,
                    logprobs=chat_logprobs(stream.logprobs, self._tokenizer, prepared.num_logprobs),
                )
            ],
            usage=_usage(stream),
            hypic=_report(stream),
        )

    def chunks(self, stream: ReplyStream) -> Iterator[ChatCompletionChunk]:
        """The reply as it comes.

        The last chunk tells usage and cache report: that with the finish reason, or, where the
        caller asked for usage as OpenAI has it, one more without choices.  Nothing is yielded
        before the first delta, so that an error may still be told as one.
        """
        apart = stream.prepared.include_usage
        is_first = True
        with stream:
            for delta in stream:
                if is_first:
                    yield self._chunk(stream, Delta(role="assistant", content=""))
                    is_first = False
                ends = delta.finish_reason is not None
                yield self._content_chunk(stream, delta, with_usage=ends and not apart)
            if apart:
                yield self._chunk(stream, None, with_usage=True)

    def _content_chunk(
        self, stream: ReplyStream, delta: ReplyDelta, *, with_usage: bool
    ) -> ChatCompletionChunk:
        content = Delta(content=delta.text) if delta.text else Delta()
        return self._chunk(stream, content, told=delta, with_usage=with_usage)

    def _chunk(
        self,
        stream: ReplyStream,
        delta: Delta | None,
        *,
        told: ReplyDelta | None = None,
        with_usage: bool = False,
    ) -> ChatCompletionChunk:
        prepared = stream.prepared
        choices = []
        if delta is not None:
            logprobs = None
            if told is not None and told.logprobs:
                logprobs = chat_logprobs(told.logprobs, self._tokenizer, prepared.num_logprobs)
            finish = None if told is None else told.finish_reason
            choices = [ChunkChoice(delta=delta, finish_reason=finish, logprobs=logprobs)]
        return ChatCompletionChunk(
            id=prepared.request_id,
            created=prepared.created_at,
            model=self._model_name,
            choices=choices,
            usage=_usage(stream) if with_usage else None,
            hypic=_report(stream) if with_usage else None,
        )


@final
class CompletionShape:
    """Replies in the shape of plain completions."""

    def __init__(self, model_name: str, tokenizer: PromptTokenizer) -> None:
        self._model_name = model_name
        self._tokenizer = tokenizer

    def whole(self, stream: ReplyStream) -> Completion:
        """Wait for the reply; raises what ended the request."""
        finish_reason = _drain(stream)
        delta = ReplyDelta(stream.text, tuple(stream.logprobs), finish_reason)
        return self._completion(stream, delta, offset=0, with_usage=True)

    def chunks(self, stream: ReplyStream) -> Iterator[Completion]:
        """The reply as it comes; usage and cache report as in a chat's chunks."""
        apart = stream.prepared.include_usage
        offset = 0
        with stream:
            for delta in stream:
                ends = delta.finish_reason is not None
                yield self._completion(stream, delta, offset=offset, with_usage=ends and not apart)
                offset += len(delta.text)
            if apart:
                yield self._completion(stream, None, offset=offset, with_usage=True)

    def _completion(
        self, stream: ReplyStream, delta: ReplyDelta | None, *, offset: int, with_usage: bool
    ) -> Completion:
        prepared = stream.prepared
        choices = []
        if delta is not None:
            logprobs = completion_logprobs(
                delta.logprobs, self._tokenizer, prepared.num_logprobs, offset
            )
            choices = [
                CompletionChoice(
                    text=delta.text, finish_reason=delta.finish_reason, logprobs=logprobs
                )
            ]
        return Completion(
            id=prepared.request_id,
            created=prepared.created_at,
            model=self._model_name,
            choices=choices,
            usage=_usage(stream) if with_usage else None,
            hypic=_report(stream) if with_usage else None,
        )
