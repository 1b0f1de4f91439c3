"""Router and workers of other hosts hear each other, from many threads, also after a cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hypic_sdk.errors import ConfigError, WorkerError, WorkerLost
from hypic_sdk.transport.control import FinishRequest, Leave
from hypic_sdk.transport.fleet_channel import RouterEnd, WorkerEnd
from hypic_sdk.transport.peer_key import PeerKey

WAIT_S = 3.0


@pytest.fixture
def ends() -> Iterator[tuple[RouterEnd, WorkerEnd, WorkerEnd]]:
    key = PeerKey.new()
    router = RouterEnd("127.0.0.1", 0, key)
    with ExitStack() as stack:
        stack.callback(router.close)
        workers = [stack.enter_context(WorkerEnd(router.address, key)) for _ in range(2)]
        yield router, workers[0], workers[1]


def heard(end: RouterEnd, count: int) -> list[tuple[bytes, object]]:
    """So many messages; `receive` is what sends as well."""
    found = []
    while len(found) < count:
        one = end.receive(WAIT_S)
        assert one is not None, f"{len(found)} of {count} came"
        found.append(one)
    return found


def test_each_worker_is_told_apart_and_answered(ends) -> None:
    router, a, b = ends
    a.send(Leave("a"))
    b.send(Leave("b"))
    a.receive(0.1)
    b.receive(0.1)
    names = {message.worker: connection for connection, message in heard(router, 2)}
    for name, connection in names.items():
        router.send(connection, FinishRequest(name, 1))
    router.receive(0.1)
    assert a.receive(WAIT_S) == FinishRequest("a", 1)
    assert b.receive(WAIT_S) == FinishRequest("b", 1)


def test_many_threads_send_at_once_and_nothing_is_lost_or_torn(ends) -> None:
    router, a, _ = ends
    threads = [
        threading.Thread(target=lambda n=n: [a.send(Leave(f"{n}-{i}")) for i in range(100)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop = threading.Event()
    pump = threading.Thread(target=lambda: [a.receive(0.05) for _ in iter(stop.is_set, True)])
    pump.start()
    said = [message.worker for _, message in heard(router, 800)]
    stop.set()
    pump.join()
    for n in range(8):
        assert [one for one in said if one.startswith(f"{n}-")] == [f"{n}-{i}" for i in range(100)]


def test_what_waits_for_a_message_sends_meanwhile(ends) -> None:
    router, a, _ = ends
    timer = threading.Timer(0.3, lambda: a.send(Leave("late")))
    timer.start()
    pump = threading.Thread(target=lambda: a.receive(2))
    pump.start()
    assert heard(router, 1)[0][1] == Leave("late")
    pump.join()


def test_a_torn_message_is_a_typed_error(ends) -> None:
    router, a, _ = ends
    a._pump.send([b"nonsense", b"x"])
    a.receive(0.1)
    with pytest.raises(WorkerError):
        router.receive(WAIT_S)


def test_a_closed_end_says_so(ends) -> None:
    _, a, _ = ends
    a.close()
    with pytest.raises(WorkerLost):
        a.send(Leave("a"))


@pytest.mark.parametrize("host", ["0.0.0.0", "8.8.8.8", "somewhere"])
def test_an_address_that_strangers_reach_is_refused(host: str) -> None:
    with pytest.raises(ConfigError):
        RouterEnd(host, 0, PeerKey.new())


def test_a_port_that_is_taken_and_a_router_that_is_no_address_are_refused(ends) -> None:
    router, _, _ = ends
    host, _, port = router.address.rpartition(":")
    with pytest.raises(ConfigError):
        RouterEnd(host, int(port), PeerKey.new())
    with pytest.raises(ConfigError):
        WorkerEnd("no:port:here", PeerKey.new())
