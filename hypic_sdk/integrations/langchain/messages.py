"""LangChain's messages as messages of the wire, with segments in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from hypic_sdk.errors import RequestError
from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.langchain.callbacks import learn_artifact
from hypic_sdk.integrations.parts import (
    Content,
    PartCutter,
    call_part,
    content,
    segment_part,
    text_part,
)

# told by other fields of a message, or of no use to the model that reads it
_NOT_CONTENT = {"tool_call", "tool_use", "tool_call_chunk", "invalid_tool_call", "function_call"}
_REASONING = {"reasoning", "thinking"}


@final
class MessageWriter:
    """Writes the messages of one request; `cuts` are those of its plain texts.

    Without a registry nothing is looked for in plain texts.
    """

    def __init__(self, registry: SegmentRegistry | None = None) -> None:
        self._cutter = PartCutter(registry)
        self.cuts = self._cutter.cuts

    def messages(self, messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
        """The messages in order.

        Raises:
            RequestError: a kind of message or of content that has no place on the wire.
        """
        registry = self._cutter.registry
        if registry is not None:
            for message in messages:
                # a retriever's tool hands its documents over beside its text
                learn_artifact(registry, message)
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
        said = content(_parts(message.content))
        values: dict[str, Any] = {"role": "assistant", "content": said}
        # those whose arguments are no JSON object too, in the words of the model
        told = (*message.tool_calls, *message.invalid_tool_calls)
        calls = [call_part(one["id"], one["name"], one["args"]) for one in told]
        if calls:
            values["tool_calls"] = calls
        reasoning = "".join(_reasoning(message))
        return {**values, "reasoning_content": reasoning} if reasoning else values

    def _content(self, message: BaseMessage) -> Content:
        return self._cutter.content(_parts(message.content))


def _parts(blocks: str | Sequence[str | dict[Any, Any]]) -> Iterator[dict[str, Any]]:
    for block in [blocks] if isinstance(blocks, str) else blocks:
        if isinstance(block, str):
            yield text_part(block)
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
        return segment_part(block["text"], ours["segment_id"])
    return text_part(block["text"])


def _reasoning(message: AIMessage) -> Iterator[str]:
    yield message.additional_kwargs.get("reasoning_content") or ""
    for block in message.content if isinstance(message.content, list) else ():
        if isinstance(block, Mapping) and block.get("type") in _REASONING:
            yield block.get("reasoning") or block.get("thinking") or ""
