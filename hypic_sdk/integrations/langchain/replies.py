"""Replies of the wire, whole or in chunks, as LangChain's results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from hypic_sdk.integrations.contract import Cut, cache_details, report_values
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk
from hypic_sdk.wire.report import CacheReport, Usage

PROVIDER = "hypic"


def chat_result(reply: ChatCompletion, cuts: Sequence[Cut]) -> ChatResult:
    """A whole reply."""
    generations = [
        ChatGeneration(
            message=AIMessage(
                content=choice.message.content,
                id=reply.id,
                usage_metadata=usage_metadata(reply.usage),
                response_metadata=_metadata(
                    reply.model, choice.finish_reason, reply.hypic, reply.id, cuts
                ),
            ),
            generation_info={"finish_reason": choice.finish_reason},
        )
        for choice in reply.choices
    ]
    return ChatResult(generations=generations, llm_output={"model_name": reply.model})


def usage_metadata(usage: Usage) -> UsageMetadata:
    """Tokens; the details are disjoint and within the input, as core wants them."""
    read, written = cache_details(usage)
    return UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        input_token_details=InputTokenDetails(cache_read=read, cache_creation=written),
    )


@final
class ReplyReader:
    """Feeds on the chunks of one stream.

    Core joins the metadata of chunks by adding them up, so all of it stands on the last one alone.
    """

    def __init__(self) -> None:
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self._report: CacheReport | None = None
        self._seen: ChatCompletionChunk | None = None

    def feed(self, chunk: ChatCompletionChunk) -> Iterator[ChatGenerationChunk]:
        """What a chunk adds to the text, if it adds something."""
        self._seen = chunk
        self._usage = chunk.usage or self._usage
        self._report = chunk.hypic or self._report
        for choice in chunk.choices:
            self._finish_reason = choice.finish_reason or self._finish_reason
            if choice.delta.content:
                said = AIMessageChunk(content=choice.delta.content, id=chunk.id)
                yield ChatGenerationChunk(message=said)

    def last(self, cuts: Sequence[Cut]) -> ChatGenerationChunk:
        """The chunk behind the text: usage, model, finish reason, cache report."""
        model, id_ = ("", None) if self._seen is None else (self._seen.model, self._seen.id)
        return ChatGenerationChunk(
            message=AIMessageChunk(
                content="",
                id=id_,
                usage_metadata=None if self._usage is None else usage_metadata(self._usage),
                response_metadata=_metadata(model, self._finish_reason, self._report, id_, cuts),
                chunk_position="last",
            ),
            generation_info={"finish_reason": self._finish_reason},
        )


def _metadata(
    model: str,
    finish_reason: str | None,
    report: CacheReport | None,
    request_id: str | None,
    cuts: Sequence[Cut],
) -> dict[str, Any]:
    return {
        "model_name": model,
        "model_provider": PROVIDER,
        "finish_reason": finish_reason,
        "request_id": request_id,
        "hypic": report_values(report, cuts),
    }
