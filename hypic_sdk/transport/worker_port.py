"""What the text wing asks of a worker: requests one way, events the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from hypic_sdk.prompt.segment import PromptPart
from hypic_sdk.transport.control import Question
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import EngineRequest, WarmRequest


class WorkerPort(Protocol):
    """One engine, or a router before several; safe to call from any thread."""

    def submit(
        self,
        message: EngineRequest | WarmRequest,
        on_event: Callable[[Event], None] | None = None,
    ) -> Iterator[Event]:
        """Begin a request; its events as they come, the last one last.

        Args:
            on_event: gets every event instead of the iterator, on the worker's thread.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """Ask for the end of a request; its last event still comes.  Unknown ones are ignored."""
        ...

    def finish(self, request_id: str, reply_index: int = 0) -> None:
        """End one reply of a request by STOP: its caller has what it wanted.

        For a stop string that was found in the text.  The reply's last event still comes, with the
        report if it is the request's last; unknown and ended ones are ignored.
        """
        ...

    def probe(self, parts: Sequence[PromptPart], namespace: str) -> Sequence[bool]:
        """Whether each segment's entry is in the public pool now."""
        ...

    def ask(
        self,
        question: Question,
        parts: Sequence[PromptPart] = (),
        namespace: str = "",
        number: int = 0,
    ) -> Any:
        """The plain value that the question tells of; `service.keeping` has a call for each.

        Raises:
            WorkerLost: nobody is there to ask.
            UnsupportedOption: this worker does not answer that.
        """
        ...

    def delete(self, parts: Sequence[PromptPart], namespace: str) -> None:
        """Drop these segments' entries, and every chain that contains one of them."""
        ...
