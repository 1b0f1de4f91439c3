"""An event loop on a thread of its own, for callers that wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar, final

from hypic_sdk.errors import ConnectionFailed

Result = TypeVar("Result")


@final
class LoopThread:
    """Runs coroutines for any thread; begun at the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """The result of a coroutine; an interrupt of this thread cancels it.

        Raises:
            ConnectionFailed: the client was closed.
        """
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            # also a KeyboardInterrupt of this thread: what was asked for is no longer wanted
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Begin a coroutine; raises as `run`."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._running())
        except ConnectionFailed:
            coroutine.close()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._is_closed:
                raise ConnectionFailed("the client was closed", sent=False)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._work, args=(self._loop,), name="hypic-client", daemon=True
                )
                self._thread.start()
                # a client that nobody closed ends with its last user
                weakref.finalize(self, _stop, self._loop)
            return self._loop

    @staticmethod
    def _work(loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        finally:
            _end_tasks(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def close(self) -> None:
        """End the loop; what is still running on it is cancelled.  A second time does nothing."""
        with self._lock:
            self._is_closed = True
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    """End a loop, if nobody has yet."""
    with contextlib.suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(loop.stop)


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
