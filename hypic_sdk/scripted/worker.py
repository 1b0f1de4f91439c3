"""A thread that says what the author writes, token by token: a `WorkerPort` without a model."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, final

from hypic_sdk.config import EngineConfig
from hypic_sdk.errors import (
    DeadlineExceeded,
    HypicError,
    PromptTooLong,
    RequestCancelled,
    RequestError,
    WorkerError,
    WorkerLost,
)
from hypic_sdk.prompt.segment import PromptPart
from hypic_sdk.scripted.answers import answer_of
from hypic_sdk.scripted.author import Author
from hypic_sdk.scripted.books import Books
from hypic_sdk.scripted.running import Running, Warming
from hypic_sdk.transport.control import Ask, Question
from hypic_sdk.transport.events import Event, failed, is_last
from hypic_sdk.transport.messages import EngineRequest, WarmRequest

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0


@final
class ScriptedWorker:
    """Takes requests as an engine's worker does; safe to call from any thread.

    Every request that was accepted gets its last event, also when the worker is closed.
    """

    def __init__(
        self,
        author: Author,
        config: EngineConfig,
        *,
        conv_width: int,
        max_context_tokens: int,
        vocab_size: int,
        token_s: float = 0.0,
    ) -> None:
        """`token_s`: time between two tokens of a request."""
        self._author = author
        self._books = Books(config, conv_width)
        self.max_context_tokens = max_context_tokens
        self._vocab_size = vocab_size
        self._token_s = token_s
        # a stream that is collected cancels, and collection may come inside of any block
        self._changed = threading.Condition(threading.RLock())
        self._running: dict[str, Running | Warming] = {}
        self._listeners: dict[str, Callable[[Event], None]] = {}
        self._cancelled: set[str] = set()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="hypic-scripted", daemon=True)
        self._thread.start()

    # -- WorkerPort

    def submit(
        self,
        message: EngineRequest | WarmRequest,
        on_event: Callable[[Event], None] | None = None,
    ) -> Iterator[Event]:
        """Begin a request.

        Raises:
            WorkerLost: the worker was closed.
            RequestError: a request of that id is in flight.
        """
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        request_id = message.request_id
        with self._changed:
            if self._is_closed:
                raise WorkerLost("the worker was closed")
            if request_id in self._listeners:
                raise RequestError("a request of that id is in flight", request_id=request_id)
            self._listeners[request_id] = on_event or events.put
            self._running[request_id] = (
                Warming(message) if isinstance(message, WarmRequest) else Running(message)
            )
            self._changed.notify_all()
        return _until_last(events)

    def cancel(self, request_id: str) -> None:
        """End a request; unknown and ended ones are ignored."""
        with self._changed:
            if request_id in self._running:
                self._cancelled.add(request_id)
                self._changed.notify_all()

    def finish(self, request_id: str, reply_index: int = 0) -> None:
        """End one reply as if an end token had come; unknown and ended ones are ignored."""
        with self._changed:
            running = self._running.get(request_id)
            if isinstance(running, Running):
                running.finish(reply_index)
                self._changed.notify_all()

    def probe(self, parts: Sequence[PromptPart], namespace: str) -> list[bool]:
        """Which segments are held."""
        held: list[bool] = self.ask(Question.PROBE, parts, namespace)
        return held

    def delete(self, parts: Sequence[PromptPart], namespace: str) -> None:
        """Drop segments, and every chain that contains one."""
        self.ask(Question.DELETE, parts, namespace)

    def ask(
        self,
        question: Question,
        parts: Sequence[PromptPart] = (),
        namespace: str = "",
        number: int = 0,
    ) -> Any:
        """What the books say, by the question's own word."""
        with self._changed:
            return answer_of(Ask(0, question, tuple(parts), namespace, number), self._books)

    # -- its status

    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return not self._is_closed

    def generation(self) -> int:
        """Always the same: it is never started again."""
        return 1

    def usage(self) -> dict[str, Any]:
        """The books, as a store's."""
        usage: dict[str, Any] = self.ask(Question.USAGE)
        return usage

    def close(self) -> None:
        """Stop; whatever is in flight ends with WorkerLost."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._running)
                if self._is_closed:
                    break
                running = list(self._running.values())
            for one in running:
                for event in self._advance(one):
                    self._deliver(event)
            if self._token_s:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._is_closed or self._cancelled, self._token_s
                    )
        self._lose_all()

    def _advance(self, one: Running | Warming) -> list[Event]:
        """The events of one step of a request; the last one is its error if it fails."""
        request_id = one.message.request_id
        try:
            with self._changed:
                self._check_wanted(one)
                if isinstance(one, Warming):
                    return one.step(self._books)
                if not one.is_begun:
                    self._check(one.message)
                    one.begin(self._books, self._author, self.max_context_tokens)
                return one.step(self._books)
        except HypicError as error:
            return [self._failed(one, error)]
        except Exception as error:
            # a bug of ours that only this request met
            logger.exception("a scripted request failed request=%s", request_id)
            return [self._failed(one, WorkerError(f"the request failed: {error}"))]

    @staticmethod
    def _failed(one: Running | Warming, error: HypicError) -> Event:
        if isinstance(one, Running):
            return one.failed(error)
        return failed(one.message.request_id, error, is_warm=True)

    def _check_wanted(self, one: Running | Warming) -> None:
        if one.message.request_id in self._cancelled:
            raise RequestCancelled("the request was cancelled", request_id=one.message.request_id)
        timeout_s = one.message.timeout_s if isinstance(one.message, EngineRequest) else None
        if timeout_s is not None and time.monotonic() - one.submitted_s > timeout_s:
            raise DeadlineExceeded(
                f"the request did not end within its {timeout_s:g} s", timeout_s=timeout_s
            )

    def _check(self, message: EngineRequest) -> None:
        """What an engine's door checks."""
        num_tokens, limit = message.prompt.num_tokens, self.max_context_tokens
        if num_tokens + min(1, message.sampling.max_tokens) > limit:
            raise PromptTooLong(
                f"the prompt has {num_tokens} tokens, the context holds {limit} with the answer: "
                "shorten it",
                num_tokens=num_tokens,
                limit_tokens=limit,
            )
        if not all(0 <= token_id < self._vocab_size for token_id in message.prompt.token_ids):
            raise RequestError(
                f"token ids run from 0 to {self._vocab_size - 1}", vocab_size=self._vocab_size
            )

    def _deliver(self, event: Event) -> None:
        with self._changed:
            listener = self._listeners.get(event.request_id)
            if is_last(event):
                self._listeners.pop(event.request_id, None)
                self._running.pop(event.request_id, None)
                self._cancelled.discard(event.request_id)
        if listener is None:
            return
        try:
            listener(event)
        except Exception:
            logger.exception("a listener failed request=%s", event.request_id)

    def _lose_all(self) -> None:
        for one in list(self._running.values()):
            self._deliver(self._failed(one, WorkerLost("the worker was closed")))


def _until_last(events: queue.SimpleQueue[Event]) -> Iterator[Event]:
    while True:
        event = events.get()
        yield event
        if is_last(event):
            return
