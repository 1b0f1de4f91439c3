"""Messages between a router and workers of other hosts: one TCP port of the router, under CURVE.

A worker connects, and is known by a name that it draws for its connection: whoever comes again
after a death has another.  Each end's socket belongs to the thread that receives; what other
threads send reaches it through a socket within the process, so that nobody waits.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self, final

import zmq

from hypic_sdk.errors import ConfigError, WorkerLost
from hypic_sdk.transport import codec
from hypic_sdk.transport.channel import unbounded_socket
from hypic_sdk.transport.curve import CurveGuard
from hypic_sdk.transport.peer_key import PeerKey, check_private

_OUTBOX = "inproc://outbox"


@final
class _Pump:
    """A socket of one thread, and the way to it from all others."""

    def __init__(self, kind: int, key: PeerKey) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._guard = CurveGuard(self._context, key)
        self.socket = unbounded_socket(self._context, kind)
        self._guard.secure(self.socket, is_server=kind == zmq.ROUTER)
        self._outbox = unbounded_socket(self._context, zmq.PULL)
        self._outbox.bind(_OUTBOX)
        self._sender = unbounded_socket(self._context, zmq.PUSH)
        self._sender.connect(_OUTBOX)
        self._send_lock = threading.Lock()
        self._is_closed = False

    def send(self, frames: Sequence[bytes]) -> None:
        """From any thread.  Raises WorkerLost: this end was closed."""
        with self._send_lock:
            if self._is_closed:
                raise WorkerLost("the channel between router and worker is closed")
            self._sender.send_multipart(frames)

    def receive(self, timeout_s: float) -> list[bytes] | None:
        """Frames that came, sending meanwhile what is to be sent; on one thread."""
        poller, deadline_s = zmq.Poller(), time.monotonic() + timeout_s
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self._outbox, zmq.POLLIN)
        while True:
            left_ms = max(0, int((deadline_s - time.monotonic()) * 1000))
            ready = dict(poller.poll(left_ms))
            while self._outbox in ready and self._outbox.poll(0):
                self.socket.send_multipart(self._outbox.recv_multipart())
            if self.socket in ready:
                return self.socket.recv_multipart()
            if time.monotonic() >= deadline_s:
                return None

    def close(self) -> None:
        """Drop whatever is queued; to be called by the receiving thread."""
        with self._send_lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._sender.close()
        self._outbox.close()
        self.socket.close()
        self._guard.close()
        self._context.term()


@final
class RouterEnd:
    """The router's end: `send` from any thread, `receive` and `close` from one."""

    def __init__(self, host: str, port: int, key: PeerKey, *, may_be_public: bool = False) -> None:
        """
        Args:
            port: 0 is one that is free.
        Raises:
            ConfigError: an address that is refused, or that can not be listened at.
        """
        check_private(host, may_be_public=may_be_public)
        self._pump = _Pump(zmq.ROUTER, key)
        # a worker whose connection was cut comes back by its name
        self._pump.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        try:
            self._pump.socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self._pump.close()
            raise ConfigError(f"workers can not be listened for at {host}:{port}: {error}") from (
                error
            )
        self.address = self._pump.socket.getsockopt_string(zmq.LAST_ENDPOINT)[len("tcp://") :]

    def send(self, connection: bytes, message: codec.Message) -> None:
        """Queue a message for a worker.  Raises WorkerLost: this end was closed."""
        self._pump.send([connection, *codec.encode(message)])

    def receive(self, timeout_s: float) -> tuple[bytes, codec.Message] | None:
        """Who said what; none after `timeout_s`.  Raises WorkerError for a torn message."""
        frames = self._pump.receive(timeout_s)
        return None if frames is None else (frames[0], codec.decode(frames[1:]))

    def close(self) -> None:
        """Drop whatever is queued."""
        self._pump.close()


@final
class WorkerEnd:
    """A worker's end, as `Channel` is one on the same host."""

    def __init__(self, router: str, key: PeerKey) -> None:
        """
        Args:
            router: "HOST:PORT" of a `RouterEnd`; it need not be there yet.
        """
        self.heard_s = time.monotonic()  # when the router said anything last
        self._pump = _Pump(zmq.DEALER, key)
        self._pump.socket.setsockopt(zmq.ROUTING_ID, b"w" + secrets.token_bytes(15))
        try:
            self._pump.socket.connect(f"tcp://{router}")
        except zmq.ZMQError as error:
            self._pump.close()
            raise ConfigError(f"no router can be at {router!r}: {error}") from error

    def send(self, message: codec.Message) -> None:
        """Queue a message; returns at once.  Raises WorkerLost: this end was closed."""
        self._pump.send(codec.encode(message))

    def receive(self, timeout_s: float) -> codec.Message | None:
        """The next message; none after `timeout_s`.  Raises WorkerError for a torn one."""
        frames = self._pump.receive(timeout_s)
        if frames is None:
            return None
        self.heard_s = time.monotonic()
        return codec.decode(frames)

    def close(self) -> None:
        """Drop whatever is queued."""
        self._pump.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
