"""`Prompt` and `Segment`: messages with texts and segments in them, made in Python.  No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from hypic_sdk.matching import AutoSegmenter
from hypic_sdk.prompt.segment import segment_id
from hypic_sdk.wire.segments import SegmentObject


@final
@dataclass(frozen=True, slots=True)
class Segment:
    """A text that is cached on its own; the text rides along, so a lost entry heals itself.

    `title` is the caller's own and is not shown to the model.
    """

    text: str
    title: str | None = None

    @property
    def id(self) -> str:
        """What the text alone names, for any server."""
        return segment_id(self.text)

    def part(self) -> dict[str, Any]:
        """The content part of the wire."""
        titled = {} if self.title is None else {"title": self.title}
        return {"type": "segment", "segment_id": self.id, "text": self.text, **titled}


Piece = str | Segment | SegmentObject
"""A text, a text that is a segment, or a segment that is registered."""


@final
@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages, made one behind the other; each call gives a new prompt and changes none.

        prompt = Prompt().system("Answer briefly.").user(Segment(text), "\\n\\n", question)
        client.chat.completions.create(messages=prompt.to_messages())

    Every piece is a part of its own, so a segment's borders are where they were written.
    """

    messages: tuple[Mapping[str, Any], ...] = ()

    def system(self, *pieces: Piece) -> Prompt:
        """With a system message more."""
        return self.message("system", *pieces)

    def user(self, *pieces: Piece) -> Prompt:
        """With a user message more."""
        return self.message("user", *pieces)

    def assistant(self, text: str) -> Prompt:
        """With what the model said."""
        return Prompt((*self.messages, {"role": "assistant", "content": text}))

    def tool(self, tool_call_id: str, *pieces: Piece) -> Prompt:
        """With what a tool answered to a call of the model."""
        return self.message("tool", *pieces, tool_call_id=tool_call_id)

    def message(self, role: str, *pieces: Piece, **fields: Any) -> Prompt:
        """With a message more, and fields of the wire beside its content."""
        whole = pieces[0] if len(pieces) == 1 and isinstance(pieces[0], str) else None
        content = [_part(piece) for piece in pieces] if whole is None else whole
        return Prompt((*self.messages, {"role": role, "content": content, **fields}))

    def segmented(self, segmenter: AutoSegmenter) -> Prompt:
        """With known texts in plain ones as segments, but in what a model said."""
        return Prompt(tuple(_segmented(message, segmenter) for message in self.messages))

    def to_messages(self) -> list[dict[str, Any]]:
        """For `chat.completions`, `prompts.explain` and `tokenize`, also of OpenAI's client."""
        return [dict(message) for message in self.messages]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.messages)


def _part(piece: Piece) -> dict[str, Any]:
    if isinstance(piece, Segment):
        return piece.part()
    if isinstance(piece, SegmentObject):
        return {"type": "segment", "segment_id": piece.id}
    return {"type": "text", "text": piece}


def _segmented(message: Mapping[str, Any], segmenter: AutoSegmenter) -> Mapping[str, Any]:
    content = message["content"]
    if message["role"] == "assistant":
        return message
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    cut = [one for part in parts for one in _cut(part, segmenter)]
    return message if cut == parts else {**message, "content": cut}


def _cut(part: Mapping[str, Any], segmenter: AutoSegmenter) -> list[dict[str, Any]]:
    return segmenter.cut(part["text"]).content() if part["type"] == "text" else [dict(part)]
