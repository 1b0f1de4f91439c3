"""A link carries bytes whole, or fails in time: whatever became of the other end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from hypic_sdk.errors import TransferFailed
from hypic_sdk.links import tcp_link
from hypic_sdk.links.link_address import PairLink
from hypic_sdk.links.pair_link import PendingLink, join
from hypic_sdk.links.tcp_link import HELLO_TIMEOUT_S, TcpLink
from tests.links.receiving import SIZES, received, sender
from tests.links.sending_worker import CPU, payload_of

WAIT_S = 2.0  # of a receiver for a sender that does nothing


def pending_link(epoch: int = 1, timeout_s: float = 20.0) -> PendingLink:
    return PendingLink("127.0.0.1", epoch, timeout_s=timeout_s)


def ends() -> tuple[PairLink, PairLink]:
    """A sender's and a receiver's end, in this process."""
    listener = socket.create_server(("127.0.0.1", 0))
    sending = socket.create_connection(listener.getsockname())
    receiving, _ = listener.accept()
    listener.close()
    return TcpLink(sending), TcpLink(receiving)


def test_payloads_come_whole_and_in_order() -> None:
    pending = pending_link()
    with sender(pending) as process:
        link = pending.accept()
        assert all(received(link, number, size) for number, size in enumerate(SIZES))
        assert process.wait(10) == 0
        link.close()


@pytest.mark.parametrize("fault", ["kill", "stop", "leave"])
def test_a_sender_that_fails_is_a_typed_error_in_time_and_the_next_epoch_works(fault: str) -> None:
    pending = pending_link()
    with sender(pending, fault=fault):
        link = pending.accept()
        assert received(link, 0, SIZES[0])
        started_s = time.monotonic()
        with pytest.raises(TransferFailed):
            received(link, 1, SIZES[1], timeout_s=WAIT_S)
        assert time.monotonic() - started_s < WAIT_S + 1
        assert not link.is_open
        with pytest.raises(TransferFailed):
            received(link, 1, SIZES[1], timeout_s=WAIT_S)
    again = pending_link(2)
    with sender(again):
        link = again.accept()
        assert all(received(link, number, size) for number, size in enumerate(SIZES))
        link.close()


def test_a_receiver_that_goes_away_fails_the_sender() -> None:
    pending = pending_link()
    with sender(pending, (1, *[50_000_000] * 20)) as process:
        link = pending.accept()
        assert received(link, 0, 1)
        link.close()
        assert process.wait(15) == 3


@pytest.mark.parametrize("does", ["send", "receive"])
def test_closing_wakes_whoever_waits_in_a_link(does: str) -> None:
    sending, receiving = ends()
    link = sending if does == "send" else receiving
    payload = payload_of(0, 100_000_000)  # takes long to make, where much else runs
    waits: Callable[[], object] = (
        (lambda: link.send(payload, timeout_s=60))
        if does == "send"
        else (lambda: link.receive(10, timeout_s=60, device=CPU))
    )
    failed = threading.Event()

    def run() -> None:
        with pytest.raises(TransferFailed):
            waits()
        failed.set()

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.2)
    started_s = time.monotonic()
    link.close()
    assert failed.wait(5)
    assert time.monotonic() - started_s < 1
    thread.join()
    sending.close()
    receiving.close()


def test_a_receiver_that_reads_nothing_fails_the_sender_in_time() -> None:
    sending, receiving = ends()
    payload = payload_of(0, 100_000_000)
    started_s = time.monotonic()
    with pytest.raises(TransferFailed):
        sending.send(payload, timeout_s=1.0)
    assert time.monotonic() - started_s < 2
    receiving.close()


def test_nobody_comes() -> None:
    started_s = time.monotonic()
    with pytest.raises(TransferFailed):
        pending_link(timeout_s=1.0).accept()
    assert time.monotonic() - started_s < 2


def test_closing_wakes_whoever_waits_for_a_sender() -> None:
    pending = pending_link()
    timer = threading.Timer(0.2, pending.close)
    timer.start()
    started_s = time.monotonic()
    with pytest.raises(TransferFailed):
        pending.accept()
    assert time.monotonic() - started_s < 2


def test_nobody_listens() -> None:
    pending = pending_link()
    pending.close()
    with pytest.raises(TransferFailed):
        join(pending.address, timeout_s=1.0)


@pytest.mark.parametrize("other", [{"epoch": 1}, {"token": "00" * 16}], ids=["epoch", "token"])
def test_a_sender_of_another_epoch_or_token_never_meets_the_receiver(other: dict) -> None:
    pending = pending_link(2, timeout_s=3.0)
    with sender(pending, **other), pytest.raises(TransferFailed):
        pending.accept()


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("says", [b"", b"h", b"GET / HTTP/1.1\r\n\r\n", b"hypic 1\0" + bytes(24)])
def test_strangers_do_not_keep_the_sender_out(says: bytes, count: int) -> None:
    """Nor waiting: each of those that say nothing, or half of it, once cost it a second."""
    pending = pending_link()
    accepted = threading.Event()
    strangers: list[socket.socket] = []

    def knock() -> None:
        while len(strangers) < count and not accepted.is_set():
            with suppress(OSError):
                strangers.append(socket.create_connection(("127.0.0.1", pending.address.port), 1))
                strangers[-1].sendall(says)

    threading.Thread(target=knock).start()
    until(lambda: strangers)
    found: list[PairLink] = []

    def accept() -> None:
        found.append(pending.accept())
        accepted.set()

    receiver = threading.Thread(target=accept)
    receiver.start()
    until(lambda: len(strangers) == count)
    started_s = time.monotonic()
    sending = join(pending.address, timeout_s=5.0)
    assert accepted.wait(5)
    assert time.monotonic() - started_s < HELLO_TIMEOUT_S
    sending.send(payload_of(0, SIZES[0]), timeout_s=5.0)
    assert received(found[0], 0, SIZES[0])
    for one in (sending, found[0], *strangers):
        one.close()


def test_a_stranger_that_says_nothing_is_turned_away_in_time() -> None:
    pending = pending_link(timeout_s=2 * HELLO_TIMEOUT_S)
    with socket.create_connection(("127.0.0.1", pending.address.port), 1) as stranger:
        stranger.sendall(b"hypic 1")
        with pytest.raises(TransferFailed):
            pending.accept()
        stranger.settimeout(1)
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


def test_so_many_strangers_are_heard_at_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_link, "MAX_GREETERS", 2)
    monkeypatch.setattr(tcp_link, "HELLO_TIMEOUT_S", 60.0)
    pending = pending_link(timeout_s=1.0)
    strangers = [socket.create_connection(("127.0.0.1", pending.address.port), 1) for _ in range(4)]

    def accept() -> None:
        with pytest.raises(TransferFailed):
            pending.accept()

    receiver = threading.Thread(target=accept)
    receiver.start()
    for stranger in strangers[:2]:
        stranger.settimeout(0.7)
        assert stranger.recv(1) == b""
    receiver.join()
    for stranger in strangers:
        stranger.close()


def until(what: Callable[[], object], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline_s, "did not come about in time"
        time.sleep(0.005)


def test_a_link_listens_at_its_own_address_and_at_no_other() -> None:
    pending = pending_link()
    socket.create_connection(("127.0.0.1", pending.address.port), 1).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", pending.address.port), 1)
    pending.close()


def test_an_address_that_is_not_ours_is_a_typed_error() -> None:
    with pytest.raises(TransferFailed):
        PendingLink("192.0.2.1", 1, timeout_s=1.0)


@pytest.mark.parametrize(("number", "num_bytes"), [(5, 50_000), (0, 10), (0, 60_000)])
def test_a_payload_is_never_taken_for_another(number: int, num_bytes: int) -> None:
    pending = pending_link()
    with sender(pending, (50_000, 70_000)):
        link = pending.accept()
        with pytest.raises(TransferFailed):
            link.receive(num_bytes, timeout_s=WAIT_S, device=CPU, number=number)
        assert not link.is_open


def test_a_token_is_not_told_by_what_is_logged() -> None:
    pending = pending_link()
    pending.close()
    address = pending.address
    assert address.token.hex() not in repr(address)
    assert repr(address.token) not in repr(address)
    assert replace(address, token=b"") != address
