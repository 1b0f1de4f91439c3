"""Server-sent events out of bytes.  No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event."""

    data: str
    name: str = "message"


@final
class EventParser:
    """Feeds on bytes as they come, cut anywhere; comments are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []
        self._name = "message"

    def feed(self, received: bytes) -> list[ServerEvent]:
        """The events that these bytes finish."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        events = []
        for line in lines:
            event = self._take(line.removesuffix(b"\r").decode("utf-8", "replace"))
            if event is not None:
                events.append(event)
        return events

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            return self._finish()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None

    def _finish(self) -> ServerEvent | None:
        data, name = self._data, self._name
        self._data, self._name = [], "message"
        return ServerEvent("\n".join(data), name) if data else None
