"""Workers hear one another, by path or by TCP under a key; strangers are heard by nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from hypic_sdk.errors import ConfigError, WorkerLost
from hypic_sdk.transport import codec
from hypic_sdk.transport.peer_channel import PeerChannel
from hypic_sdk.transport.peer_key import PeerKey, check_private
from hypic_sdk.transport.peer_messages import DropFetch

QUIET_S = 0.5  # in which a message on loopback would have come many times over


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as one:
        yield one


def by_tcp(stack: ExitStack, name: str, key: PeerKey) -> PeerChannel:
    return stack.enter_context(PeerChannel(None, name, host="127.0.0.1", key=key))


@pytest.mark.parametrize("way", ["path", "tcp"])
def test_each_hears_the_other(way: str, stack: ExitStack, tmp_path: Path) -> None:
    if way == "tcp":
        key = PeerKey.new()
        a, b = by_tcp(stack, "a", key), by_tcp(stack, "b", key)
        a.learn("b", b.endpoint)
        b.learn("a", a.endpoint)
    else:
        a, b = (stack.enter_context(PeerChannel(tmp_path, name)) for name in "ab")
    for number in range(20):
        a.send("b", DropFetch(number, "a"))
        b.send("a", DropFetch(number, "b"))
    assert [b.receive(2) for _ in range(20)] == [DropFetch(n, "a") for n in range(20)]
    assert [a.receive(2) for _ in range(20)] == [DropFetch(n, "b") for n in range(20)]
    a.forget("b")
    if way == "tcp":
        with pytest.raises(WorkerLost):
            a.send("b", DropFetch(1, "a"))


@pytest.mark.parametrize("name", ["nobody", "../a", "", "a/b", "x" * 41])
@pytest.mark.parametrize("way", ["path", "tcp"])
def test_who_was_never_there_is_lost(name: str, way: str, stack: ExitStack, tmp_path: Path) -> None:
    a = by_tcp(stack, "a", PeerKey.new()) if way == "tcp" else None
    a = a or stack.enter_context(PeerChannel(tmp_path, "a"))
    with pytest.raises(WorkerLost):
        a.send(name, DropFetch(1, "a"))


def stranger(context: zmq.Context, endpoint: str, kind: str, key: PeerKey) -> zmq.Socket:
    """Somebody who speaks our messages and has not the key: with none, his own, or half of it."""
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, 0)
    own = PeerKey.new()
    if kind != "plain":
        socket.curve_secretkey, socket.curve_publickey = own.secret, own.public
        socket.curve_serverkey = key.public if kind == "knows the public half" else own.public
    socket.connect(endpoint)
    return socket


@pytest.mark.parametrize("kind", ["plain", "own key", "knows the public half"])
def test_a_stranger_is_not_heard(kind: str, stack: ExitStack) -> None:
    key = PeerKey.new()
    a, b = by_tcp(stack, "a", key), by_tcp(stack, "b", key)
    with zmq.Context() as context, stranger(context, b.endpoint, kind, key) as socket:
        socket.send_multipart(codec.encode(DropFetch(666, "x")))
        assert b.receive(QUIET_S) is None
        a.learn("b", b.endpoint)
        a.send("b", DropFetch(1, "a"))
        assert b.receive(10) == DropFetch(1, "a")
        assert b.receive(QUIET_S) is None


def test_what_a_worker_says_is_not_heard_by_a_stranger_in_another_place(stack: ExitStack) -> None:
    a = by_tcp(stack, "a", PeerKey.new())
    impostor = by_tcp(stack, "b", PeerKey.new())
    a.learn("b", impostor.endpoint)
    a.send("b", DropFetch(1, "a"))
    assert impostor.receive(QUIET_S) is None


def test_without_a_key_there_is_no_tcp() -> None:
    with pytest.raises(ConfigError, match="key"):
        PeerChannel(None, "a", host="127.0.0.1")


@pytest.mark.parametrize("host", ["8.8.8.8", "0.0.0.0", "::", "example.org", "", "2001:4860::8888"])
def test_an_address_that_others_reach_is_refused(host: str) -> None:
    with pytest.raises(ConfigError):
        check_private(host)
    with pytest.raises(ConfigError):
        PeerChannel(None, "a", host=host, key=PeerKey.new())


def test_a_public_address_is_taken_when_told() -> None:
    assert check_private("8.8.8.8", may_be_public=True) == "8.8.8.8"
    for host in ("10.1.2.3", "192.168.0.1", "127.0.0.1", "fd00::1"):
        assert check_private(host) == host


@pytest.mark.parametrize("endpoint", ["ipc:///tmp/x", "tcp://evil.example:1", "tcp://1.2.3.4", ""])
def test_only_addresses_are_learnt(endpoint: str, stack: ExitStack) -> None:
    with pytest.raises(ConfigError):
        by_tcp(stack, "a", PeerKey.new()).learn("b", endpoint)


def test_a_key_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = PeerKey.new()
    key.write(path)
    assert PeerKey.from_file(path) == key
    assert key.secret.decode() not in repr(key)
    with pytest.raises(ConfigError):
        key.write(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="read by others"):
        PeerKey.from_file(path)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 39, b" " * 40, b"\xff" * 40])
def test_what_is_no_key_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(ConfigError):
        PeerKey.from_file(path)
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError):
        PeerKey.from_file(path)


def test_closing_twice_and_sending_after_it(stack: ExitStack) -> None:
    started_s = time.monotonic()
    a = by_tcp(stack, "a", PeerKey.new())
    a.close()
    a.close()
    with pytest.raises(WorkerLost):
        a.send("a", DropFetch(1, "a"))
    assert time.monotonic() - started_s < 5
