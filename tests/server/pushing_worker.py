"""A fake worker that pushes its events from a thread, as a real one does, at a pace of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hypic_sdk.service.worker_port import Event
from hypic_sdk.transport.messages import EngineRequest, WarmRequest
from tests.service.fake_worker import FakeWorker

POOL = {"free": 60, "reserved": 0, "filling": 0, "idle": 30, "pinned": 10}
USAGE: Mapping[str, Any] = {
    "budget_bytes": 300,
    "unused_bytes": 0,
    "state_rows": POOL,
    "transition_rows": POOL,
    "kv_slots": POOL,
    "num_segments": 2,
    "num_chains": 1,
    "num_filling": 0,
    "num_leases": 0,
    "num_evicted": 7,
}


class PushingWorker(FakeWorker):
    """The fake worker for callers with `on_event`; also the status of itself."""

    def __init__(self, reply: Any = (), *, pause_s: float = 0.0, ends: bool = True) -> None:
        super().__init__(reply, ends=ends)
        self.pause_s = pause_s
        self.ready = True
        self.number = 1  # another one is another, empty store
        self.refuses: Exception | None = None  # raised by `submit`
        self.num_refused = 0
        self.threads: list[threading.Thread] = []

    def submit(
        self,
        message: EngineRequest | WarmRequest,
        on_event: Callable[[Event], None] | None = None,
    ) -> Iterator[Event]:
        if self.refuses is not None:
            self.num_refused += 1
            raise self.refuses
        if on_event is None or isinstance(message, WarmRequest):
            return super().submit(message, on_event)
        self.messages.append(message)
        thread = threading.Thread(target=self._push, args=(message, on_event))
        self.threads.append(thread)
        thread.start()
        return iter(())

    def _push(self, message: EngineRequest, on_event: Callable[[Event], None]) -> None:
        for event in self._generate(message):
            time.sleep(self.pause_s)
            on_event(event)

    def join(self) -> None:
        """Wait for every thread that was begun."""
        for thread in self.threads:
            thread.join(timeout=10)
            assert not thread.is_alive()

    def is_ready(self) -> bool:
        return self.ready

    def generation(self) -> int:
        return self.number

    def usage(self) -> Mapping[str, Any]:
        return USAGE
