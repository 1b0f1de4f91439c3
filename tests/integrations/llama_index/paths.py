"""The eight ways to ask a LlamaIndex model, as one function each, and what they told on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.base import BaseEvent
from pydantic import PrivateAttr

from hypic_sdk.integrations.llama_index import Hypic


@dataclass(frozen=True)
class Path:
    """One way to ask.  `ask` gives every response that came; of a whole call there is one."""

    name: str
    is_chat: bool
    is_async: bool
    is_stream: bool

    def ask(self, llm: Hypic, prompt: str, **options: Any) -> list[Any]:
        if self.is_async:
            return asyncio.run(self.aask(llm, prompt, **options))
        result = self.method(llm)(self.asked(prompt), **options)
        return list(result) if self.is_stream else [result]

    async def aask(self, llm: Hypic, prompt: str, **options: Any) -> list[Any]:
        """The same on a running loop; connections of that loop are closed."""
        try:
            result = await self.method(llm)(self.asked(prompt), **options)
            return [one async for one in result] if self.is_stream else [result]
        finally:
            if (calls := llm.async_calls()) is not None and hasattr(calls, "close"):
                await calls.close()

    def method(self, llm: Hypic) -> Callable[..., Any]:
        return getattr(llm, self.name)

    def asked(self, prompt: str) -> Any:
        return [ChatMessage(prompt)] if self.is_chat else prompt

    def text(self, response: Any) -> str:
        return response.message.content if self.is_chat else response.text


PATHS = [
    Path("a" * is_async + "stream_" * is_stream + kind, is_chat, is_async, is_stream)
    for kind, is_chat in (("chat", True), ("complete", False))
    for is_async in (False, True)
    for is_stream in (False, True)
]


class _Handler(BaseEventHandler):
    _seen: list[BaseEvent] = PrivateAttr(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        return "test_handler"

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        self._seen.append(event)


@contextmanager
def events() -> Iterator[list[BaseEvent]]:
    """The instrumentation events of a block, in order."""
    dispatcher, handler = get_dispatcher(), _Handler()
    dispatcher.add_event_handler(handler)
    try:
        yield handler._seen
    finally:
        dispatcher.event_handlers.remove(handler)


class Callbacks(BaseCallbackHandler):
    """Older callbacks: starts and ends of model calls."""

    def __init__(self) -> None:
        super().__init__([], [])
        self.starts: list[dict[EventPayload, Any]] = []
        self.ends: list[dict[EventPayload, Any]] = []

    def on_event_start(
        self, event_type: CBEventType, payload: Any = None, event_id: str = "", **kwargs: Any
    ) -> str:
        if event_type is CBEventType.LLM:
            self.starts.append(payload)
        return event_id

    def on_event_end(
        self, event_type: CBEventType, payload: Any = None, event_id: str = "", **kwargs: Any
    ) -> None:
        if event_type is CBEventType.LLM:
            self.ends.append(payload)

    def start_trace(self, trace_id: str | None = None) -> None: ...

    def end_trace(self, trace_id: str | None = None, trace_map: Any = None) -> None: ...

    def manager(self) -> CallbackManager:
        return CallbackManager([self])
