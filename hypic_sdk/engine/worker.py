"""A thread that drives one engine: messages in, events out."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar, final

from hypic_sdk.engine.engine import Engine
from hypic_sdk.errors import RequestError, WorkerError, WorkerLost
from hypic_sdk.transport.events import Event, failed, is_last
from hypic_sdk.transport.messages import EngineRequest, WarmRequest

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

CHECK_INTERVAL_S = 60.0


@final
class EventStream:
    """The events of one request, as they come; iterating blocks, and ends after the last event."""

    def __init__(self, request_id: str, cancel: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._cancel = cancel
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.is_over = False  # the last event was taken

    def put(self, event: Event) -> None:
        """Called by the worker."""
        self._events.put(event)

    def get(self, timeout_s: float | None = None) -> Event:
        """The next event.  Raises queue.Empty after `timeout_s`, StopIteration after the last."""
        if self.is_over:
            raise StopIteration
        event = self._events.get(timeout=timeout_s)
        self.is_over = is_last(event)
        return event

    def cancel(self) -> None:
        """Ask the worker to end the request; its last event still comes."""
        self._cancel(self.request_id)

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return self.get()


@final
class LocalWorker:
    """One engine on a thread of its own; safe to call from any thread.

    Every request that was accepted gets its last event, also when the engine breaks or the worker
    is closed.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # a stream that is collected cancels, and collection may come inside of any block
        self._lock = threading.RLock()
        self._listeners: dict[str, tuple[bool, Callable[[Event], None]]] = {}
        self._is_closed = False
        self._checked_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="hypic-engine", daemon=True)
        self._thread.start()
        # a program may end without closing: a thread inside of torch would abort the process then
        atexit.register(self.close)

    def submit(
        self,
        message: EngineRequest | WarmRequest,
        on_event: Callable[[Event], None] | None = None,
    ) -> EventStream:
        """Begin a request.

        Args:
            on_event: gets every event instead of the stream, on the worker's thread; must be quick.
        Raises:
            WorkerLost: the worker was closed.
            RequestError: a request of that id is in flight.
        """
        request_id = message.request_id
        stream = EventStream(request_id, self.cancel)
        is_warm = isinstance(message, WarmRequest)
        with self._lock:
            self._check_open()
            if request_id in self._listeners:
                raise RequestError("a request of that id is in flight", request_id=request_id)
            self._listeners[request_id] = (is_warm, on_event or stream.put)
            self._inbox.put(lambda: self._begin(message))
        return stream

    def _begin(self, message: EngineRequest | WarmRequest) -> None:
        try:
            if isinstance(message, WarmRequest):
                self._engine.warm(message)
            else:
                self._engine.submit(message)
        except Exception as error:
            # a bug of ours that only this request met
            logger.exception("a request was not taken request=%s", message.request_id)
            lost = WorkerError(f"the request was not taken: {error}")
            self._deliver(
                failed(message.request_id, lost, is_warm=isinstance(message, WarmRequest))
            )

    def cancel(self, request_id: str) -> None:
        """End a request; unknown and ended ones are ignored."""
        with self._lock:
            if not self._is_closed:
                self._inbox.put(lambda: self._engine.cancel(request_id))

    def finish(self, request_id: str, reply_index: int = 0) -> None:
        """End one reply by STOP; unknown and ended ones are ignored."""
        with self._lock:
            if not self._is_closed:
                self._inbox.put(lambda: self._engine.finish(request_id, reply_index))

    def call(self, function: Callable[[Engine], Result]) -> Result:
        """Run `function` on the engine, between two of its steps, and wait for its result."""
        future: Future[Result] = Future()

        def work() -> None:
            try:
                future.set_result(function(self._engine))
            except Exception as error:  # the caller's to handle, on the caller's thread
                future.set_exception(error)

        with self._lock:
            self._check_open()
            self._inbox.put(work)
        return future.result()

    def post(self, function: Callable[[Engine], None]) -> None:
        """Run `function` on the engine between two of its steps, without waiting.

        It must not raise; after the worker was closed it is not run.
        """

        def work() -> None:
            try:
                function(self._engine)
            except Exception:
                logger.exception("a posted function failed")

        with self._lock:
            if not self._is_closed:
                self._inbox.put(work)

    def close(self) -> None:
        """Stop the thread and wait for it; whatever is in flight ends with WorkerLost."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._inbox.put(None)
        self._thread.join()
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise WorkerLost("the worker was closed")

    def _run(self) -> None:
        """The thread: commands between steps, one step after the other while there is work."""
        try:
            while self._do_commands():
                for event in self._step():
                    self._deliver(event)
        except Exception:
            logger.exception("the engine's thread ends")
        finally:
            self._lose_all()

    def _do_commands(self) -> bool:
        """Run what came in; wait for it if the engine is idle.  False: close."""
        while True:
            wait_s = None
            if not self._engine.has_work and self._inbox.empty():
                self._check_books()
                wait_s = self._engine.idle()
            has_work = self._engine.has_work
            try:
                command = self._inbox.get(block=not has_work, timeout=wait_s)
            except queue.Empty:
                if has_work:
                    return True
                continue  # it is time for another step of what is done while nobody waits
            if command is None:
                return False
            try:
                command()
            except Exception:
                logger.exception("a command failed")

    def _check_books(self) -> None:
        """Recount the store while nobody waits, now and then: a wrong count must not go unseen."""
        now_s = time.monotonic()
        if now_s - self._checked_s < CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        try:
            self._engine.check()
        except AssertionError:
            logger.exception("the store's books are wrong")

    def _step(self) -> list[Event]:
        try:
            return self._engine.step()
        except Exception as error:
            # a bug of ours; the requests in flight pay for it, the worker goes on
            logger.exception("a step failed")
            return self._engine.abort(WorkerError(f"a step failed: {error}"))

    def _deliver(self, event: Event) -> None:
        with self._lock:
            listener = self._listeners.get(event.request_id)
            if listener is not None and is_last(event):
                del self._listeners[event.request_id]
        if listener is not None:
            self._tell(listener[1], event)

    def _tell(self, listener: Callable[[Event], None], event: Event) -> None:
        try:
            listener(event)
        except Exception:
            logger.exception("a listener failed request=%s", event.request_id)

    def _lose_all(self) -> None:
        """Tell every open request that the worker is gone, and answer what is still queued."""
        with self._lock:
            self._is_closed = True
            listeners, self._listeners = self._listeners, {}
        while not self._inbox.empty():
            command = self._inbox.get()
            if command is not None:
                command()
        error = WorkerLost("the worker was closed")
        for request_id, (is_warm, listener) in listeners.items():
            self._tell(listener, failed(request_id, error, is_warm=is_warm))
        self._engine.abort(error)
