"""Replies of the wire, whole or in chunks, as LangChain's results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import ToolCallChunk
from langchain_core.output_parsers.openai_tools import make_invalid_tool_call, parse_tool_call
from langchain_core.outputs import (
    ChatGeneration,
    ChatGenerationChunk,
    ChatResult,
    Generation,
    GenerationChunk,
    LLMResult,
)

from hypic_sdk.integrations.contract import Cut, cache_details
from hypic_sdk.integrations.reply_end import ReplyEnd
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk, Completion
from hypic_sdk.wire.report import Usage

PROVIDER = "hypic"


def chat_result(reply: ChatCompletion, cuts: Sequence[Cut]) -> ChatResult:
    """A whole reply."""
    end = ReplyEnd.of(reply)
    generations = [
        ChatGeneration(
            message=_message(
                choice.message, reply.id, _told_usage(end), _metadata(end, cuts, choice)
            ),
            generation_info=_info(choice),
        )
        for choice in reply.choices
    ]
    return ChatResult(generations=generations, llm_output={"model_name": reply.model})


def _message(
    said: Any, id_: str, usage: UsageMetadata | None, metadata: dict[str, Any]
) -> AIMessage:
    calls, invalid = _tool_calls(getattr(said, "tool_calls", None) or ())
    return AIMessage(
        content=said.content or "",
        additional_kwargs=_reasoning(said),
        tool_calls=calls,
        invalid_tool_calls=invalid,
        id=id_,
        usage_metadata=usage,
        response_metadata=metadata,
    )


def _tool_calls(calls: Iterable[Any]) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    """Calls as core has them; one whose arguments are no JSON object is told as invalid."""
    valid: list[ToolCall] = []
    invalid: list[InvalidToolCall] = []
    for call in calls:
        function = {"name": call.function.name, "arguments": call.function.arguments}
        raw = {"id": call.id, "type": "function", "function": function}
        try:
            parsed = parse_tool_call(raw, strict=False, return_id=True)
        # core's parser error is one, and what it makes of arguments that are no object another
        except ValueError as error:
            invalid.append(make_invalid_tool_call(raw, str(error)))
        else:
            if parsed is not None:
                valid.append(ToolCall(name=parsed["name"], args=parsed["args"], id=parsed["id"]))
    return valid, invalid


def _reasoning(said: Any) -> dict[str, Any]:
    """What core's content blocks show as reasoning."""
    reasoning = getattr(said, "reasoning_content", None)
    return {"reasoning_content": reasoning} if reasoning else {}


def _info(choice: Any) -> dict[str, Any]:
    info: dict[str, Any] = {"finish_reason": choice.finish_reason}
    if choice.logprobs is not None:
        info["logprobs"] = choice.logprobs.model_dump()
    return info


def usage_metadata(usage: Usage) -> UsageMetadata:
    """Tokens; the details are disjoint and within their sums, as core wants them."""
    read, written = cache_details(usage)
    told = UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        input_token_details=InputTokenDetails(cache_read=read, cache_creation=written),
    )
    details = getattr(usage, "completion_tokens_details", None)
    if details is not None:
        told["output_token_details"] = OutputTokenDetails(reasoning=details.reasoning_tokens)
    return told


def _told_usage(end: ReplyEnd) -> UsageMetadata | None:
    return None if end.usage is None else usage_metadata(end.usage)


def _metadata(end: ReplyEnd, cuts: Sequence[Cut], choice: Any = None) -> dict[str, Any]:
    """The metadata of a reply, or of one of several."""
    return {
        "model_name": "" if end.seen is None else end.seen.model,
        "model_provider": PROVIDER,
        "finish_reason": end.finish_reason if choice is None else choice.finish_reason,
        "request_id": None if end.seen is None else end.seen.id,
        "hypic": end.report(cuts),
    }


@final
class ReplyReader:
    """Feeds on the chunks of one stream.

    Core joins the metadata of chunks by adding them up, so all of it stands on the last one alone.
    """

    def __init__(self) -> None:
        self._end = ReplyEnd()

    def feed(self, chunk: ChatCompletionChunk) -> Iterator[ChatGenerationChunk]:
        """What a chunk adds to the message, if it adds something."""
        self._end.take(chunk)
        for choice in chunk.choices:
            pieces = list(map(_call_chunk, getattr(choice.delta, "tool_calls", None) or ()))
            reasoning = _reasoning(choice.delta)
            if choice.delta.content or pieces or reasoning:
                said = AIMessageChunk(
                    content=choice.delta.content or "",
                    additional_kwargs=reasoning,
                    tool_call_chunks=pieces,
                    id=chunk.id,
                )
                logprobs = {} if choice.logprobs is None else choice.logprobs.model_dump()
                info = {"logprobs": logprobs} if logprobs else None
                yield ChatGenerationChunk(message=said, generation_info=info)

    def last(self, cuts: Sequence[Cut]) -> ChatGenerationChunk:
        """The chunk behind the text: usage, model, finish reason, cache report."""
        return ChatGenerationChunk(
            message=AIMessageChunk(
                content="",
                id=None if self._end.seen is None else self._end.seen.id,
                usage_metadata=_told_usage(self._end),
                response_metadata=_metadata(self._end, cuts),
                chunk_position="last",
            ),
            generation_info={"finish_reason": self._end.finish_reason},
        )


def _call_chunk(piece: Any) -> ToolCallChunk:
    """A piece of a tool call; its place among the calls says which one it continues."""
    function = piece.function
    return ToolCallChunk(
        name=None if function is None else function.name,
        args=None if function is None else function.arguments,
        id=piece.id,
        index=piece.index,
        type="tool_call_chunk",
    )


def generations(reply: Completion, cuts: Sequence[Cut]) -> list[Generation]:
    """A whole reply to a plain prompt, or the several that were asked for."""
    end = ReplyEnd.of(reply)
    return [
        Generation(text=choice.text, generation_info=_plain_info(end, cuts, choice))
        for choice in reply.choices
    ]


def llm_result(replies: Sequence[list[Generation]]) -> LLMResult:
    """The replies to several plain prompts, in their order."""
    return LLMResult(generations=[*replies], llm_output={})


@final
class PlainReader:
    """Feeds on the chunks of one plain reply."""

    def __init__(self) -> None:
        self._end = ReplyEnd()

    def feed(self, chunk: Completion) -> Iterator[GenerationChunk]:
        """What a chunk adds to the text, if it adds something."""
        self._end.take(chunk)
        for choice in chunk.choices[:1]:
            if choice.text:
                yield GenerationChunk(text=choice.text)

    def last(self, cuts: Sequence[Cut]) -> GenerationChunk:
        """The chunk behind the text."""
        return GenerationChunk(text="", generation_info=_plain_info(self._end, cuts))


def _plain_info(end: ReplyEnd, cuts: Sequence[Cut], choice: Any = None) -> dict[str, Any]:
    usage = _told_usage(end)
    return {
        **_metadata(end, cuts, choice),
        "usage_metadata": None if usage is None else dict(usage),
    }
