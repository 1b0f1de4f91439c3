"""Bytes from one worker to one other, over a process group of just these two (design 10).

There is no world group: a group of two is made when it is first needed, over a key-value store that
the receiver hosts, and after any failure both ends drop it.  The next one has another epoch, so no
byte of the old one is ever read.  Nothing here waits without a deadline.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, final

import torch
import torch.distributed

from hypic_sdk.errors import TransferFailed

dist: Any = torch.distributed  # much of what is used here is in no stub
RECEIVER, SENDER = 0, 1  # ranks
MAX_PIECE_BYTES = 256 << 20  # of one send: what one wait is for
MAX_PIECES = 1 << 10
MAX_NUMBER = 1 << 20  # payload numbers come round again after so many


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """Where the receiver's store listens, and which of its links this is."""

    host: str
    port: int
    epoch: int  # of this ordered pair of workers: never used twice


@final
class PairLink:
    """One end of a one-way link.  One thread uses it at a time; any thread may `close` it."""

    def __init__(self, group: Any, store: Any, rank: int, address: LinkAddress) -> None:
        """Use `listen` and `join`."""
        self.address = address
        self._group = group
        self._store = store  # lives as long as the group that was made over it
        self._rank = rank

    @property
    def is_open(self) -> bool:
        """Whether it can still carry anything."""
        return self._group is not None

    def send(self, payload: torch.Tensor, *, timeout_s: float, number: int = 0) -> None:
        """Send a payload.

        Args:
            payload: [n] uint8, contiguous, on the device that the link was made for.
            number: which payload it is; the receiver asks for the same one.
        Raises:
            TransferFailed: not taken in time, or the other end is gone; the link is closed.
        """
        assert self._rank == SENDER, "a receiver does not send"
        self._move(payload, timeout_s, number)

    def receive(
        self, num_bytes: int, *, timeout_s: float, device: torch.device, number: int = 0
    ) -> torch.Tensor:
        """Receive a payload.

        One of another number is not taken for it: nothing comes where the ends got out of step.
        (Gloo ends the process when a payload meets the place of one of another size.)

        Returns:
            [num_bytes] uint8: memory of its own, which nobody else writes or has written.
        Raises:
            TransferFailed: not there in time, or the other end is gone; the link is closed.
        """
        assert self._rank == RECEIVER, "a sender does not receive"
        payload = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._move(payload, timeout_s, number)
        return payload

    def _move(self, payload: torch.Tensor, timeout_s: float, number: int) -> None:
        deadline_s = time.monotonic() + timeout_s
        peer = SENDER if self._rank == RECEIVER else RECEIVER
        first = number % MAX_NUMBER * MAX_PIECES
        for tag, piece in enumerate(payload.split(MAX_PIECE_BYTES), first):
            left_s = deadline_s - time.monotonic()
            group = self._group
            if group is None or left_s <= 0:
                self.close()
                raise TransferFailed(f"no transfer within {timeout_s:g} s", timeout_s=timeout_s)
            try:
                move = group.recv if self._rank == RECEIVER else group.send
                move([piece], peer, tag).wait(timedelta(seconds=left_s))
            except RuntimeError as error:
                # torch says time-outs and broken connections alike by this class
                self.close()
                raise TransferFailed(f"the link broke: {error}", timeout_s=timeout_s) from error

    def close(self) -> None:
        """Drop the group and its store; the other end fails at its next wait."""
        self._group = None
        self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@final
class PendingLink:
    """A receiver's end before its sender came."""

    def __init__(self, host: str, epoch: int, *, timeout_s: float) -> None:
        """Begin to listen on a free port of `host`.

        Args:
            host: an address of this machine that the sender can reach.
            timeout_s: how long a group may take to come about.
        Raises:
            TransferFailed: not an address of this machine, or no port is left.
        """
        self._timeout_s = timeout_s
        try:
            # only listens: who asks for an entry must not wait for a store to come about
            self._listener = socket.create_server((host, 0), backlog=8)
        except OSError as error:
            raise TransferFailed(f"no link can listen at {host}: {error}") from error
        self.address = LinkAddress(host, int(self._listener.getsockname()[1]), epoch)

    def accept(self, device: torch.device) -> PairLink:
        """Wait for the sender; once.  Raises TransferFailed: none came in time."""
        timeout = timedelta(seconds=self._timeout_s)
        try:
            # with a socket of its own a store would listen at every address of the machine
            store = dist.TCPStore(
                self.address.host, self.address.port, 2, is_master=True, timeout=timeout,
                wait_for_workers=False, master_listen_fd=self._listener.detach(),
            )  # fmt: skip
        except (OSError, RuntimeError) as error:
            raise TransferFailed(f"no store at {self.address}: {error}") from error
        return _connect(store, self.address, RECEIVER, device, self._timeout_s)

    def close(self) -> None:
        """Listen no longer, if nobody was accepted."""
        self._listener.close()


def join(address: LinkAddress, device: torch.device, *, timeout_s: float) -> PairLink:
    """Come to a receiver that listens.  Raises TransferFailed: it is not there in time."""
    try:
        store = dist.TCPStore(
            address.host, address.port, 2, is_master=False, timeout=timedelta(seconds=timeout_s)
        )
    except RuntimeError as error:
        raise TransferFailed(f"nobody listens at {address}: {error}", port=address.port) from error
    return _connect(store, address, SENDER, device, timeout_s)


def _connect(
    store: Any, address: LinkAddress, rank: int, device: torch.device, timeout_s: float
) -> PairLink:
    prefixed = dist.PrefixStore(f"epoch/{address.epoch}", store)
    try:
        group = _group(prefixed, rank, device, address.host, timeout_s)
    except RuntimeError as error:
        raise TransferFailed(f"no link at {address}: {error}", port=address.port) from error
    return PairLink(group, store, rank, address)


def _group(store: Any, rank: int, device: torch.device, host: str, timeout_s: float) -> Any:
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        return dist.ProcessGroupNCCL(store, rank, 2, options)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    # bound to the interface of the link's own host: never to whatever the machine's name says
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=_own_address(host))]
    return dist.ProcessGroupGloo(store, rank, 2, options)


def _own_address(peer: str) -> str:
    """The address of this machine from which `peer` is reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))  # sends nothing: chooses the route
        return str(probe.getsockname()[0])
