"""A chat request, shaped like OpenAI's, with segments in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, Field, model_validator

from hypic_sdk.wire import limits
from hypic_sdk.wire.options import SamplingFields
from hypic_sdk.wire.parse import WireModel
from hypic_sdk.wire.parts import Content, DocumentItem, Name, Text, has_utf8

Arguments = Annotated[str, Field(max_length=limits.MAX_ARGUMENTS_CHARS)]


class FunctionCall(WireModel):
    """The function that a tool call names, and its arguments as JSON text."""

    name: Name
    arguments: Arguments = "{}"


class ToolCall(WireModel):
    """One tool call of an assistant's message."""

    id: Name | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(WireModel):
    """One message; its content is text, or parts of text and segments."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    reasoning_content: Text | None = Field(
        default=None, validation_alias=AliasChoices("reasoning_content", "reasoning")
    )
    name: Name | None = None
    tool_calls: list[ToolCall] | None = Field(default=None, max_length=limits.MAX_TOOL_CALLS)
    tool_call_id: Name | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise ValueError("content is needed (only a message with tool_calls may be without)")
        return self


class ChatRequest(SamplingFields):
    """`POST /v1/chat/completions`: unknown fields are ignored, misspelt ones in `hypic` are not.

    `documents_numbering`: "brackets" writes [1], [2] ... before the documents.  The numbers are not
    part of the segments, so another order costs no hit.
    """

    messages: list[ChatMessage] = Field(min_length=1, max_length=limits.MAX_MESSAGES)
    documents: list[DocumentItem] = Field(default=[], max_length=limits.MAX_DOCUMENTS)
    documents_numbering: Literal["off", "brackets"] = "off"
    max_completion_tokens: int | None = Field(default=None, ge=0, le=limits.MAX_TOKENS)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=limits.MAX_TOP_LOGPROBS)
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=limits.MAX_TOOLS)
    tool_choice: Any = None
    chat_template_kwargs: dict[str, Any] = Field(default={}, max_length=limits.MAX_TEMPLATE_OPTIONS)

    @model_validator(mode="after")
    def _is_within_caps(self) -> Self:
        written = json.dumps([self.tools, self.chat_template_kwargs], ensure_ascii=False)
        has_utf8(written)
        size = len(written)
        if size > limits.MAX_TOOLS_JSON_CHARS:
            raise ValueError(
                f"tools and chat_template_kwargs have {size} characters of JSON, limit is "
                f"{limits.MAX_TOOLS_JSON_CHARS}"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @property
    def token_limit(self) -> int | None:
        """How many tokens the reply may have, by its newer name first."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives to each token are told; none: no log-probabilities at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def unsupported(self) -> Iterator[str]:
        """Names of options that would change the answer and are not offered."""
        yield from super().unsupported()
        if self.tool_choice not in (None, "none", "auto"):
            yield "tool_choice"
