"""Content parts of the wire, made of what frameworks have; known texts in them become segments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

from hypic_sdk.integrations.contract import Cut, SegmentRegistry

Content = str | list[dict[str, Any]]


@final
class PartCutter:
    """Cuts the plain texts of one request; `cuts` says how each was cut.

    Without a registry nothing is looked for in plain texts.
    """

    def __init__(self, registry: SegmentRegistry | None = None) -> None:
        self.registry = registry
        self.cuts: list[Cut] = []

    def content(self, parts: Iterable[dict[str, Any]]) -> Content:
        """Parts with their known texts as segments."""
        return content(self._cut(parts))

    def _cut(self, parts: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for part in parts:
            if self.registry is None or not is_text(part):
                yield part
                continue
            cut = self.registry.cut(part["text"])
            self.cuts.append(cut)
            yield from cut.content()


def text_part(text: str) -> dict[str, Any]:
    """A plain text."""
    return {"type": "text", "text": text}


def segment_part(text: str, segment_id: str | None = None) -> dict[str, Any]:
    """A segment with its text beside it; without an id its text names it."""
    named = {"segment_id": segment_id} if segment_id else {}
    return {"type": "segment", **named, "text": text}


def is_text(part: Mapping[str, Any]) -> bool:
    """Whether a part is plain text."""
    return bool(part["type"] == "text")


def content(parts: Iterable[dict[str, Any]]) -> Content:
    """One plain text as such; anything else in parts."""
    parts = list(parts)
    if not parts:
        return ""
    return str(parts[0]["text"]) if len(parts) == 1 and is_text(parts[0]) else parts


def call_part(
    id_: str | None, name: str | None, arguments: Mapping[str, Any] | str | None
) -> dict[str, Any]:
    """A tool call; arguments that are a text stay in the words of the model."""
    if not isinstance(arguments, str | None):
        arguments = json.dumps(arguments, ensure_ascii=False)
    function = {"name": name or "", "arguments": arguments or ""}
    return {"id": id_, "type": "function", "function": function}
