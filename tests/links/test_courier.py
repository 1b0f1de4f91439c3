"""Every fetch gets one arrival, the right bytes or an error: whatever the peer does."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hypic_sdk.config import SeamWidths
from hypic_sdk.errors import NumericsError, TransferFailed, WorkerLost
from hypic_sdk.links import link_ends
from hypic_sdk.links.courier import MAX_REST_S, Courier, Give, Wanted
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


def test_what_is_asked_for_while_a_link_breaks_goes_by_the_next(
    pair: tuple[Worker, Worker],
) -> None:
    a, b = pair
    a.fetch(b, 1, 100)
    assert a.next().payload is not None
    first = a.courier._inbound["b"]
    first._break(TransferFailed("broke"))
    assert not first.expect(99, time.monotonic() + 5, a.arrivals.put)
    a.fetch(b, 2, 100)
    assert a.next().payload is not None
    assert a.courier._inbound["b"].address.epoch == first.address.epoch + 1


def test_an_answer_to_an_old_epoch_leaves_the_new_link_alone(pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    b.shelf.hold_back = True
    a.fetch(b, 1, 100)
    until(lambda: 1 in b.shelf.held_back)
    a.courier._inbound["b"]._break(TransferFailed("broke"))
    assert isinstance(a.next().error, TransferFailed)
    b.shelf.hold_back = False
    a.fetch(b, 2, 100)
    assert a.next().payload is not None
    new = b.courier._outbound["a"]
    b.shelf.held_back[1](Packed(payload_of(1, 100)))
    assert b.courier._outbound["a"] is new
    a.fetch(b, 3, 100)
    assert a.next().payload is not None


@pytest.mark.parametrize("end", ["receives", "sends"])
def test_whatever_goes_wrong_at_an_end_is_told_and_the_next_link_works(
    pair: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    a, b = pair

    def no_memory(payload: torch.Tensor) -> bytes:
        raise MemoryError("no room")

    monkeypatch.setattr((a if end == "receives" else b).courier, "_digest", no_memory)
    a.fetch(b, 1, 100)
    assert isinstance(a.next().error, TransferFailed)
    monkeypatch.undo()
    a.fetch(b, 2, 100)
    assert a.next().payload is not None


def test_a_message_that_can_not_be_dealt_with_costs_no_other_its_answer(
    pair: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair

    def fails(request: FetchEntry, give: Give) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(b.shelf, "provide", fails)
    a.fetch(b, 1, 100, timeout_s=0.5)
    assert isinstance(a.next().error, TransferFailed)
    monkeypatch.undo()
    a.fetch(b, 2, 100)
    assert a.next().payload is not None


def test_a_lost_peer_is_asked_for_nothing_and_sent_nothing(pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    b.shelf.hold_back = True
    a.fetch(b, 1, 100)
    until(lambda: 1 in b.shelf.held_back)
    b.courier.lose("a")
    b.shelf.held_back[1](Packed(payload_of(1, 100)))
    assert "a" not in b.courier._outbound
    a.courier.lose("b")
    assert isinstance(a.next().error, WorkerLost)
    a.fetch(b, 2, 100)
    assert isinstance(a.next().error, WorkerLost)


def test_where_no_link_can_listen_a_fetch_fails_and_raises_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, b = Worker(tmp_path, "a", stack), Worker(tmp_path, "b", stack)
        a.courier._host = "192.0.2.1"  # of no machine
        a.fetch(b, 1, 100)
        assert isinstance(a.next().error, TransferFailed)
        b.name = "../elsewhere"
        a.courier._host = "127.0.0.1"
        a.fetch(b, 1, 100)
        assert isinstance(a.next().error, WorkerLost)


def test_what_came_and_what_did_not_is_counted(pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    for number in (1, 13, 2):
        a.fetch(b, number, 100)
        a.next()
    alive = a.courier.alive()
    assert (alive.num_fetched, alive.num_not_fetched, alive.fetched_bytes) == (2, 1, 200)


def until(what: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline_s, "did not come about in time"
        time.sleep(0.01)


def test_links_that_carry_nothing_are_tried_less_and_less(
    pair: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    clock = [1000.0]
    monkeypatch.setattr("hypic_sdk.links.courier.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(b.courier, "_announce", lambda asker, ready: 1 / 0)
    epochs = []
    for _ in range(40):
        a.fetch(b, 1, 100, timeout_s=1000.0)
        assert isinstance(a.next().error, TransferFailed)
        epochs.append(a.courier._inbound["b"].address.epoch)
        clock[0] += 1.0
    assert epochs[:3] == [1, 2, 2]
    assert len(set(epochs)) < 8
    monkeypatch.setattr(b.courier, "_announce", b.channel.send)
    clock[0] += MAX_REST_S
    for number in (1, 2):
        a.fetch(b, number, 100, timeout_s=1000.0)
        assert a.next().payload is not None


def test_a_sender_that_hangs_is_left_for_a_new_link(
    pair: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    a.fetch(b, 0, 100)
    assert a.next().payload is not None
    stuck = threading.Event()
    monkeypatch.setattr(b.courier._outbound["a"], "_send", lambda *_: stuck.wait(30))
    for number in range(link_ends.MAX_LATE):
        a.fetch(b, number, 100, timeout_s=0.2)
        assert isinstance(a.next().error, TransferFailed)
    until(lambda: a.courier._inbound["b"].is_broken)
    a.fetch(b, 9, 100)
    assert a.next().payload is not None
    stuck.set()


def test_links_that_broke_leave_no_thread_behind(
    pair: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    a.fetch(b, 0, 100)
    assert a.next().payload is not None
    before = link_threads("hypic-link-in")
    for number in range(1, 4):
        a.courier._inbound["b"]._break(TransferFailed("broke"))
        a.fetch(b, number, 100)
        assert a.next().payload is not None
    until(lambda: link_threads("hypic-link-in") == before)


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files by /proc")
def test_links_that_broke_leave_nothing_open(pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    a.fetch(b, 0, 100)
    assert a.next().payload is not None
    before = num_open(), link_threads("hypic-link-in"), link_threads("hypic-link-out")
    for number in range(1, 9):
        ends = (a.courier._inbound["b"], b.courier._outbound["a"])
        if number % 2:
            ends[0]._break(TransferFailed("broke"))
        else:
            ends[1]._link.close()
            a.fetch(b, number, 100)
            assert isinstance(a.next().error, TransferFailed)
        a.fetch(b, number, 100)
        assert a.next().payload is not None
    until(
        lambda: (
            (num_open(), link_threads("hypic-link-in"), link_threads("hypic-link-out")) == before
        )
    )


def num_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def link_threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())
