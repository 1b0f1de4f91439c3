"""LangChain's messages as messages of the wire, with segments in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolCall,
    ToolMessage,
)

from hypic_sdk.errors import RequestError
from hypic_sdk.integrations.contract import Cut, SegmentRegistry
from hypic_sdk.integrations.langchain.callbacks import learn_artifact

# told by other fields of a message, or of no use to the model that reads it
_NOT_CONTENT = {"tool_call", "tool_use", "tool_call_chunk", "invalid_tool_call", "function_call"}
_REASONING = {"reasoning", "thinking"}


@final
@dataclass
class MessageWriter:
    """Writes the messages of one request; `cuts` are those of its plain texts.

    Without a registry nothing is looked for in plain texts.
    """

    registry: SegmentRegistry | None = None
    cuts: list[Cut] = field(default_factory=list)

    def messages(self, messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
        """The messages in order.

        Raises:
            RequestError: a kind of message or of content that has no place on the wire.
        """
        if self.registry is not None:
            for message in messages:
                # a retriever's tool hands its documents over beside its text
                learn_artifact(self.registry, message)
        return [self._message(message) for message in messages]

    def _message(self, message: BaseMessage) -> dict[str, Any]:
        match message:
            case AIMessage():
                values = self._said(message)
            case SystemMessage():
                values = {"role": "system", "content": self._content(message)}
            case HumanMessage():
                values = {"role": "user", "content": self._content(message)}
            case ToolMessage():
                values = {"role": "tool", "content": self._content(message)}
                values["tool_call_id"] = message.tool_call_id
            case ChatMessage():
                values = {"role": message.role, "content": self._content(message)}
            case _:
                raise RequestError(
                    f"a message of type {message.type!r} has no place here", param="messages"
                )
        return values if message.name is None else {**values, "name": message.name}

    def _said(self, message: AIMessage) -> dict[str, Any]:
        """An assistant's message; its text is left alone, for it was said by the model."""
        values: dict[str, Any] = {"role": "assistant", "content": message.content}
        if not isinstance(message.content, str):
            values["content"] = list(_parts(message.content))
        calls = [*map(_tool_call, message.tool_calls), *map(_as_said, message.invalid_tool_calls)]
        if calls:
            values["tool_calls"] = calls
        reasoning = "".join(_reasoning(message))
        return {**values, "reasoning_content": reasoning} if reasoning else values

    def _content(self, message: BaseMessage) -> str | list[dict[str, Any]]:
        if isinstance(message.content, str):
            parts = list(self._cut([{"type": "text", "text": message.content}]))
            return message.content if len(parts) < 2 and _is_text(parts[0]) else parts
        return list(self._cut(_parts(message.content)))

    def _cut(self, parts: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for part in parts:
            if self.registry is None or not _is_text(part):
                yield part
                continue
            cut = self.registry.cut(part["text"])
            self.cuts.append(cut)
            yield from cut.content()


def _is_text(part: Mapping[str, Any]) -> bool:
    return part["type"] == "text"


def _parts(content: Sequence[str | dict[Any, Any]]) -> Iterator[dict[str, Any]]:
    for block in content:
        if isinstance(block, str):
            yield {"type": "text", "text": block}
            continue
        kind = block.get("type")
        if kind == "segment":
            yield dict(block)
        elif kind == "text" or (kind == "text-plain" and block.get("text")):
            yield _text_part(block)
        elif kind not in _NOT_CONTENT | _REASONING:
            raise RequestError(
                f"content of type {kind!r} is neither text nor a segment", param="messages"
            )


def _text_part(block: Mapping[str, Any]) -> dict[str, Any]:
    """A text; it is a segment if its extras say so."""
    extras = block.get("extras")
    ours = extras.get("hypic") if isinstance(extras, Mapping) else None
    if isinstance(ours, Mapping) and ours.get("segment_id"):
        return {"type": "segment", "segment_id": ours["segment_id"], "text": block["text"]}
    return {"type": "text", "text": block["text"]}


def _reasoning(message: AIMessage) -> Iterator[str]:
    yield message.additional_kwargs.get("reasoning_content") or ""
    for block in message.content if isinstance(message.content, list) else ():
        if isinstance(block, Mapping) and block.get("type") in _REASONING:
            yield block.get("reasoning") or block.get("thinking") or ""


def _as_said(call: InvalidToolCall) -> dict[str, Any]:
    """A call whose arguments are no JSON object, in the words of the model."""
    function = {"name": call["name"] or "", "arguments": call["args"] or ""}
    return {"id": call["id"], "type": "function", "function": function}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call["args"], ensure_ascii=False)
    function = {"name": call["name"], "arguments": arguments}
    return {"id": call["id"], "type": "function", "function": function}
