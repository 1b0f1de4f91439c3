"""The two ends of a link beside the courier: entries that come in, entries that go out."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch

from hypic_sdk.errors import HypicError, TransferFailed, from_payload
from hypic_sdk.links.link_address import LinkAddress, PairLink
from hypic_sdk.links.pair_link import PendingLink, join
from hypic_sdk.transport.peer_messages import Carrier, EntryReady, EntryRefused, FetchEntry

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
TRANSFER_TIMEOUT_S = 5.0  # of one entry, from the word that it comes to its last byte, and ...
LEAST_BYTES_PER_S = 20e6  # ... a second more for so many: a slower link is no better than none

MAX_LATE = 3
"""Entries in a row that did not come: then the link is made anew, whatever is wrong with it."""

Digest = Callable[[torch.Tensor], bytes]


@dataclass(frozen=True, slots=True)
class Packed:
    """A copy of an entry, ready to be sent."""

    payload: torch.Tensor  # [num_bytes] uint8, contiguous, nobody else's
    made_ms: float = 0.0  # what making the entry took just now; 0: it was held
    is_written: Any = None  # of a GPU: the event after the copy, on the stream that makes it

    @classmethod
    def of(cls, payload: torch.Tensor, made_ms: float) -> Packed:
        """A copy that this thread has begun to make."""
        if payload.device.type != "cuda":
            return cls(payload, made_ms)
        is_written = torch.cuda.Event()
        is_written.record(torch.cuda.current_stream(payload.device))
        return cls(payload, made_ms, is_written)

    def wait(self) -> torch.Tensor:
        """The payload, for this thread's stream, which waits until it is written."""
        if self.is_written is not None:
            stream = torch.cuda.current_stream(self.payload.device)
            stream.wait_event(self.is_written)
            self.payload.record_stream(stream)
        return self.payload


def copy_stream(device: torch.device) -> AbstractContextManager[Any]:
    """What is queued inside the block, by this thread, does not wait for the engine's forwards."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device, priority=-1))


@dataclass(frozen=True, slots=True)
class Arrival:
    """What became of a fetch: a payload that passed its check, or an error."""

    ticket: int
    payload: torch.Tensor | None = None  # [num_bytes] uint8
    made_ms: float = 0.0  # time that making it took there; 0: it was held
    error: HypicError | None = None


def transfer_timeout_s(num_bytes: int) -> float:
    """How long both ends wait for one entry."""
    return TRANSFER_TIMEOUT_S + num_bytes / LEAST_BYTES_PER_S


@final
class Inbound:
    """Entries from one peer under one epoch: they come one after the other, on one thread."""

    def __init__(
        self, host: str, epoch: int, device: torch.device, digest: Digest, carrier: Carrier
    ) -> None:
        self._pending = PendingLink(host, epoch, timeout_s=CONNECT_TIMEOUT_S, carrier=carrier)
        self.address = self._pending.address
        self.is_broken = False
        self._device = device
        self._digest = digest
        self._link: PairLink | None = None
        self._lock = threading.Lock()
        self.num_taken = 0  # entries that came whole
        self._num_late = 0  # that did not come, since the last that did
        self._awaited: dict[int, tuple[float, Callable[[Arrival], None]]] = {}
        self._announced: set[int] = set()  # their bytes are on the way: they have time of their own
        self._inbox: queue.SimpleQueue[EntryReady | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hypic-link-in", daemon=True)
        self._thread.start()

    def expect(self, ticket: int, deadline_s: float, tell: Callable[[Arrival], None]) -> bool:
        """An entry is to be asked for; `tell` gets what becomes of it.  False: it broke."""
        with self._lock:
            if self.is_broken:
                return False
            self._awaited[ticket] = (deadline_s, tell)
            return True

    def take(self, message: EntryReady | EntryRefused) -> None:
        """The peer says that an entry comes next, or does not come."""
        if isinstance(message, EntryRefused):
            error = from_payload(message.error)
            if message.breaks_link:
                self._break(error)
            else:
                self.fail(message.ticket, error)
            return
        with self._lock:
            if self.is_broken:
                return  # nobody reads this link any more
            self._announced.add(message.ticket)
        self._inbox.put(message)

    def fail(self, ticket: int, error: HypicError) -> None:
        """An entry does not come."""
        self._arrive(Arrival(ticket, error=error))

    def forget(self, ticket: int) -> bool:
        """Tell nobody of an entry, should it come; whether it was awaited."""
        with self._lock:
            return self._awaited.pop(ticket, None) is not None

    def overdue(self, now_s: float) -> list[int]:
        """Fail what did not begin to come in time; returns those tickets."""
        with self._lock:
            late = [
                ticket
                for ticket, (deadline_s, _) in self._awaited.items()
                if now_s > deadline_s and ticket not in self._announced
            ]
        for ticket in late:
            self.fail(ticket, TransferFailed("the other worker did not send the entry in time"))
        self._num_late += len(late)
        if self._num_late >= MAX_LATE:
            # its sender may hang where nothing can be told
            self._break(TransferFailed(f"{self._num_late} entries in a row did not come in time"))
        return late

    def _arrive(self, arrival: Arrival) -> None:
        with self._lock:
            known = self._awaited.pop(arrival.ticket, None)
            self._announced.discard(arrival.ticket)
        if known is not None:
            known[1](arrival)

    def _run(self) -> None:
        with copy_stream(self._device):
            self._take_all()

    def _take_all(self) -> None:
        while (message := self._inbox.get()) is not None:
            try:
                self._arrive(self._receive(message))
            except HypicError as error:
                # bytes of this epoch can not be told apart any more
                self._break(error)
                return
            except Exception as error:  # no memory for it, for one: who waits is told all the same
                logger.exception("an entry could not be taken in")
                self._break(TransferFailed(f"an entry could not be taken in: {error}"))
                return

    def _receive(self, message: EntryReady) -> Arrival:
        """The payload of the next entry; dropped ones are received as well, to stay in step."""
        if self._link is None:
            self._link = self._pending.accept()
            if self.is_broken:
                self._link.close()
        payload = self._link.receive(
            message.num_bytes,
            timeout_s=transfer_timeout_s(message.num_bytes),
            device=self._device,
            number=message.ticket,
        )
        if self._digest(payload) != message.digest:
            raise TransferFailed("an entry came with other bytes than were sent")
        self.num_taken += 1
        self._num_late = 0
        return Arrival(message.ticket, payload, message.made_ms)

    def _break(self, error: HypicError) -> None:
        with self._lock:
            was_broken, self.is_broken = self.is_broken, True
            tickets = list(self._awaited)
        if not was_broken:
            logger.info("link of epoch %d ends: %s", self.address.epoch, error)
        self._inbox.put(None)
        self._pending.close()
        if self._link is not None:
            self._link.close()
        for ticket in tickets:
            self.fail(ticket, error)

    def close(self, error: HypicError) -> None:
        """Take nothing more; what is awaited is told as lost."""
        self._break(error)


@final
class Outbound:
    """Entries to one peer under one epoch."""

    def __init__(
        self,
        address: LinkAddress,
        device: torch.device,
        digest: Digest,
        announce: Callable[[str, EntryReady], None],
        tell_broken: Callable[[FetchEntry, HypicError], None],
        worker: str,
    ) -> None:
        self.address = address
        self._device = device
        self._digest = digest
        self._announce = announce
        self._tell_broken = tell_broken
        self._worker = worker
        self._link: PairLink | None = None
        self._broken: HypicError | None = None
        self._inbox: queue.SimpleQueue[tuple[FetchEntry, Packed] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hypic-link-out", daemon=True)
        self._thread.start()

    def put(self, request: FetchEntry, packed: Packed) -> None:
        """Send an entry when those before it are sent; told to the asker if that fails."""
        self._inbox.put((request, packed))

    def _run(self) -> None:
        with copy_stream(self._device):
            self._send_all()
        if self._link is not None:
            self._link.close()

    def _send_all(self) -> None:
        while (item := self._inbox.get()) is not None:
            request, packed = item
            try:
                if self._broken is not None:
                    raise self._broken
                self._send(request, packed)
            except Exception as error:
                # bytes that were announced may be missing: nothing more goes by this link
                logger.warning("an entry was not sent to worker %s: %s", request.asker, error)
                self._broken = self._broken or TransferFailed(f"the link broke: {error}")
                self._tell_broken(request, self._broken)

    def _send(self, request: FetchEntry, packed: Packed) -> None:
        payload = packed.wait()
        digest = self._digest(payload)
        ready = EntryReady(
            request.ticket,
            self._worker,
            request.epoch,
            payload.numel(),
            digest,
            packed.made_ms,
        )
        self._announce(request.asker, ready)
        if self._link is None:
            self._link = join(self.address, timeout_s=CONNECT_TIMEOUT_S)
        timeout_s = transfer_timeout_s(payload.numel())
        self._link.send(payload, timeout_s=timeout_s, number=request.ticket)

    def close(self, error: HypicError) -> None:
        """Send nothing more; what is being sent fails."""
        self._broken = error
        self._inbox.put(None)
        if self._link is not None:
            self._link.close()
