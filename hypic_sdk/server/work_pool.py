"""Threads for what may take long, so that the event loop never does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar, final

from hypic_sdk.errors import QueueFull

Given = ParamSpec("Given")
Result = TypeVar("Result")


@final
class WorkPool:
    """A few threads, and a bounded queue before them."""

    def __init__(self, name: str, *, num_threads: int, max_waiting: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=f"hypic-{name}")
        self._limit = num_threads + max_waiting
        self._lock = threading.Lock()
        self._num_held = 0

    async def run(
        self, function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Result:
        """Call a function on a thread.  Cancelled before its turn, it is not called.

        Raises:
            QueueFull: as many calls wait as may wait.
        """
        with self._lock:
            if self._num_held >= self._limit:
                raise QueueFull(
                    f"{self._limit} calls wait for a thread, no more may", limit=self._limit
                )
            self._num_held += 1
        future = self._executor.submit(function, *args, **kwargs)
        future.add_done_callback(self._release)
        return await asyncio.wrap_future(future)

    def _release(self, future: Future[Result]) -> None:
        with self._lock:
            self._num_held -= 1

    def close(self) -> None:
        """Drop what waits, and wait for what runs."""
        self._executor.shutdown(wait=True, cancel_futures=True)
