"""The gate lets in who has the key and fits; it tells everybody else why not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from hypic_sdk.transport import codec
from hypic_sdk.transport.control import EngineReady, Join, Leave, Refused, Welcome
from hypic_sdk.transport.fleet_channel import WorkerEnd
from hypic_sdk.transport.peer_key import PeerKey
from hypic_sdk.version import __version__
from tests.server.test_fleet import SMALL, until
from tests.server.towns import Town, open_town


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with open_town(tmp_path) as one:
        yield one


def gate_says(town: Town, key: PeerKey, message: codec.Message, timeout_s: float = 3.0):
    with WorkerEnd(town.address, key) as end:
        end.send(message)
        return end.receive(timeout_s)


@pytest.mark.parametrize("kind", ["own key", "knows the public half", "plain"])
def test_a_stranger_is_not_let_in(town: Town, kind: str) -> None:
    own, shared = PeerKey.new(), PeerKey.from_file(town.key_file)
    if kind == "plain":
        with plain_end(town.address) as socket:
            socket.send_multipart(codec.encode(Join("x_0", __version__)))
            assert not socket.poll(700)
    else:
        key = own if kind == "own key" else PeerKey(own.secret, shared.public)
        with suppress(Exception):  # halves that do not belong together may be refused here
            assert gate_says(town, key, Join("x_0", __version__), 0.7) is None
    assert town.fleet.link.workers() == {}
    assert isinstance(gate_says(town, shared, Join("x_0", __version__)), Welcome)


@contextmanager
def plain_end(address: str) -> Iterator[object]:
    import zmq

    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://{address}")
        yield socket


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Join("x_0", "0.0.0"), "config_error"),
        (Join("w0", __version__), "config_error"),
        (Join("../x", __version__), "config_error"),
        (Join("x" * 31, __version__), "config_error"),
        (EngineReady("f", 1, 1, (), 4, 0.0), "worker_lost"),
    ],
)
def test_who_does_not_fit_is_told_why(town: Town, message: codec.Message, code: str) -> None:
    said = gate_says(town, PeerKey.from_file(town.key_file), message)
    assert isinstance(said, Refused)
    assert said.error["code"] == code
    assert town.fleet.link.workers() == {}


def test_a_worker_of_another_model_is_refused(town: Town) -> None:
    key = PeerKey.from_file(town.key_file)
    with ExitStack() as stack:
        said = []
        for place, fingerprint in (("x", "one"), ("y", "other")):
            end = stack.enter_context(WorkerEnd(town.address, key))
            end.send(Join(place, __version__))
            welcome = end.receive(3)
            assert isinstance(welcome, Welcome)
            assert re.fullmatch(rf"{place}-[0-9]+", welcome.worker)
            assert welcome.config == SMALL.config
            end.send(EngineReady(fingerprint, 500, 4096, (2,), 4, 0.1))
            said.append(end.receive(0.3))
            until(lambda: town.fleet.link.workers() != {})
        assert not isinstance(said[0], Refused)
        assert isinstance(said[1], Refused)
        assert "model_fingerprint" in said[1].error["message"]
        assert list(town.fleet.link.workers()) == ["x-0"]


def joined_as(end: WorkerEnd, place: str, compute: str) -> codec.Message | None:
    """Join, and say ready; what came of it: the last that was heard but for signs of life."""
    end.send(Join(place, __version__))
    said = end.receive(3)
    assert isinstance(said, Welcome)
    end.send(EngineReady("f", 500, 4096, (2,), 4, 0.1, compute, "float32"))
    for _ in range(10):
        said = end.receive(0.1)
        if isinstance(said, Refused):
            return said
    return None


def leave(end: WorkerEnd, worker: str) -> None:
    end.send(Leave(worker))
    for _ in range(3):
        end.receive(0.1)  # what is queued goes out meanwhile


def test_a_worker_that_computes_otherwise_is_refused_until_the_others_are_gone(town: Town) -> None:
    key = PeerKey.from_file(town.key_file)
    one, two = "a CPU, 1 threads; pair=float32", "a CPU, 2 threads; pair=float32"
    with WorkerEnd(town.address, key) as first:
        assert joined_as(first, "x", one) is None
        with WorkerEnd(town.address, key) as other:
            said = joined_as(other, "y", two)
        assert isinstance(said, Refused)
        assert said.error["code"] == "config_error"
        assert said.error["details"] == {"here": ["2 threads"], "others": ["1 threads"]}
        assert "2 threads here, 1 threads there" in said.error["message"]
        with WorkerEnd(town.address, key) as like:
            assert joined_as(like, "z", one) is None
            assert list(town.fleet.link.workers()) == ["x-0", "z-2"]
            leave(like, "z-2")
            until(lambda: list(town.fleet.link.workers()) == ["x-0"])
        leave(first, "x-0")
        until(lambda: town.fleet.link.workers() == {})
    with WorkerEnd(town.address, key) as next_one, WorkerEnd(town.address, key) as late:
        assert joined_as(next_one, "y", two) is None
        assert list(town.fleet.link.workers()) == ["y-3"]
        assert isinstance(joined_as(late, "x", one), Refused)


def test_a_worker_that_computes_otherwise_may_not_follow_itself_at_a_place_of_others(
    town: Town,
) -> None:
    """It takes a place while it loads; the arithmetic of the rest still holds."""
    key = PeerKey.from_file(town.key_file)
    with ExitStack() as stack:
        ends = [stack.enter_context(WorkerEnd(town.address, key)) for _ in range(3)]
        assert joined_as(ends[0], "x", "one; a") is None
        assert joined_as(ends[1], "y", "one; a") is None
        assert isinstance(joined_as(ends[2], "x", "other; a"), Refused)
        assert list(town.fleet.link.workers()) == ["y-1"]


def test_a_worker_that_comes_to_a_place_takes_it(town: Town) -> None:
    key = PeerKey.from_file(town.key_file)
    with WorkerEnd(town.address, key) as old, WorkerEnd(town.address, key) as new:
        old.send(Join("x", __version__))
        assert old.receive(3) == Welcome("x-0", SMALL.config)
        old.send(EngineReady("f", 500, 4096, (2,), 4, 0.1))
        old.receive(0.1)
        until(lambda: list(town.fleet.link.workers()) == ["x-0"])
        new.send(Join("x", __version__))
        assert new.receive(3) == Welcome("x-1", SMALL.config)
        assert any(isinstance(old.receive(2), Refused) for _ in range(3))
        assert town.fleet.link.workers() == {}
