"""Sends payloads as a process of its own, and fails on demand; run by `test_pair_link`.

Its one argument is JSON: the fields of `Sending`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass

import torch

from hypic_sdk.config import keep_nccl_calm, see_one_gpu
from hypic_sdk.errors import TransferFailed
from hypic_sdk.links.link_address import LinkAddress
from hypic_sdk.links.pair_link import PendingLink, join
from hypic_sdk.transport.peer_messages import Carrier

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sending:
    """What a sender is to do, and what happens before its second payload."""

    host: str
    port: int
    epoch: int
    carrier: str
    token: str
    sizes: tuple[int, ...]
    fault: str = "none"  # kill, stop, leave
    gpu: int | None = None
    pause_s: float = 0.0  # after each payload

    @classmethod
    def to(cls, pending: PendingLink, sizes: tuple[int, ...], **fields: object) -> Sending:
        """To a receiver that listens."""
        at = pending.address
        place = {"host": at.host, "port": at.port, "epoch": at.epoch,
                 "carrier": at.carrier.value, "token": at.token.hex(), "sizes": sizes}  # fmt: skip
        return cls(**{**place, **fields})

    @property
    def command(self) -> list[str]:
        """That runs it."""
        return [sys.executable, "-m", "tests.links.sending_worker", json.dumps(asdict(self))]

    @property
    def address(self) -> LinkAddress:
        """Of the receiver."""
        token = bytes.fromhex(self.token)
        return LinkAddress(self.host, self.port, self.epoch, Carrier(self.carrier), token)


def payload_of(number: int, num_bytes: int) -> torch.Tensor:
    """Bytes that tell which payload they are of."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)


def main() -> None:
    """Send payloads of the given sizes; 3: the link broke."""
    sending = Sending(**json.loads(sys.argv[1]))
    device = CPU
    if sending.gpu is not None:
        see_one_gpu(sending.gpu, torch.cuda.device_count())
        keep_nccl_calm(is_loopback=True)
        device = torch.device("cuda:0")
    try:
        link = join(sending.address, timeout_s=10)
        for number, num_bytes in enumerate(sending.sizes):
            if number == 1:
                fail(sending.fault)
            link.send(payload_of(number, num_bytes).to(device), timeout_s=10, number=number)
            time.sleep(sending.pause_s)
    except TransferFailed:
        sys.exit(3)
    time.sleep(0.2)


def fail(fault: str) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "leave":
        sys.exit(0)


if __name__ == "__main__":
    main()
