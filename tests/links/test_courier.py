"""Every fetch gets one arrival, the right bytes or an error: whatever the peer does."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hypic_sdk.config import SeamWidths
from hypic_sdk.errors import NumericsError, TransferFailed, WorkerLost
from hypic_sdk.links import link_ends
from hypic_sdk.links.courier import Courier, Give, Wanted
from hypic_sdk.links.link_ends import Arrival, Packed
from hypic_sdk.prompt.segment import PromptPart, Role, segment_id, segment_key
from hypic_sdk.store.entry_bytes import payload_digest
from hypic_sdk.transport.peer_channel import PeerChannel
from hypic_sdk.transport.peer_messages import FetchEntry
from tests.links.sending_worker import CPU, payload_of


class Shelf:
    """Gives payloads by number (the first token id), each on a thread of its own."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.dropped: list[tuple[str, int]] = []
        self.held_back: dict[int, Give] = {}  # given when the test says so
        self.hold_back = False

    def provide(self, request: FetchEntry, give: Give) -> None:
        number, num_bytes = request.part.token_ids
        self.asked.append(number)
        if self.hold_back:
            self.held_back[number] = give
        elif number == 13:
            give(NumericsError("not finite"))
        else:
            threading.Thread(
                target=lambda: give(Packed(payload_of(number, num_bytes), 2.5))
            ).start()

    def drop(self, asker: str, ticket: int) -> None:
        self.dropped.append((asker, ticket))


class Worker:
    def __init__(self, folder: Path, name: str, stack: ExitStack, fingerprint: str = "f") -> None:
        self.name = name
        self.shelf = Shelf()
        self.arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self.channel = stack.enter_context(PeerChannel(folder, name))
        self.courier = stack.enter_context(
            Courier(
                self.channel, name, self.shelf, digest=payload_digest,
                compute_fingerprint=fingerprint, device=CPU,
            )
        )  # fmt: skip

    def fetch(self, peer: Worker, number: int, num_bytes: int, timeout_s: float = 20.0) -> int:
        part = PromptPart(Role.INNER, (number, num_bytes), segment_id(str(number)))
        key = segment_key(part.token_ids, SeamWidths(1, 0), "")
        return self.courier.fetch(peer.name, Wanted(part, "", key, timeout_s), self.arrivals.put)

    def next(self, timeout_s: float = 20.0) -> Arrival:
        return self.arrivals.get(timeout=timeout_s)

    def gets_nothing_more(self) -> bool:
        time.sleep(0.3)
        return self.arrivals.empty()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Worker, Worker]]:
    with ExitStack() as stack:
        yield Worker(tmp_path, "a", stack), Worker(tmp_path, "b", stack)


def test_entries_come_whole_both_ways(pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    sizes = {n: 1 + 997 * n * n for n in range(12)}
    tickets = {a.fetch(b, n, size): n for n, size in sizes.items()}
    back = {b.fetch(a, n, size): n for n, size in sizes.items()}
    for worker, asked in ((a, tickets), (b, back)):
        for _ in sizes:
            arrival = worker.next()
            number = asked.pop(arrival.ticket)
            assert arrival.payload is not None, arrival.error
            assert torch.equal(arrival.payload, payload_of(number, sizes[number]))
            assert arrival.made_ms == 2.5
    assert a.gets_nothing_more()


def test_a_refusal_is_the_peers_own_error_and_hurts_no_other(pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    tickets = [a.fetch(b, n, 100) for n in (1, 13, 2)]
    arrivals = {arrival.ticket: arrival for arrival in (a.next() for _ in tickets)}
    assert isinstance(arrivals[tickets[1]].error, NumericsError)
    assert all(arrivals[tickets[i]].payload is not None for i in (0, 2))


def test_an_entry_that_does_not_come_in_time_is_an_error_and_the_peer_is_told(
    pair: tuple[Worker, Worker],
) -> None:
    a, b = pair
    b.shelf.hold_back = True
    ticket = a.fetch(b, 1, 100, timeout_s=0.3)
    assert isinstance(a.next(5).error, TransferFailed)
    deadline_s = time.monotonic() + 5
    while ("a", ticket) not in b.shelf.dropped and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert ("a", ticket) in b.shelf.dropped
    # what comes too late is received, and told to nobody
    b.shelf.held_back[1](Packed(payload_of(1, 100)))
    b.shelf.hold_back = False
    second = a.fetch(b, 2, 100)
    arrival = a.next()
    assert arrival.ticket == second
    assert arrival.payload is not None
    assert a.gets_nothing_more()


def test_a_dropped_fetch_is_not_told(pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    b.shelf.hold_back = True
    ticket = a.fetch(b, 1, 100)
    a.courier.drop("b", ticket)
    assert a.gets_nothing_more()
    assert ("a", ticket) in b.shelf.dropped


def test_bytes_that_changed_on_the_way_are_refused_and_the_link_is_made_anew(
    pair: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    honest = b.courier._announce
    monkeypatch.setattr(
        b.courier, "_announce",
        lambda asker, ready: honest(asker, replace(ready, digest=b"0" * 16)),
    )  # fmt: skip
    a.fetch(b, 1, 100)
    assert isinstance(a.next().error, TransferFailed)
    monkeypatch.undo()
    a.fetch(b, 2, 100)
    assert a.next().payload is not None


def test_a_link_that_broke_fails_what_was_asked_for_and_the_next_fetch_has_a_new_one(
    pair: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    monkeypatch.setattr(link_ends, "CONNECT_TIMEOUT_S", 0.5)
    a.fetch(b, 1, 100)
    assert a.next().payload is not None
    b.shelf.hold_back = True
    for n in (2, 3):
        a.fetch(b, n, 100)
    deadline_s = time.monotonic() + 5
    while len(b.shelf.held_back) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    link = b.courier._outbound["a"]._link
    assert link is not None
    link.close()
    for give in b.shelf.held_back.values():
        give(Packed(payload_of(2, 100)))
    assert all(isinstance(a.next().error, TransferFailed) for _ in range(2))
    b.shelf.hold_back = False
    a.fetch(b, 4, 100)
    assert a.next().payload is not None


def test_a_peer_that_is_lost_or_was_never_there(pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    b.shelf.hold_back = True
    a.fetch(b, 1, 100)
    a.courier.lose("b")
    assert isinstance(a.next().error, WorkerLost)
    b.name = "nobody"
    a.fetch(b, 1, 100)
    assert isinstance(a.next().error, WorkerLost)


def test_closing_tells_what_is_awaited(tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, b = Worker(tmp_path, "a", stack), Worker(tmp_path, "b", stack)
        b.shelf.hold_back = True
        a.fetch(b, 1, 100)
    assert isinstance(a.next().error, WorkerLost)


def test_other_arithmetic_is_not_taken(tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, b = Worker(tmp_path, "a", stack), Worker(tmp_path, "b", stack, fingerprint="g")
        a.fetch(b, 1, 100)
        assert isinstance(a.next().error, TransferFailed)
        assert b.shelf.asked == []
