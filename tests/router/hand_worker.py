"""A worker whose events a test sends by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypic_sdk.errors import WorkerLost
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, segment_id
from hypic_sdk.router.costs import CostModel
from hypic_sdk.transport.control import Question
from hypic_sdk.transport.events import Event, failed
from hypic_sdk.transport.messages import EngineRequest, TokenEvent, WarmEvent, WarmRequest

COSTS = CostModel(prefill_ms=1, prefill_ms_per_token=1, transfer_ms=0.1, transfer_ms_per_token=0)


def part(number: int, num_tokens: int = 50) -> PromptPart:
    return PromptPart(Role.INNER, (number,) * num_tokens, segment_id(str(number)))


def request(name: str, numbers: Sequence[int], session: str | None = None) -> EngineRequest:
    trailing = PromptPart(Role.TRAILING, (1, 2, 3))
    prompt = SegmentedPrompt((*map(part, numbers), trailing))
    return EngineRequest(name, prompt, session_id=session)


class HandWorker:
    """A port whose events a test sends by hand."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[EngineRequest | WarmRequest, Callable[[Event], None]]] = {}
        self.cancelled: list[str] = []
        self.is_gone = False

    def submit(
        self,
        message: EngineRequest | WarmRequest,
        on_event: Callable[[Event], None] | None = None,
    ) -> Iterator[Event]:
        assert on_event is not None
        if self.is_gone:
            lost = WorkerLost("gone")
            on_event(failed(message.request_id, lost, is_warm=isinstance(message, WarmRequest)))
        else:
            self.open[message.request_id] = (message, on_event)
        return iter(())

    def say(self, event: Event) -> None:
        _, tell = self.open[event.request_id]
        if isinstance(event, WarmEvent) and event.done:
            del self.open[event.request_id]
        if isinstance(event, TokenEvent) and event.finish_reason is not None:
            del self.open[event.request_id]
        tell(event)

    def die(self) -> None:
        self.is_gone = True
        for name, (message, _) in list(self.open.items()):
            lost = WorkerLost("gone")
            self.say(failed(name, lost, is_warm=isinstance(message, WarmRequest)))

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def finish(self, request_id: str, reply_index: int = 0) -> None:
        self.cancelled.append(request_id)

    def probe(self, parts: Sequence[PromptPart], namespace: str) -> Sequence[bool]:
        return [False] * len(parts)

    def ask(
        self,
        question: Question,
        parts: Sequence[PromptPart] = (),
        namespace: str = "",
        number: int = 0,
    ) -> Any:
        raise WorkerLost("not asked here")

    def delete(self, parts: Sequence[PromptPart], namespace: str) -> None:
        pass
