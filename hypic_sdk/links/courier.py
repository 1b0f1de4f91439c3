"""Fetches entries from other workers and sends ours to them, beside the engine's own thread."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Protocol, Self, final

import torch

from hypic_sdk.errors import HypicError, TransferFailed, WorkerError, WorkerLost
from hypic_sdk.links.link_address import LinkAddress
from hypic_sdk.links.link_ends import Arrival, Digest, Inbound, Outbound, Packed
from hypic_sdk.prompt.segment import PromptPart, SegmentKey
from hypic_sdk.transport.control import Alive
from hypic_sdk.transport.peer_channel import PeerChannel
from hypic_sdk.transport.peer_messages import (
    Carrier,
    DropFetch,
    EntryReady,
    EntryRefused,
    FetchEntry,
    PeerMessage,
)

logger = logging.getLogger(__name__)

POLL_S = 0.1
MAX_REST_S = 30.0  # of links from a peer that break each time


@dataclass(frozen=True, slots=True)
class Wanted:
    """An entry to be fetched."""

    part: PromptPart
    namespace: str
    key: SegmentKey
    timeout_s: float


@dataclass(frozen=True, slots=True)
class _Rest:
    """Links from a peer that broke before anything came, one after the other."""

    num_useless: int = 0
    until_s: float = 0.0
    broken: Inbound | None = None  # the last that was counted


Give = Callable[[Packed | HypicError], None]


class EntrySource(Protocol):
    """The engine's side of what peers ask for.  Called on the courier's thread; must not wait."""

    def provide(self, request: FetchEntry, give: Give) -> None:
        """Find or make the entry, then call `give` once, from any thread."""
        ...

    def drop(self, asker: str, ticket: int) -> None:
        """Nobody waits for it any more."""
        ...


@final
class Courier:
    """One worker's post: `fetch` from any thread; arrivals are told on a thread of the courier.

    Every fetch gets exactly one `Arrival`, in time: peers that die, stop or go silent included.
    """

    def __init__(
        self,
        channel: PeerChannel,
        worker: str,
        source: EntrySource,
        *,
        digest: Digest,
        compute_fingerprint: str,
        device: torch.device,
        carrier: Carrier = Carrier.TCP,
        host: str = "127.0.0.1",
    ) -> None:
        """
        Args:
            digest: of a payload.
            device: where payloads lie.
            carrier: of what this worker asks for.
            host: this worker's address for links.
        """
        self._channel = channel
        self._worker = worker
        self._source = source
        self._digest = digest
        self._fingerprint = compute_fingerprint
        self._device = device
        self._carrier = carrier
        self._host = host
        self._lock = threading.Lock()
        self._tickets = itertools.count(1)
        self._inbound: dict[str, Inbound] = {}
        self._outbound: dict[str, Outbound] = {}
        self._num_fetched = self._num_not_fetched = self._fetched_bytes = 0
        self._rests: dict[str, _Rest] = {}
        self._lost: set[str] = set()  # ids are used once: one a death
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hypic-courier", daemon=True)
        self._thread.start()

    @property
    def worker(self) -> str:
        """The id of this worker."""
        return self._worker

    # -- what we want of others

    def fetch(self, worker: str, wanted: Wanted, tell: Callable[[Arrival], None]) -> int:
        """Ask a peer for an entry; returns the ticket, and `tell` gets its arrival."""
        ticket = next(self._tickets)
        tell = partial(self._count, tell)
        try:
            inbound = self._expect(worker, ticket, time.monotonic() + wanted.timeout_s, tell)
        except HypicError as error:
            tell(Arrival(ticket, error=error))
            return ticket
        address = inbound.address
        message = FetchEntry(
            ticket, self._worker, wanted.part, wanted.namespace, wanted.key, self._fingerprint,
            address.host, address.port, address.epoch, wanted.timeout_s, address.carrier,
            address.token,
        )  # fmt: skip
        try:
            self._channel.send(worker, message)
        except WorkerLost as error:
            inbound.fail(ticket, error)
        return ticket

    def _count(self, tell: Callable[[Arrival], None], arrival: Arrival) -> None:
        with self._lock:
            came = arrival.payload
            self._num_fetched += came is not None
            self._num_not_fetched += came is None
            self._fetched_bytes += 0 if came is None else came.numel()
        tell(arrival)

    def alive(self) -> Alive:
        """A sign of life, with what was counted so far."""
        at = self._channel.endpoint
        with self._lock:
            return Alive(
                self._worker, self._num_fetched, self._num_not_fetched, self._fetched_bytes,
                at if at.startswith("tcp://") else "",
            )  # fmt: skip

    def meet(self, worker: str, endpoint: str) -> None:
        """A peer of another host takes messages there.  Raises ConfigError: not a TCP address."""
        with self._lock:
            is_known = worker in self._lost or worker == self._worker
        if not is_known:
            self._channel.learn(worker, endpoint)

    def _expect(
        self, worker: str, ticket: int, deadline_s: float, tell: Callable[[Arrival], None]
    ) -> Inbound:
        """The link by which the entry is to come; another one if the last broke.

        Raises:
            WorkerLost: the peer is gone, or this courier is closing.
            TransferFailed: no link can be made here.
        """
        with self._lock:
            if worker in self._lost or self._is_closing.is_set():
                raise WorkerLost(f"worker {worker} is gone")
            inbound = self._inbound.get(worker)
            if inbound is None or not inbound.expect(ticket, deadline_s, tell):
                self._pause(worker, inbound)
                epoch = 1 if inbound is None else inbound.address.epoch + 1
                inbound = Inbound(self._host, epoch, self._device, self._digest, self._carrier)
                inbound.expect(ticket, deadline_s, tell)
                self._inbound[worker] = inbound
            return inbound

    def _pause(self, worker: str, broken: Inbound | None) -> None:
        """Try no new link for a while after several that carried nothing; under the lock.

        Each try may take seconds to fail, while a request waits for it.
        """
        now_s = time.monotonic()
        rest = self._rests.get(worker, _Rest())
        if broken is not None and broken.num_taken == 0 and broken is not rest.broken:
            pause_s = 0.0 if rest.num_useless == 0 else min(MAX_REST_S, 2.0**rest.num_useless)
            rest = _Rest(rest.num_useless + 1, now_s + pause_s, broken)
        elif broken is not None and broken.num_taken:
            rest = _Rest()
        self._rests[worker] = rest
        if now_s < rest.until_s:
            raise TransferFailed(f"links from worker {worker} break: none is tried for a while")

    def drop(self, worker: str, ticket: int) -> None:
        """A fetch is not wanted any more; its arrival is not told."""
        with self._lock:
            inbound = self._inbound.get(worker)
        if inbound is not None and inbound.forget(ticket):
            self._tell_peer(worker, DropFetch(ticket, self._worker))

    def lose(self, worker: str) -> None:
        """A peer is gone for good: whatever was to come from it does not come."""
        with self._lock:
            self._lost.add(worker)
            self._rests.pop(worker, None)
            inbound = self._inbound.pop(worker, None)
            outbound = self._outbound.pop(worker, None)
        self._channel.forget(worker)
        _close(filter(None, (inbound, outbound)), WorkerLost(f"worker {worker} is gone"))

    # -- the thread

    def _run(self) -> None:
        while not self._is_closing.is_set():
            try:
                message = self._channel.receive(POLL_S)
                if message is not None:
                    self._take(message)
                self._expire()
            except WorkerError:
                logger.exception("a message of another worker was not understood")
            except Exception:
                # a bug that one message met; the other fetches need this thread
                logger.exception("a message of another worker could not be dealt with")

    def _take(self, message: object) -> None:
        match message:
            case FetchEntry():
                self._serve(message)
            case DropFetch():
                self._source.drop(message.asker, message.ticket)
            case EntryReady() | EntryRefused():
                with self._lock:
                    inbound = self._inbound.get(message.sender)
                if inbound is not None and inbound.address.epoch == message.epoch:
                    inbound.take(message)
            case _:
                logger.error("a message of another direction: %s", type(message).__name__)

    def _expire(self) -> None:
        with self._lock:
            ends = list(self._inbound.items())
        now_s = time.monotonic()
        for worker, inbound in ends:
            for ticket in inbound.overdue(now_s):
                self._tell_peer(worker, DropFetch(ticket, self._worker))

    # -- what others want of us

    def _serve(self, request: FetchEntry) -> None:
        if request.compute_fingerprint != self._fingerprint:
            error = TransferFailed("the other worker computes with other bits")
            self._refuse(request, error)
            return

        def give(result: Packed | HypicError) -> None:
            if isinstance(result, HypicError):
                self._refuse(request, result)
            elif (outbound := self._outbound_of(request)) is not None:
                outbound.put(request, result)

        self._source.provide(request, give)

    def _refuse(self, request: FetchEntry, error: HypicError, *, breaks_link: bool = False) -> None:
        refusal = EntryRefused(
            request.ticket, self._worker, request.epoch, error.to_payload(), breaks_link
        )
        self._tell_peer(request.asker, refusal)

    def _outbound_of(self, request: FetchEntry) -> Outbound | None:
        """The link to the asker; none if it is gone, or has a later link than it asked by."""
        address = LinkAddress(
            request.host, request.port, request.epoch, request.carrier, request.token
        )
        with self._lock:
            if request.asker in self._lost or self._is_closing.is_set():
                return None
            outbound = self._outbound.get(request.asker)
            if outbound is not None and outbound.address.epoch > request.epoch:
                return None
            if outbound is None or outbound.address != address:
                if outbound is not None:
                    outbound.close(TransferFailed("the other end began a new epoch"))
                outbound = Outbound(
                    address,
                    self._device,
                    self._digest,
                    self._announce,
                    partial(self._refuse, breaks_link=True),
                    self._worker,
                )
                self._outbound[request.asker] = outbound
            return outbound

    def _announce(self, asker: str, message: EntryReady) -> None:
        self._channel.send(asker, message)

    def _tell_peer(self, worker: str, message: PeerMessage) -> None:
        try:
            self._channel.send(worker, message)
        except WorkerLost:
            logger.info("worker %s is not there for %s", worker, type(message).__name__)

    # -- the end

    def close(self) -> None:
        """End the threads; what is still awaited is told as lost."""
        self._is_closing.set()
        self._thread.join()
        with self._lock:
            ends: list[Inbound | Outbound] = [*self._inbound.values(), *self._outbound.values()]
            self._inbound, self._outbound = {}, {}
        _close(ends, WorkerLost("this worker is closing"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _close(ends: Iterable[Inbound | Outbound], error: HypicError) -> None:
    for end in ends:
        end.close(error)
