"""Replies to chats and plain prompts: whole, or chunk by chunk.  No I/O."""

from __future__ import annotations

from typing import final

from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service.growing_reply import GrowingReply
from hypic_sdk.service.render import cache_report, chat_logprobs, completion_logprobs, usage
from hypic_sdk.service.reply import ReplyDelta
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


def usage_of(reply: GrowingReply) -> Usage:
    """Tokens of a reply and its prompt."""
    return usage(
        reply.report,
        prompt_tokens=reply.prepared.message.prompt.num_tokens,
        completion_tokens=reply.num_tokens,
    )


def report_of(reply: GrowingReply) -> CacheReport | None:
    """What its prompt cost, as far as the caller asked for it."""
    return cache_report(reply.report, reply.prepared.report_level)


@final
class ChatShape:
    """Replies in the shape of chat completions."""

    def __init__(self, model_name: str, tokenizer: PromptTokenizer) -> None:
        self._model_name = model_name
        self._tokenizer = tokenizer

    def whole(self, reply: GrowingReply) -> ChatCompletion:
        """A reply that is over."""
        finish_reason = reply.ending()
        prepared = reply.prepared
        return ChatCompletion(
            id=prepared.request_id,
            created=prepared.created_at,
            model=self._model_name,
            choices=[
                ChatChoice(
                    message=ReplyMessage(content=reply.text),
                    finish_reason=finish_reason,
                    logprobs=chat_logprobs(reply.logprobs, self._tokenizer, prepared.num_logprobs),
                )
            ],
            usage=usage_of(reply),
            hypic=report_of(reply),
        )

    def chunks(self, reply: GrowingReply) -> ChatChunks:
        """The maker of one reply's chunks."""
        return ChatChunks(self._model_name, self._tokenizer, reply)


@final
class ChatChunks:
    """The chunks of one reply, delta by delta.

    The last chunk tells usage and cache report: that with the finish reason, or, where the caller
    asked for usage as OpenAI has it, one more without choices.  Nothing is made before the first
    delta, so that an error may still be told as one.
    """

    def __init__(self, model_name: str, tokenizer: PromptTokenizer, reply: GrowingReply) -> None:
        self._model_name = model_name
        self._tokenizer = tokenizer
        self._reply = reply
        self._has_begun = False

    def __call__(self, delta: ReplyDelta) -> list[ChatCompletionChunk]:
        """The chunks of the next delta."""
        chunks = []
        if not self._has_begun:
            self._has_begun = True
            chunks.append(self._chunk([ChunkChoice(delta=Delta(role="assistant", content=""))]))
        ends = delta.finish_reason is not None
        apart = self._reply.prepared.include_usage
        chunks.append(self._chunk([self._choice(delta)], with_usage=ends and not apart))
        if ends and apart:
            chunks.append(self._chunk([], with_usage=True))
        return chunks

    def _choice(self, delta: ReplyDelta) -> ChunkChoice:
        logprobs = None
        if delta.logprobs:
            num_logprobs = self._reply.prepared.num_logprobs
            logprobs = chat_logprobs(delta.logprobs, self._tokenizer, num_logprobs)
        return ChunkChoice(
            delta=Delta(content=delta.text) if delta.text else Delta(),
            finish_reason=delta.finish_reason,
            logprobs=logprobs,
        )

    def _chunk(
        self, choices: list[ChunkChoice], *, with_usage: bool = False
    ) -> ChatCompletionChunk:
        prepared = self._reply.prepared
        return ChatCompletionChunk(
            id=prepared.request_id,
            created=prepared.created_at,
            model=self._model_name,
            choices=choices,
            usage=usage_of(self._reply) if with_usage else None,
            hypic=report_of(self._reply) if with_usage else None,
        )


@final
class CompletionShape:
    """Replies in the shape of plain completions."""

    def __init__(self, model_name: str, tokenizer: PromptTokenizer) -> None:
        self._model_name = model_name
        self._tokenizer = tokenizer

    def whole(self, reply: GrowingReply) -> Completion:
        """A reply that is over."""
        delta = ReplyDelta(reply.text, tuple(reply.logprobs), reply.ending())
        return self.completion(reply, delta, offset=0, with_usage=True)

    def chunks(self, reply: GrowingReply) -> CompletionChunks:
        """The maker of one reply's chunks."""
        return CompletionChunks(self, reply)

    def completion(
        self, reply: GrowingReply, delta: ReplyDelta | None, *, offset: int, with_usage: bool
    ) -> Completion:
        """A reply or a chunk of one; `offset`: characters that were said before."""
        prepared = reply.prepared
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
            usage=usage_of(reply) if with_usage else None,
            hypic=report_of(reply) if with_usage else None,
        )


@final
class CompletionChunks:
    """The chunks of one reply, delta by delta; usage and cache report as in a chat's chunks."""

    def __init__(self, shape: CompletionShape, reply: GrowingReply) -> None:
        self._shape = shape
        self._reply = reply
        self._offset = 0

    def __call__(self, delta: ReplyDelta) -> list[Completion]:
        """The chunks of the next delta."""
        ends = delta.finish_reason is not None
        apart = self._reply.prepared.include_usage
        chunks = [self._chunk(delta, with_usage=ends and not apart)]
        self._offset += len(delta.text)
        if ends and apart:
            chunks.append(self._chunk(None, with_usage=True))
        return chunks

    def _chunk(self, delta: ReplyDelta | None, *, with_usage: bool) -> Completion:
        return self._shape.completion(
            self._reply, delta, offset=self._offset, with_usage=with_usage
        )
