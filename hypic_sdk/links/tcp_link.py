"""A link over one TCP connection: whole payloads, each behind its number and its length.

Not gloo, which was tried: in one of sixteen soaks of broken links a process stood still for 110 s,
a payload that meets a buffer of another size ends it, and every epoch needs a store and a mesh.  A
socket has deadlines, `shutdown` wakes whoever waits in it, and a stranger without the token of the
link is turned away.
"""

from __future__ import annotations

import hmac
import selectors
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import final

import torch

from hypic_sdk.errors import TransferFailed
from hypic_sdk.links.link_address import LinkAddress

HELLO = struct.Struct("!8sQ16s")  # what this is, epoch, token
HEAD = struct.Struct("!QQ")  # number, length
MAGIC = b"hypic 1\0"
TOKEN_BYTES = 16
HELLO_TIMEOUT_S = 1.0  # of one that came: then it is turned away
MAX_GREETERS = 64  # that have not said who they are: the one that came first goes
HEAR_S = 0.1  # how soon a listener that was closed meanwhile is seen
POLL_S = 1.0  # how soon an end that is not woken by `close` sees it


@final
class TcpLink:
    """A `PairLink` between memories of CPUs; what lies on a GPU is copied there and back."""

    def __init__(self, connection: socket.socket) -> None:
        """Use `accept_tcp` and `join_tcp`."""
        self._connection = connection
        self._is_open = True
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def is_open(self) -> bool:
        """See `PairLink.is_open`."""
        return self._is_open

    def send(self, payload: torch.Tensor, *, timeout_s: float, number: int = 0) -> None:
        """See `PairLink.send`."""
        deadline_s = time.monotonic() + timeout_s
        head = memoryview(HEAD.pack(number, payload.numel()))
        for view in (head, payload.cpu().numpy().data):
            self._move(self._connection.send, view, deadline_s)

    def receive(
        self, num_bytes: int, *, timeout_s: float, device: torch.device, number: int = 0
    ) -> torch.Tensor:
        """See `PairLink.receive`."""
        deadline_s = time.monotonic() + timeout_s
        head = bytearray(HEAD.size)
        self._move(self._connection.recv_into, memoryview(head), deadline_s)
        if HEAD.unpack(head) != (number, num_bytes):
            self.close()
            raise TransferFailed(
                f"payload {number} of {num_bytes} bytes was to come, {HEAD.unpack(head)} came"
            )
        payload = torch.empty(num_bytes, dtype=torch.uint8)
        self._move(self._connection.recv_into, payload.numpy().data, deadline_s)
        return payload.to(device)

    def _move(self, move: Callable[[memoryview], int], view: memoryview, deadline_s: float) -> None:
        """Send or fill all of `view`."""
        try:
            while view:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not self._is_open:
                    raise TimeoutError("not in time" if self._is_open else "the link was closed")
                self._connection.settimeout(min(left_s, POLL_S))
                with suppress(TimeoutError):
                    moved = move(view)
                    if not moved:
                        raise ConnectionResetError("the other end is gone")
                    view = view[moved:]
        except OSError as error:
            self.close()
            raise TransferFailed(f"the link broke: {error}") from error

    def close(self) -> None:
        """See `PairLink.close`."""
        self._is_open = False
        with suppress(OSError):  # it was never whole, or is gone
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def accept_tcp(listener: socket.socket, address: LinkAddress, timeout_s: float) -> socket.socket:
    """The sender's connection; whoever else comes is turned away.

    All that came are listened to side by side: one that says nothing keeps nobody waiting.

    Raises:
        TransferFailed: the sender did not come in time, or the listener was closed.
    """
    expected = HELLO.pack(MAGIC, address.epoch, address.token)
    greeters = _Greeters(expected)
    deadline_s = time.monotonic() + timeout_s
    try:
        listener.setblocking(False)
        while (left_s := deadline_s - time.monotonic()) > 0:
            sender = greeters.hear(listener, min(left_s, HEAR_S))
            if sender is not None:
                return sender
    except (OSError, ValueError) as error:  # the latter of one that was closed
        raise TransferFailed(f"nobody came to {address}: {error}") from error
    finally:
        greeters.close()
    raise TransferFailed(f"nobody came to {address} within {timeout_s:g} s", timeout_s=timeout_s)


@final
class _Greeters:
    """Connections that have not said who they are yet."""

    def __init__(self, expected: bytes) -> None:
        self._expected = expected
        self._said: dict[socket.socket, bytearray] = {}
        self._until_s: dict[socket.socket, float] = {}

    def hear(self, listener: socket.socket, timeout_s: float) -> socket.socket | None:
        """Take in who comes and what they say, for a while; the sender, once it is known.

        Raises:
            OSError, ValueError: the listener was closed.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            for connection in self._said:
                selector.register(connection, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(timeout_s)]
        for connection in [one for one in self._said if one in ready]:
            if self._is_sender(connection):
                del self._said[connection]
                connection.setblocking(True)
                return connection
        if listener in ready:
            self._accept(listener)
        now_s = time.monotonic()
        for connection in [one for one in self._said if now_s > self._until_s[one]]:
            self._turn_away(connection)
        return None

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # it went again
        connection.setblocking(False)
        self._said[connection] = bytearray()
        self._until_s[connection] = time.monotonic() + HELLO_TIMEOUT_S
        if len(self._said) > MAX_GREETERS:
            self._turn_away(next(iter(self._said)))

    def _is_sender(self, connection: socket.socket) -> bool:
        """Hear more of one; whether it has shown the token."""
        said = self._said[connection]
        try:
            more = connection.recv(len(self._expected) - len(said))
        except BlockingIOError:
            return False
        except OSError:
            more = b""
        said += more
        if more and len(said) < len(self._expected):
            return False
        if hmac.compare_digest(bytes(said), self._expected):
            return True
        self._turn_away(connection)
        return False

    def _turn_away(self, connection: socket.socket) -> None:
        del self._said[connection]
        connection.close()

    def close(self) -> None:
        """Turn all away."""
        for connection in list(self._said):
            self._turn_away(connection)


def join_tcp(address: LinkAddress, timeout_s: float) -> socket.socket:
    """A connection to a receiver that listens.  Raises TransferFailed: it is not there in time."""
    try:
        connection = socket.create_connection((address.host, address.port), timeout_s)
        connection.sendall(HELLO.pack(MAGIC, address.epoch, address.token))
    except OSError as error:
        raise TransferFailed(f"nobody listens at {address}: {error}", port=address.port) from error
    return connection
