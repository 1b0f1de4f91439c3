"""The values between a caller's messages and a token list: messages, pieces, borders in text.

A piece is a stretch of template text or of one caller's text, and is tokenised on its own (design
3.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hypic_sdk.prompt.segment import BorderKind, SegmentId


@dataclass(frozen=True, slots=True)
class TemplateText:
    """Text that the chat template wrote: its added tokens are parsed."""

    text: str


@dataclass(frozen=True, slots=True)
class CallerText:
    """One text of the caller: a segment if it has an id, else plain text.

    `token_ids` are set when they are known already: of a registered text, or of a reply that this
    process has written itself.  `message_index` and `content_index` say where the caller wrote it.
    """

    text: str
    segment_id: SegmentId | None = None
    token_ids: tuple[int, ...] | None = None
    message_index: int = 0
    content_index: int = 0


Piece = TemplateText | CallerText


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; `content` is its texts in order.

    `extra` holds what the template may read besides (name, tool_calls, tool_call_id), as JSON
    values.
    """

    role: str
    content: tuple[CallerText, ...]
    reasoning: CallerText | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class TextBorder:
    """A place in the rendered prompt: `offset` characters into the piece `piece_index`.

    An offset that is not 0 lies in template text.
    """

    piece_index: int
    offset: int
    kind: BorderKind


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """The pieces of a prompt in order, and the borders between its messages (rising).

    `degraded`: a code that says what was asked for and left undone; none: all was done.
    """

    pieces: tuple[Piece, ...]
    borders: tuple[TextBorder, ...] = ()
    degraded: str | None = None
