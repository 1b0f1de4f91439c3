"""Two one-way streams of messages between an API process and one engine process.

ZeroMQ PUSH and PULL over Unix sockets in a folder that only this user may enter.  The API process
binds; each engine process gets a fresh folder, so that no message of a dead one is ever read.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, final

import zmq

from hypic_sdk.errors import WorkerLost
from hypic_sdk.transport import codec

COMMANDS = "commands.sock"  # API process to engine process
EVENTS = "events.sock"  # engine process to API process


class MessageEnd(Protocol):
    """One end of a channel, on one host or between two."""

    def send(self, message: codec.Message) -> None:
        """Queue a message; from any thread; returns at once.  Raises WorkerLost."""
        ...

    def receive(self, timeout_s: float) -> codec.Message | None:
        """The next message; on one thread; none after `timeout_s`.  Raises WorkerError."""
        ...


class MessageSender(Protocol):
    """Takes messages to one other end."""

    def send(self, message: codec.Message) -> None:
        """Queue a message; from any thread; returns at once.  Raises WorkerLost."""
        ...


def unbounded_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A socket of a ZeroMQ kind whose queues have no end, and which drops them when it is closed.

    The engine's own limits bound what is in flight; a full queue must never block a thread.
    """
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    return socket


@final
class Channel:
    """One end: `send` from any thread, `receive` from one."""

    def __init__(self, folder: Path, *, is_api: bool) -> None:
        """
        Args:
            folder: exists, mode 0700; both ends name the same.
            is_api: the API process's end, which binds and speaks commands.
        """
        self._context = zmq.Context()
        send_name, receive_name = (COMMANDS, EVENTS) if is_api else (EVENTS, COMMANDS)
        self._sender = self._socket(zmq.PUSH, folder / send_name, bind=is_api)
        self._receiver = self._socket(zmq.PULL, folder / receive_name, bind=is_api)
        self._send_lock = threading.Lock()
        self._is_closed = False

    def _socket(self, kind: int, path: Path, *, bind: bool) -> zmq.Socket[bytes]:
        socket = unbounded_socket(self._context, kind)
        (socket.bind if bind else socket.connect)(f"ipc://{path}")
        return socket

    def send(self, message: codec.Message) -> None:
        """Queue a message; returns at once.

        Raises:
            WorkerLost: this end was closed, or (on the API process's end) nobody is at the other.
        """
        frames = codec.encode(message)
        with self._send_lock:
            if self._is_closed:
                raise WorkerLost("the channel to the engine is closed")
            try:
                # without NOBLOCK a send to a process that is gone would wait for the next one
                self._sender.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                raise WorkerLost("no engine is at the other end of the channel") from None

    def wait_for_peer(self, timeout_s: float) -> bool:
        """Wait until the other end takes messages; whether it does.

        Each direction connects by itself: a message that came says nothing about the way back.
        """
        with self._send_lock:
            return bool(self._sender.poll(int(timeout_s * 1000), zmq.POLLOUT))

    def receive(self, timeout_s: float) -> codec.Message | None:
        """The next message; none after `timeout_s`.  Raises WorkerError for a torn one."""
        if not self._receiver.poll(int(timeout_s * 1000)):
            return None
        return codec.decode(self._receiver.recv_multipart())

    def close(self) -> None:
        """Drop whatever is queued; to be called by the receiving thread."""
        with self._send_lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._sender.close()
        self._receiver.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
