"""A chat request, shaped like OpenAI's, with segments in it."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AliasChoices, Field, model_validator

from hypic_sdk.wire import limits
from hypic_sdk.wire.not_offered import OF_ALL, OF_CHAT, Neutral
from hypic_sdk.wire.options import SamplingFields
from hypic_sdk.wire.parse import WireModel
from hypic_sdk.wire.parts import Content, DocumentItem, Name, Text, has_utf8
from hypic_sdk.wire.tools import NamedTool, Tool, ToolChoice

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
    part of the segments, so another order costs no hit.  `reasoning_effort` is a variable of the
    chat template; one that does not read it refuses it.
    """

    messages: list[ChatMessage] = Field(min_length=1, max_length=limits.MAX_MESSAGES)
    documents: list[DocumentItem] = Field(default=[], max_length=limits.MAX_DOCUMENTS)
    documents_numbering: Literal["off", "brackets"] = "off"
    max_completion_tokens: int | None = Field(default=None, ge=0, le=limits.MAX_TOKENS)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=limits.MAX_TOP_LOGPROBS)
    tools: list[Tool] | None = Field(default=None, max_length=limits.MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Name | None = None
    chat_template_kwargs: dict[str, Any] = Field(default={}, max_length=limits.MAX_TEMPLATE_OPTIONS)

    not_offered_fields: ClassVar[tuple[Neutral, ...]] = (OF_ALL, OF_CHAT)

    @model_validator(mode="after")
    def _is_within_caps(self) -> Self:
        shown = [tool.shown() for tool in self.tools or ()]
        written = json.dumps([shown, self.chat_template_kwargs], ensure_ascii=False)
        has_utf8(written)
        size = len(written)
        if size > limits.MAX_TOOLS_JSON_CHARS:
            raise ValueError(
                f"tools and chat_template_kwargs have {size} characters of JSON, limit is "
                f"{limits.MAX_TOOLS_JSON_CHARS}"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        self._check_tool_choice()
        return self

    def _check_tool_choice(self) -> None:
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            raise ValueError("two tools have one name")
        choice = self.tool_choice
        if isinstance(choice, NamedTool) and choice.function.name not in names:
            raise ValueError(f"tool_choice names {choice.function.name!r}, no tool has that name")
        if choice == "required" and not names:
            raise ValueError("tool_choice required needs tools")
        if self.must_call and self.formats:
            raise ValueError(f"a reply that has to be a call can have no {self.formats[0]}")

    @property
    def must_call(self) -> bool:
        """Whether the reply has to be a call of a tool."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def may_call(self) -> bool:
        """Whether the reply may be a call, or has to be one."""
        return bool(self.shown_tools)

    @property
    def shown_tools(self) -> list[Tool]:
        """The tools that the model is told of."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def token_limit(self) -> int | None:
        """How many tokens the reply may have, by its newer name first."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives to each token are told; none: no log-probabilities at all."""
        return (self.top_logprobs or 0) if self.logprobs else None
