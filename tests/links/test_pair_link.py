"""A link carries bytes whole, or fails in time: whatever became of the other end."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from hypic_sdk.errors import TransferFailed
from hypic_sdk.links.pair_link import LinkAddress, PairLink, PendingLink, join
from tests.links.sending_worker import CPU, payload_of

WAIT_S = 2.0  # of a receiver for a sender that does nothing
SIZES = (1, 7, 4096, 1_000_003)


@contextmanager
def sender(
    pending: PendingLink, fault: str = "none", sizes: tuple[int, ...] = SIZES, epoch: int = -1
) -> Iterator[subprocess.Popen[bytes]]:
    address = pending.address
    words = [str(address.port), str(address.epoch if epoch < 0 else epoch), fault, *map(str, sizes)]
    command = [sys.executable, "-m", "tests.links.sending_worker", *words]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def received(link: PairLink, number: int, num_bytes: int, timeout_s: float = 10) -> bool:
    payload = link.receive(num_bytes, timeout_s=timeout_s, device=CPU, number=number)
    return torch.equal(payload, payload_of(number, num_bytes))


def test_payloads_come_whole_and_in_order() -> None:
    pending = PendingLink("127.0.0.1", 1, timeout_s=20)
    with sender(pending) as process, pending.accept(CPU) as link:
        assert all(received(link, number, size) for number, size in enumerate(SIZES))
        assert process.wait(10) == 0


def test_large_payloads_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    # the pieces of one end need not be those of the other's settings: both read the same constant
    monkeypatch.setattr("hypic_sdk.links.pair_link.MAX_PIECE_BYTES", 1 << 20)
    sizes = ((3 << 20) + 5,)
    pending = PendingLink("127.0.0.1", 1, timeout_s=20)
    command = (
        "import hypic_sdk.links.pair_link as p; p.MAX_PIECE_BYTES = 1 << 20; "
        "from tests.links.sending_worker import main; main()"
    )
    words = [str(pending.address.port), "1", "none", str(sizes[0])]
    process = subprocess.Popen([sys.executable, "-c", command, *words])
    try:
        with pending.accept(CPU) as link:
            assert received(link, 0, sizes[0])
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.parametrize("fault", ["kill", "stop", "leave"])
def test_a_sender_that_fails_is_a_typed_error_in_time_and_the_next_epoch_works(fault: str) -> None:
    pending = PendingLink("127.0.0.1", 1, timeout_s=20)
    with sender(pending, fault):
        link = pending.accept(CPU)
        assert received(link, 0, SIZES[0])
        started_s = time.monotonic()
        with pytest.raises(TransferFailed):
            received(link, 1, SIZES[1], timeout_s=WAIT_S)
        assert time.monotonic() - started_s < WAIT_S + 1
        assert not link.is_open
        with pytest.raises(TransferFailed):
            received(link, 1, SIZES[1], timeout_s=WAIT_S)
    again = PendingLink("127.0.0.1", 2, timeout_s=20)
    with sender(again), again.accept(CPU) as link:
        assert all(received(link, number, size) for number, size in enumerate(SIZES))


def test_a_receiver_that_goes_away_fails_the_sender() -> None:
    pending = PendingLink("127.0.0.1", 1, timeout_s=20)
    with sender(pending, sizes=(1, *[50_000_000] * 20)) as process:
        link = pending.accept(CPU)
        assert received(link, 0, 1)
        link.close()
        del link
        assert process.wait(15) == 3


def test_nobody_comes() -> None:
    pending = PendingLink("127.0.0.1", 1, timeout_s=1.0)
    started_s = time.monotonic()
    with pytest.raises(TransferFailed):
        pending.accept(CPU)
    assert time.monotonic() - started_s < 5


def test_nobody_listens() -> None:
    pending = PendingLink("127.0.0.1", 1, timeout_s=1.0)
    port = pending.address.port
    pending.close()
    with pytest.raises(TransferFailed):
        join(LinkAddress("127.0.0.1", port, 1), CPU, timeout_s=1.0)


def test_a_sender_of_another_epoch_never_meets_the_receiver() -> None:
    pending = PendingLink("127.0.0.1", 2, timeout_s=3.0)
    with sender(pending, epoch=1), pytest.raises(TransferFailed):
        pending.accept(CPU)


def test_a_link_listens_at_its_own_address_and_at_no_other() -> None:
    pending = PendingLink("127.0.0.1", 1, timeout_s=1.0)
    socket.create_connection(("127.0.0.1", pending.address.port), 1).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", pending.address.port), 1)
    pending.close()


def test_an_address_that_is_not_ours_is_a_typed_error() -> None:
    with pytest.raises(TransferFailed):
        PendingLink("192.0.2.1", 1, timeout_s=1.0)


def test_a_payload_is_never_taken_for_another() -> None:
    pending = PendingLink("127.0.0.1", 1, timeout_s=20)
    # sends payloads of other numbers and of another size: gloo would end the process
    with sender(pending, sizes=(50_000, 70_000)), pending.accept(CPU) as link:
        with pytest.raises(TransferFailed):
            link.receive(10, timeout_s=WAIT_S, device=CPU, number=5)
        assert not link.is_open
