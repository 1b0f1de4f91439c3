"""The receiver's side of links in tests: a sender process beside it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hypic_sdk.links.link_address import PairLink
from hypic_sdk.links.pair_link import PendingLink
from tests.links.sending_worker import CPU, Sending, payload_of

SIZES = (1, 7, 4096, 1_000_003)


@contextmanager
def sender(
    pending: PendingLink, sizes: tuple[int, ...] = SIZES, **fields: object
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that sends; ended with the block."""
    process = subprocess.Popen(
        Sending.to(pending, sizes, **fields).command, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def received(
    link: PairLink, number: int, num_bytes: int, timeout_s: float = 10, device: torch.device = CPU
) -> bool:
    """Whether a payload comes, and is the one that was sent."""
    payload = link.receive(num_bytes, timeout_s=timeout_s, device=device, number=number)
    assert payload.device.type == device.type
    return torch.equal(payload.cpu(), payload_of(number, num_bytes))
