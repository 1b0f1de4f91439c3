"""Where a link is met, what it is made of, and what both kinds of link can do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch

from hypic_sdk.transport.peer_messages import Carrier


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """Where the receiver listens, and which of its links this is."""

    host: str
    port: int
    epoch: int  # of this ordered pair of workers: never used twice
    carrier: Carrier = Carrier.TCP
    token: bytes = field(default=b"", repr=False)  # told by a channel that strangers can not read


class PairLink(Protocol):
    """One end of a one-way link.  One thread uses it at a time; any thread may `close` it."""

    @property
    def is_open(self) -> bool:
        """Whether it can still carry anything."""
        ...

    def send(self, payload: torch.Tensor, *, timeout_s: float, number: int = 0) -> None:
        """Send a payload.

        Args:
            payload: [n] uint8, contiguous.
            number: which payload it is; the receiver asks for the same one.
        Raises:
            TransferFailed: not taken in time, or the other end is gone; the link is closed.
        """
        ...

    def receive(
        self, num_bytes: int, *, timeout_s: float, device: torch.device, number: int = 0
    ) -> torch.Tensor:
        """Receive a payload.

        Returns:
            [num_bytes] uint8 on `device`: memory of its own, which nobody else writes or has
            written.
        Raises:
            TransferFailed: not there in time, not the one that was asked for, or the other end is
                gone; the link is closed.
        """
        ...

    def close(self) -> None:
        """Carry nothing more; whoever waits in it fails.  Never waits itself."""
        ...
