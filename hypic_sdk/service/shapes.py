"""Replies to chats and plain prompts: whole, or chunk by chunk.  No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from hypic_sdk.prompt.reply_reader import Said, SaidReasoning, SaidText
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.prompt.tool_calls import CallBegun
from hypic_sdk.service.growing_reply import GrowingReply
from hypic_sdk.service.render import (
    cache_report,
    call_id,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
    usage,
)
from hypic_sdk.service.reply import ReplyAssembler, ReplyDelta
from hypic_sdk.wire.replies import (
    CalledFunction,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChunkChoice,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Delta,
    FunctionDelta,
    PromptLogprobs,
    ReplyMessage,
    ReplyToolCall,
    ToolCallDelta,
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
    prepared = reply.prepared
    return cache_report(reply.report, prepared.report_level, degraded=prepared.degraded)


def prompt_told(reply: GrowingReply, tokenizer: PromptTokenizer) -> PromptLogprobs | None:
    """Log-probabilities of the prompt, where they were asked for by their own field."""
    if not reply.prepared.tells_prompt:
        return None
    return prompt_logprobs(reply.prompt_logprobs, tokenizer)


@final
class ChatShape:
    """Replies in the shape of chat completions."""

    def __init__(self, model_name: str, tokenizer: PromptTokenizer) -> None:
        self._model_name = model_name
        self._tokenizer = tokenizer

    def whole(self, reply: GrowingReply) -> ChatCompletion:
        """A reply that is over."""
        prepared = reply.prepared
        return ChatCompletion(
            id=prepared.request_id,
            created=prepared.created_at,
            model=self._model_name,
            choices=[self._choice(reply, index) for index in range(len(reply.replies))],
            usage=usage_of(reply),
            prompt_logprobs=prompt_told(reply, self._tokenizer),
            hypic=report_of(reply),
        )

    def _choice(self, reply: GrowingReply, index: int) -> ChatChoice:
        one, prepared = reply.replies[index], reply.prepared
        return ChatChoice(
            index=index,
            message=_message(one, prepared.request_id, index),
            finish_reason=reply.ending(index),
            logprobs=chat_logprobs(one.logprobs, self._tokenizer, prepared.num_logprobs),
        )

    def chunks(self, reply: GrowingReply) -> ChatChunks:
        """The maker of one reply's chunks."""
        return ChatChunks(self._model_name, self._tokenizer, reply)


def _message(one: ReplyAssembler, request_id: str, index: int) -> ReplyMessage:
    calls = [
        ReplyToolCall(
            id=call_id(request_id, index, number),
            function=CalledFunction(name=call.name, arguments=call.arguments),
        )
        for number, call in enumerate(one.calls)
    ]
    return ReplyMessage(
        content=one.content or (None if calls else ""),
        reasoning_content=one.reasoning or None,
        tool_calls=calls or None,
    )


@final
class ChatChunks:
    """The chunks of a request's replies, delta by delta.

    The last chunk tells usage and cache report: that with the finish reason, or, where the caller
    asked for usage as OpenAI has it, one more without choices.  Nothing is made before the first
    delta, so that an error may still be told as one.
    """

    def __init__(self, model_name: str, tokenizer: PromptTokenizer, reply: GrowingReply) -> None:
        self._model_name = model_name
        self._tokenizer = tokenizer
        self._reply = reply
        self._num_calls: dict[int, int] = {}  # by reply, of those that have begun

    def __call__(self, delta: ReplyDelta) -> list[ChatCompletionChunk]:
        """The chunks of the next delta."""
        index, chunks = delta.reply_index, []
        if index not in self._num_calls:
            told = None if self._num_calls else prompt_told(self._reply, self._tokenizer)
            self._num_calls[index] = 0
            begun = ChunkChoice(index=index, delta=Delta(role="assistant", content=""))
            chunks.append(self._chunk([begun], prompt_logprobs=told))
        apart = self._reply.prepared.include_usage
        choices = list(self._choices(delta))
        for choice in choices:
            is_end = delta.is_last and choice is choices[-1]
            chunks.append(self._chunk([choice], with_usage=is_end and not apart))
        if delta.is_last and apart:
            chunks.append(self._chunk([], with_usage=True))
        return chunks

    def _choices(self, delta: ReplyDelta) -> Iterator[ChunkChoice]:
        """One for each thing that was said; log-probabilities on the first, the end on the last."""
        said = [one for part in delta.said for one in self._deltas(part, delta.reply_index)]
        if not said and (delta.finish_reason is not None or delta.logprobs):
            said = [Delta()]
        for number, one in enumerate(said):
            logprobs = None
            if number == 0 and delta.logprobs:
                num_logprobs = self._reply.prepared.num_logprobs
                logprobs = chat_logprobs(delta.logprobs, self._tokenizer, num_logprobs)
            yield ChunkChoice(
                index=delta.reply_index,
                delta=one,
                finish_reason=delta.finish_reason if number == len(said) - 1 else None,
                logprobs=logprobs,
            )

    def _deltas(self, said: Said, index: int) -> Iterator[Delta]:
        if isinstance(said, SaidText):
            yield Delta(content=said.text)
        elif isinstance(said, SaidReasoning):
            yield Delta(reasoning_content=said.text)
        elif isinstance(said, CallBegun):
            number = self._num_calls[index]
            self._num_calls[index] += 1
            begun = ToolCallDelta(
                index=number,
                id=call_id(self._reply.prepared.request_id, index, number),
                type="function",
                function=FunctionDelta(name=said.name),
            )
            yield Delta(tool_calls=[begun])
        else:
            number = self._num_calls[index] - 1
            arguments = FunctionDelta(arguments=said.text)
            yield Delta(tool_calls=[ToolCallDelta(index=number, function=arguments)])

    def _chunk(
        self,
        choices: list[ChunkChoice],
        *,
        with_usage: bool = False,
        prompt_logprobs: PromptLogprobs | None = None,
    ) -> ChatCompletionChunk:
        prepared = self._reply.prepared
        return ChatCompletionChunk(
            id=prepared.request_id,
            created=prepared.created_at,
            model=self._model_name,
            choices=choices,
            usage=usage_of(self._reply) if with_usage else None,
            prompt_logprobs=prompt_logprobs,
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
        choices = [
            self.choice(
                reply,
                ReplyDelta(one.text, tuple(one.logprobs), reply.ending(index), reply_index=index),
                offset=0,
                with_prompt=True,
            )
            for index, one in enumerate(reply.replies)
        ]
        return self.completion(reply, choices, with_usage=True)

    def chunks(self, reply: GrowingReply) -> CompletionChunks:
        """The maker of one reply's chunks."""
        return CompletionChunks(self, reply)

    def choice(
        self, reply: GrowingReply, delta: ReplyDelta, *, offset: int, with_prompt: bool
    ) -> CompletionChoice:
        """A reply or a chunk of one.

        Args:
            offset: characters that were said before.
            with_prompt: it is the beginning, where the prompt stands if it is to be said again.
        """
        prepared = reply.prepared
        echo = self._echo(reply) if with_prompt and prepared.echo else ""
        logprobs = completion_logprobs(
            delta.logprobs, self._tokenizer, prepared.num_logprobs, offset + len(echo)
        )
        if echo and logprobs is not None:
            logprobs = self._with_prompt(reply, logprobs)
        return CompletionChoice(
            index=delta.reply_index,
            text=echo + delta.text,
            finish_reason=delta.finish_reason,
            logprobs=logprobs,
            prompt_logprobs=prompt_told(reply, self._tokenizer) if with_prompt else None,
        )

    def _echo(self, reply: GrowingReply) -> str:
        return self._tokenizer.decode(reply.prepared.message.prompt.token_ids)

    def _with_prompt(self, reply: GrowingReply, logprobs: CompletionLogprobs) -> CompletionLogprobs:
        prepared = reply.prepared
        told = completion_logprobs(
            reply.prompt_logprobs,
            self._tokenizer,
            prepared.num_logprobs,
            0,
            first_token_id=prepared.message.prompt.token_ids[0],
        )
        assert told is not None, "log-probabilities are told"
        return CompletionLogprobs(
            tokens=told.tokens + logprobs.tokens,
            token_logprobs=told.token_logprobs + logprobs.token_logprobs,
            top_logprobs=told.top_logprobs + logprobs.top_logprobs,
            text_offset=told.text_offset + logprobs.text_offset,
        )

    def completion(
        self, reply: GrowingReply, choices: list[CompletionChoice], *, with_usage: bool
    ) -> Completion:
        """The frame around choices."""
        prepared = reply.prepared
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
    """The chunks of a request's replies, delta by delta; usage and report as in a chat's chunks."""

    def __init__(self, shape: CompletionShape, reply: GrowingReply) -> None:
        self._shape = shape
        self._reply = reply
        self._offsets: dict[int, int] = {}  # by reply, characters that were said

    def __call__(self, delta: ReplyDelta) -> list[Completion]:
        """The chunks of the next delta."""
        index = delta.reply_index
        choice = self._shape.choice(
            self._reply,
            delta,
            offset=self._offsets.get(index, 0),
            with_prompt=index not in self._offsets,
        )
        self._offsets[index] = self._offsets.get(index, 0) + len(choice.text)
        apart = self._reply.prepared.include_usage
        ends = delta.is_last and not apart
        chunks = [self._shape.completion(self._reply, [choice], with_usage=ends)]
        if delta.is_last and apart:
            chunks.append(self._shape.completion(self._reply, [], with_usage=True))
        return chunks
