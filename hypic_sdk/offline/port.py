"""A worker of this process, as the text wing sees one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

from hypic_sdk.prompt.segment import PromptPart
from hypic_sdk.service.worker_port import Event
from hypic_sdk.transport.control import Ask, Question
from hypic_sdk.transport.messages import EngineRequest, WarmRequest

if TYPE_CHECKING:
    from hypic_sdk.engine.worker import LocalWorker


@final
class LocalPort:
    """A worker of this process as the text wing sees one."""

    def __init__(self, worker: LocalWorker) -> None:
        self._worker = worker

    def submit(
        self,
        message: EngineRequest | WarmRequest,
        on_event: Callable[[Event], None] | None = None,
    ) -> Iterator[Event]:
        """Begin a request."""
        return self._worker.submit(message, on_event)

    def cancel(self, request_id: str) -> None:
        """Ask for the end of a request."""
        self._worker.cancel(request_id)

    def finish(self, request_id: str, reply_index: int = 0) -> None:
        """Ask for the good end of one reply."""
        self._worker.finish(request_id, reply_index)

    def probe(self, parts: Sequence[PromptPart], namespace: str) -> Sequence[bool]:
        """Which entries are held."""
        return self._worker.call(lambda engine: engine.probe(parts, namespace))

    def ask(
        self,
        question: Question,
        parts: Sequence[PromptPart] = (),
        namespace: str = "",
        number: int = 0,
    ) -> Any:
        """The engine's answer."""
        from hypic_sdk.engine.answers import answer_of

        message = Ask(0, question, tuple(parts), namespace, number)
        return self._worker.call(lambda engine: answer_of(message, engine))

    def delete(self, parts: Sequence[PromptPart], namespace: str) -> None:
        """Drop entries."""
        self._worker.call(lambda engine: engine.delete(parts, namespace))
