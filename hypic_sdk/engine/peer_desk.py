"""One worker's dealings with the others: what they ask of its engine, and what it asks of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.worker import LocalWorker
from hypic_sdk.errors import HypicError, from_payload
from hypic_sdk.links.courier import Courier, Give, Wanted
from hypic_sdk.links.link_ends import Arrival, Packed
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import SegmentStatus, WarmEvent, WarmRequest
from hypic_sdk.transport.peer_messages import FetchEntry

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Asked:
    """A peer's fetch on its way through the engine."""

    request: FetchEntry
    give: Give
    made_ms: float = 0.0
    is_given: bool = False  # an entry that can not be made is told of by two events


@final
class PeerDesk:
    """An `EntrySource`: a peer's fetch is a warm request here, whose entry is then packed."""

    def __init__(self, worker: LocalWorker) -> None:
        self._worker = worker

    def provide(self, request: FetchEntry, give: Give) -> None:
        """Find or make the entry; it is packed on the engine's thread, between two steps."""
        message = WarmRequest(
            _request_id(request.asker, request.ticket), (request.part,), request.namespace,
            for_request=True,
        )  # fmt: skip
        asked = _Asked(request, give)
        try:
            # two that wait for one another's entry would wait for ever: who is asked makes it
            self._worker.post(lambda engine: engine.make_here(request.part, request.namespace))
            self._worker.submit(message, partial(self._take, asked))
        except HypicError as error:
            give(error)

    def _take(self, asked: _Asked, event: Event) -> None:
        assert isinstance(event, WarmEvent), "a warm request has warm events"
        if event.status is SegmentStatus.COLD:
            asked.made_ms += event.cold_ms
        if event.error is not None and not asked.is_given:
            asked.is_given = True
            asked.give(from_payload(event.error))
        elif event.done and not asked.is_given:
            asked.is_given = True
            self._worker.post(partial(self._pack, asked.request, asked.made_ms, asked.give))

    def _pack(self, request: FetchEntry, made_ms: float, give: Give, engine: Engine) -> None:
        try:
            payload = engine.pack(request.part, request.key, request.namespace)
        except HypicError as error:
            give(error)
        else:
            give(Packed.of(payload, made_ms))

    def drop(self, asker: str, ticket: int) -> None:
        """Nobody waits for it any more; what others wait for goes on."""
        self._worker.cancel(_request_id(asker, ticket))


def _request_id(asker: str, ticket: int) -> str:
    return f"fetch/{asker}/{ticket}"


@final
class PeerFetcher:
    """An `EntryFetcher`: arrivals are told between two steps of the engine."""

    def __init__(self, courier: Courier, worker: LocalWorker) -> None:
        self._courier = courier
        self._worker = worker

    def fetch(self, worker: str, wanted: Wanted, tell: Callable[[Arrival], None]) -> int:
        """Ask a peer for an entry."""
        return self._courier.fetch(worker, wanted, partial(self._post, tell))

    def _post(self, tell: Callable[[Arrival], None], arrival: Arrival) -> None:
        self._worker.post(lambda engine: tell(arrival))

    def drop(self, worker: str, ticket: int) -> None:
        """An entry is not wanted any more."""
        self._courier.drop(worker, ticket)
