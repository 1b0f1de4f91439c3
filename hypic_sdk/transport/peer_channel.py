"""Small messages between workers: each binds one socket and speaks to the others' by name.

On one host Unix sockets in a folder that only this user may enter; the same 0700 folder for all
workers of a server.  Between hosts TCP under CURVE: who has not the shared key is not let in, and
nothing that is said can be read or changed on the way.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Self, final

import zmq

from hypic_sdk.errors import ConfigError, WorkerLost
from hypic_sdk.transport import codec
from hypic_sdk.transport.curve import CurveGuard
from hypic_sdk.transport.peer_key import PeerKey, check_private
from hypic_sdk.transport.peer_messages import PeerMessage

WORKER_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
MAX_QUEUED = 1000  # messages to a peer that does not read them: then it counts as lost


@final
class PeerChannel:
    """One worker's end: `send` from any thread, `receive` from one."""

    def __init__(
        self,
        folder: Path | None,
        worker: str,
        *,
        host: str | None = None,
        key: PeerKey | None = None,
        may_be_public: bool = False,
    ) -> None:
        """
        Args:
            folder: exists, mode 0700; the same for all peers.  None: TCP.
            worker: this worker's id, which names its socket.
            host: the address of this machine for TCP.
            key: the same for all peers; TCP is refused without.
            may_be_public: whether `host` may be an address of the open network.
        Raises:
            ConfigError: TCP without a key, or at an address that is refused.
        """
        self._folder = folder
        if folder is None and key is None:
            raise ConfigError("workers of several hosts need a shared key (a key file)")
        if folder is None:
            check_private(host or "", may_be_public=may_be_public)
        self._endpoints: dict[str, str] = {}  # of peers, by TCP
        self._context = zmq.Context()
        self._guard = None
        if folder is None and key is not None:
            self._guard = CurveGuard(self._context, key)
        self._receiver = self._context.socket(zmq.PULL)
        self._receiver.setsockopt(zmq.LINGER, 0)
        if self._guard is not None:
            self._guard.secure(self._receiver, is_server=True)
        at = f"tcp://{host}:*" if folder is None else f"ipc://{self._path(worker)}"
        self._receiver.bind(at)
        self.endpoint = self._receiver.getsockopt_string(zmq.LAST_ENDPOINT)
        self._senders: dict[str, zmq.Socket[bytes]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def learn(self, worker: str, endpoint: str) -> None:
        """Where a peer of another host listens.  Raises ConfigError: not a TCP address."""
        if not re.fullmatch(r"tcp://[0-9a-fA-F.:\[\]]+:[0-9]+", endpoint):
            raise ConfigError(f"not a TCP address: {endpoint!r}")
        with self._lock:
            self._endpoints[worker] = endpoint

    def _path(self, worker: str) -> Path:
        assert WORKER_ID.fullmatch(worker), f"not a worker id: {worker!r}"
        assert self._folder is not None, "peers of other hosts have no path here"
        return self._folder / f"peer-{worker}.sock"

    def _address_of(self, worker: str) -> str | None:
        """Where a peer listens; none if it was never there."""
        if not WORKER_ID.fullmatch(worker):
            return None
        if self._folder is None:
            return self._endpoints.get(worker)
        path = self._path(worker)
        return f"ipc://{path}" if path.exists() else None

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
                address = self._address_of(worker)
                if address is None:
                    raise WorkerLost(f"there is no worker {worker}")
                sender = self._senders[worker] = self._connect(address)
            try:
                sender.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                raise WorkerLost(f"worker {worker} does not read its messages") from None

    def _connect(self, address: str) -> zmq.Socket[bytes]:
        sender = self._context.socket(zmq.PUSH)
        sender.setsockopt(zmq.LINGER, 0)
        sender.setsockopt(zmq.SNDHWM, MAX_QUEUED)
        if self._guard is not None:
            self._guard.secure(sender, is_server=False)
        sender.connect(address)
        return sender

    def forget(self, worker: str) -> None:
        """The peer is gone: drop what was queued for it."""
        with self._lock:
            sender = self._senders.pop(worker, None)
            self._endpoints.pop(worker, None)
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
        if self._guard is not None:
            self._guard.close()
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
