"""Tools as OpenAI writes them, and what a model said of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.llms.utils import parse_partial_json
from llama_index.core.tools.types import BaseTool

from hypic_sdk.wire.replies import ReplyToolCall, ToolCallDelta


def tool_options(
    tools: Sequence[BaseTool],
    *,
    choice: Any,
    is_required: bool,
    allows_several: bool,
    is_strict: bool | None,
) -> dict[str, Any]:
    """The options of a request that offers tools.

    Args:
        choice: "auto", "none", "required", the name of a tool, or OpenAI's object; none: "required"
            if `is_required`, else "auto".
        allows_several: calls in one reply.
        is_strict: OpenAI's `strict` of each tool; none: not said.
    """
    if not tools:
        return {}
    return {
        "tools": [_tool(tool, is_strict) for tool in tools],
        "tool_choice": _choice(choice, is_required),
        "parallel_tool_calls": allows_several,
    }


def _tool(tool: BaseTool, is_strict: bool | None) -> dict[str, Any]:
    # the limit that core checks is another provider's
    written = tool.metadata.to_openai_tool(skip_length_check=True)
    if is_strict is None:
        return written
    return {**written, "function": {**written["function"], "strict": is_strict}}


def _choice(choice: Any, is_required: bool) -> Any:
    if choice is None:
        return "required" if is_required else "auto"
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        return {"type": "function", "function": {"name": choice}}
    return choice


def selections(message: ChatMessage) -> list[ToolSelection]:
    """The calls in a message; of one in the middle of a stream, the arguments so far."""
    return [
        ToolSelection(
            tool_id=block.tool_call_id or "",
            tool_name=block.tool_name,
            tool_kwargs=arguments(block.tool_kwargs),
        )
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
    ]


def arguments(written: dict[str, Any] | str) -> dict[str, Any]:
    """Arguments as values; none of a text that is not, or not yet, a JSON object."""
    if isinstance(written, dict):
        return written
    try:
        values: Any = parse_partial_json(written)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


@final
@dataclass
class CallsSoFar:
    """Tool calls of a reply, whole ones or pieces of a stream."""

    _calls: dict[int, GrowingCall] = field(default_factory=dict)

    def take(self, calls: Iterable[ReplyToolCall | ToolCallDelta]) -> None:
        """Take whole calls, or pieces of calls that name their place by `index`."""
        for place, call in enumerate(calls):
            index = call.index if isinstance(call, ToolCallDelta) else place
            self._calls.setdefault(index, GrowingCall()).take(call)

    def blocks(self) -> list[ToolCallBlock]:
        """The calls as blocks; arguments stay the text that the model wrote."""
        return [
            ToolCallBlock(tool_call_id=one.id, tool_name=one.name, tool_kwargs=one.arguments)
            for one in self._calls.values()
        ]

    def dicts(self) -> list[dict[str, Any]]:
        """The calls as OpenAI writes them."""
        return [one.written() for one in self._calls.values()]


@final
@dataclass
class GrowingCall:
    """One tool call, piece by piece."""

    id: str | None = None
    name: str = ""
    arguments: str = ""

    def take(self, piece: ReplyToolCall | ToolCallDelta) -> None:
        """Take the next piece; a name comes whole, arguments add up."""
        self.id = piece.id or self.id
        self.name = piece.function.name or self.name
        self.arguments += piece.function.arguments

    def written(self) -> dict[str, Any]:
        """As OpenAI writes it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def single_call(response: ChatResponse) -> ChatResponse:
    """The response with its first call only, for a caller who takes one at a time."""
    message = response.message
    places = [at for at, block in enumerate(message.blocks) if isinstance(block, ToolCallBlock)]
    kept = [block for at, block in enumerate(message.blocks) if at not in places[1:]]
    told = {**message.additional_kwargs}
    if "tool_calls" in told:
        told["tool_calls"] = told["tool_calls"][:1]
    single = message.model_copy(update={"blocks": kept, "additional_kwargs": told})
    return response.model_copy(update={"message": single})
