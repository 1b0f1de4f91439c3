"""Which event of a request is the last, and what it is when the worker fails."""

from __future__ import annotations

import queue
from collections.abc import Iterator

from hypic_sdk.errors import HypicError
from hypic_sdk.transport.messages import FinishReason, TokenEvent, WarmEvent

Event = TokenEvent | WarmEvent


def is_last(event: Event) -> bool:
    """Whether no event of the same request follows."""
    if isinstance(event, TokenEvent):
        return event.finish_reason is not None and event.replies_left == 0
    return event.done


def events_until_last(events: queue.SimpleQueue[Event]) -> Iterator[Event]:
    """Events as they come; ends after the last one."""
    while True:
        event = events.get()
        yield event
        if is_last(event):
            return


def failed(request_id: str, error: HypicError, *, is_warm: bool) -> Event:
    """The last event of a request that its worker could not finish."""
    payload = {**error.to_payload(), "request_id": request_id}
    if is_warm:
        return WarmEvent(request_id, error=payload, done=True)
    return TokenEvent(request_id, finish_reason=FinishReason.ERROR, error=payload)
