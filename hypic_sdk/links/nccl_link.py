"""A link between two GPUs: a process group of just two, made over a store of its own (design 10).

There is no world group.  The two ends have met by a socket already (`pair_link`); by it the
receiver tells where its key-value store listens.  Waits have deadlines of the host; NCCL's own
watchdogs are kept from ending the process (`config.keep_nccl_calm`).
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed

from hypic_sdk.errors import TransferFailed

dist: Any = torch.distributed  # much of what is used here is in no stub
RECEIVER, SENDER = 0, 1  # ranks
PORT = struct.Struct("!H")
POLL_S = 1e-4
MEET_TIMEOUT_S = 20.0  # of the group: the first of a process has NCCL look at the machine


@final
class NcclLink:
    """A `PairLink` between memories of GPUs.

    Payloads come in the order in which they were sent: NCCL knows no numbers.  An end that is out
    of step is found by the digest.
    """

    def __init__(self, group: Any, store: Any, rank: int, connection: socket.socket) -> None:
        """Use `accept_nccl` and `join_nccl`."""
        self._group = group
        self._store = store  # lives as long as the group that was made over it
        self._rank = rank
        self._connection = connection  # says by its end that the other is gone
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """See `PairLink.is_open`."""
        return self._group is not None

    def send(self, payload: torch.Tensor, *, timeout_s: float, number: int = 0) -> None:
        """See `PairLink.send`."""
        assert self._rank == SENDER, "a receiver does not send"
        self._move(payload, timeout_s)

    def receive(
        self, num_bytes: int, *, timeout_s: float, device: torch.device, number: int = 0
    ) -> torch.Tensor:
        """See `PairLink.receive`."""
        assert self._rank == RECEIVER, "a sender does not receive"
        payload = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._move(payload, timeout_s)
        return payload

    def _move(self, payload: torch.Tensor, timeout_s: float) -> None:
        group = self._group
        if group is None:
            raise TransferFailed("the link was closed")
        peer = SENDER if self._rank == RECEIVER else RECEIVER
        deadline_s = time.monotonic() + timeout_s
        try:
            move = group.recv if self._rank == RECEIVER else group.send
            move([payload], peer, 0).wait()  # this thread's stream waits; the host goes on
            is_moved = torch.cuda.Event()
            is_moved.record(torch.cuda.current_stream(payload.device))
            while not is_moved.query():
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"not in time ({timeout_s:g} s)")
                time.sleep(POLL_S)
            if not self.is_open:  # its end ends the wait as well
                raise ConnectionAbortedError("the link was closed")
        except (OSError, RuntimeError) as error:  # torch's own are of the latter class
            self.close()
            raise TransferFailed(f"the link broke: {error}", timeout_s=timeout_s) from error

    def close(self) -> None:
        """See `PairLink.close`."""
        with self._lock:
            group, self._group = self._group, None
            store, self._store = self._store, None
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        if group is not None:
            # a kernel that waits for the other end is ended; that may take, so nobody waits for it
            threading.Thread(
                target=_abandon, args=(group, store), name="hypic-link-end", daemon=True
            ).start()


def _abandon(group: Any, store: Any) -> None:
    """End a group, and only then let go of it and its store."""
    with suppress(RuntimeError):
        group.abort()
    del group, store


def accept_nccl(connection: socket.socket, host: str) -> NcclLink:
    """The receiver's end.  Raises TransferFailed."""
    listener = socket.create_server((host, 0), backlog=2)
    port = int(listener.getsockname()[1])
    try:
        # with a socket of its own a store would listen at every address of the machine
        store = dist.TCPStore(
            host, port, 2, is_master=True, timeout=timedelta(seconds=MEET_TIMEOUT_S),
            wait_for_workers=False, master_listen_fd=listener.detach(),
        )  # fmt: skip
        connection.sendall(PORT.pack(port))
        return _link(store, RECEIVER, connection)
    except (OSError, RuntimeError) as error:
        connection.close()
        raise TransferFailed(f"no link at {host}: {error}") from error


def join_nccl(connection: socket.socket, host: str) -> NcclLink:
    """The sender's end.  Raises TransferFailed."""
    try:
        (port,) = PORT.unpack(_exactly(connection, PORT.size, MEET_TIMEOUT_S))
        store = dist.TCPStore(
            host, port, 2, is_master=False, timeout=timedelta(seconds=MEET_TIMEOUT_S)
        )
        return _link(store, SENDER, connection)
    except (OSError, RuntimeError) as error:
        connection.close()
        raise TransferFailed(f"no link at {host}: {error}") from error


def _exactly(connection: socket.socket, num_bytes: int, timeout_s: float) -> bytes:
    said, deadline_s = b"", time.monotonic() + timeout_s
    while len(said) < num_bytes:
        connection.settimeout(max(1e-3, deadline_s - time.monotonic()))
        more = connection.recv(num_bytes - len(said))
        if not more:
            raise ConnectionResetError("the other end is gone")
        said += more
    return said


def _link(store: Any, rank: int, connection: socket.socket) -> NcclLink:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=MEET_TIMEOUT_S)
    options.is_high_priority_stream = True  # a copy does not wait behind a forward
    return NcclLink(dist.ProcessGroupNCCL(store, rank, 2, options), store, rank, connection)
