"""LlamaIndex's messages as messages of the wire, with segments in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, final

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    ContentBlock,
    DocumentBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from hypic_sdk.errors import RequestError
from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.parts import (
    Content,
    PartCutter,
    call_part,
    content,
    is_text,
    segment_part,
    text_part,
)

_ROLES: Mapping[MessageRole, str] = MappingProxyType(
    {
        MessageRole.SYSTEM: "system",
        MessageRole.DEVELOPER: "developer",
        MessageRole.USER: "user",
        MessageRole.ASSISTANT: "assistant",
        MessageRole.CHATBOT: "assistant",
        MessageRole.MODEL: "assistant",
        MessageRole.TOOL: "tool",
        MessageRole.FUNCTION: "tool",
    }
)


@final
class MessageWriter:
    """Writes the messages of one request; `cuts` are those of its plain texts.

    Without a registry nothing is looked for in plain texts.
    """

    def __init__(self, registry: SegmentRegistry | None = None) -> None:
        self._cutter = PartCutter(registry)
        self.cuts = self._cutter.cuts

    def messages(self, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
        """The messages in order.

        Raises:
            RequestError: a kind of content that has no place on the wire.
        """
        return [self._message(message) for message in messages]

    def prompt(self, prompt: str) -> Content:
        """A prompt without a chat template: the text, or its parts."""
        return self._cutter.content([text_part(prompt)])

    def _message(self, message: ChatMessage) -> dict[str, Any]:
        role, told = _ROLES[message.role], message.additional_kwargs
        parts = _parts(message)
        # what a model said itself is left alone
        said = content(parts) if role == "assistant" else self._cutter.content(parts)
        values: dict[str, Any] = {"role": role, "content": said}
        for name in ("name", "tool_call_id"):
            if told.get(name):
                values[name] = told[name]
        if role != "assistant":
            return values
        calls, reasoning = _tool_calls(message), _reasoning(message)
        return {
            **values,
            **({"tool_calls": calls} if calls else {}),
            **({"reasoning_content": reasoning} if reasoning else {}),
        }


def _parts(message: ChatMessage) -> Iterable[dict[str, Any]]:
    ours = message.additional_kwargs.get("hypic")
    spans = ours.get("spans") if isinstance(ours, Mapping) else None
    if spans:
        return list(_spanned(message.content or "", spans))
    parts: list[dict[str, Any]] = []
    for block in message.blocks:
        if isinstance(block, CachePoint):
            _end_segment(parts)
        else:
            parts.extend(_block(block))
    return parts


def _block(block: ContentBlock) -> Iterator[dict[str, Any]]:
    match block:
        case TextBlock():
            yield text_part(block.text)
        case DocumentBlock():
            yield segment_part(_document_text(block))
        case CitableBlock():
            for one in block.content:
                for part in _block(one):
                    yield {**part, "type": "segment"}
        case CitationBlock():
            yield from _block(block.cited_content)
        case ThinkingBlock() | ToolCallBlock():
            return  # told by other fields of a message
        case _:
            raise RequestError(
                f"content of type {block.block_type!r} is neither text nor a segment",
                param="messages",
            )


def _end_segment(parts: list[dict[str, Any]]) -> None:
    """A cache point makes the text before it a segment."""
    if parts and is_text(parts[-1]) and parts[-1]["text"]:
        parts[-1] = {**parts[-1], "type": "segment"}


def _spanned(text: str, spans: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A text with segments that its caller marked by their first and last characters."""
    end = 0
    for span in spans:
        start, stop = _ends(span)
        if not end <= start < stop <= len(text):
            raise RequestError(
                f"spans are in order, apart and within the text of {len(text)} characters, got "
                f"{start} to {stop} behind {end}",
                param="messages",
            )
        if start > end:
            yield text_part(text[end:start])
        yield segment_part(text[start:stop], span.get("segment_id"))
        end = stop
    if end < len(text):
        yield text_part(text[end:])


def _ends(span: Any) -> tuple[int, int]:
    """Where a span begins and ends."""
    match span:
        case {"start": int(start), "end": int(stop)}:
            return start, stop
    raise RequestError(
        f"a span is {{'start': ..., 'end': ...}}, numbers of characters, got {span!r}",
        param="messages",
    )


def _document_text(block: DocumentBlock) -> str:
    """The text of a document; nothing is fetched from elsewhere."""
    if block.url:
        raise RequestError("a document by its address is not fetched here", param="messages")
    try:
        read: bytes = block.resolve_document().read()
    except ValueError as error:
        raise RequestError(f"a document without content: {error}", param="messages") from error
    try:
        # a PDF may be all ASCII, and is no text for that
        if not read.startswith(b"%PDF-"):
            return read.decode("utf-8")
    except UnicodeDecodeError:
        pass
    raise RequestError(f"a document of type {block.document_mimetype} is no text", param="messages")


def _tool_calls(message: ChatMessage) -> list[dict[str, Any]]:
    """The calls in blocks; without any, those that older code keeps beside them."""
    blocks = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    if blocks:
        return [call_part(one.tool_call_id, one.tool_name, one.tool_kwargs) for one in blocks]
    older = message.additional_kwargs.get("tool_calls") or ()
    return [one if isinstance(one, dict) else one.model_dump(exclude_none=True) for one in older]


def _reasoning(message: ChatMessage) -> str:
    blocks = [block for block in message.blocks if isinstance(block, ThinkingBlock)]
    return "".join(block.content or "" for block in blocks)
