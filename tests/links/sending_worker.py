"""A worker process that sends what it is told to, and fails the way it is told to."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from hypic_sdk.errors import TransferFailed
from hypic_sdk.links.pair_link import LinkAddress, join

CPU = torch.device("cpu")


def payload_of(number: int, num_bytes: int) -> torch.Tensor:
    """Bytes that both ends can make."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)


def main() -> None:
    """Usage: PORT EPOCH FAULT NUM_BYTES...; FAULT is what happens after the first payload."""
    port, epoch, fault, *sizes = sys.argv[1:]
    try:
        link = join(LinkAddress("127.0.0.1", int(port), int(epoch)), CPU, timeout_s=10)
        for number, num_bytes in enumerate(map(int, sizes)):
            if number == 1:
                fail(fault)
            link.send(payload_of(number, num_bytes), timeout_s=10, number=number)
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
