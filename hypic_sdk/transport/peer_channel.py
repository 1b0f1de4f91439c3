"""Small messages between workers: each binds one socket and speaks to the others' by name.

On one host Unix sockets in a folder that only this user may enter; the same 0700 folder for all
workers of a server.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Self, final

import zmq

from hypic_sdk.errors import WorkerLost
from hypic_sdk.transport import codec
from hypic_sdk.transport.peer_messages import PeerMessage

WORKER_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
MAX_QUEUED = 1000  # messages to a peer that does not read them: then it counts as lost


@final
class PeerChannel:
    """One worker's end: `send` from any thread, `receive` from one."""

    def __init__(self, folder: Path, worker: str) -> None:
        """
        Args:
            folder: exists, mode 0700; the same for all peers.
            worker: this worker's id, which names its socket.
        """
        self._folder = folder
        self._context = zmq.Context()
        self._receiver = self._context.socket(zmq.PULL)
        self._receiver.setsockopt(zmq.LINGER, 0)
        self._receiver.bind(f"ipc://{self._path(worker)}")
        self._senders: dict[str, zmq.Socket[bytes]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def _path(self, worker: str) -> Path:
        assert WORKER_ID.fullmatch(worker), f"not a worker id: {worker!r}"
        return self._folder / f"peer-{worker}.sock"

    def send(self, worker: str, message: PeerMessage) -> None:
        """Queue a message to a peer; returns at once.

        Raises:
            WorkerLost: the peer was never there, does not read, or this end was closed.
        """
        frames = codec.encode(message)
        with self._lock:
            if self._is_closed:
                raise WorkerLost("the channel to other workers is closed")
            sender = self._senders.get(worker)
            if sender is None:
                if not WORKER_ID.fullmatch(worker) or not self._path(worker).exists():
                    raise WorkerLost(f"there is no worker {worker}")
                sender = self._senders[worker] = self._connect(worker)
            try:
                sender.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                raise WorkerLost(f"worker {worker} does not read its messages") from None

    def _connect(self, worker: str) -> zmq.Socket[bytes]:
        sender = self._context.socket(zmq.PUSH)
        sender.setsockopt(zmq.LINGER, 0)
        sender.setsockopt(zmq.SNDHWM, MAX_QUEUED)
        sender.connect(f"ipc://{self._path(worker)}")
        return sender

    def forget(self, worker: str) -> None:
        """The peer is gone: drop what was queued for it."""
        with self._lock:
            sender = self._senders.pop(worker, None)
            if sender is not None:
                sender.close()

    def receive(self, timeout_s: float) -> codec.Message | None:
        """The next message; none after `timeout_s`.  Raises WorkerError for a torn one."""
        if not self._receiver.poll(int(timeout_s * 1000)):
            return None
        return codec.decode(self._receiver.recv_multipart())

    def close(self) -> None:
        """Drop whatever is queued; to be called by the receiving thread."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for sender in self._senders.values():
                sender.close()
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
