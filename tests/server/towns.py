"""A router without workers of its own, and `hypic worker` as a process of another host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypic_sdk.server.fleet import Fleet
from hypic_sdk.server.worker_gate import GateSettings
from hypic_sdk.transport.peer_key import PeerKey
from tests.server.test_fleet import SMALL, SPREADING

ROUTER_HOST, OTHER_HOST = "127.0.0.1", "127.0.0.2"  # two addresses of loopback as two hosts
HUNG_AFTER_S = 6.0


@dataclass(frozen=True)
class Town:
    """A router without workers of its own, and the key to it."""

    fleet: Fleet
    key_file: Path
    address: str


@contextmanager
def open_town(folder: Path, num_workers: int = 0) -> Iterator[Town]:
    """A fleet of so many own workers that lets others in."""
    key_file = folder / "workers.key"
    PeerKey.new().write(key_file)
    gate = GateSettings(ROUTER_HOST, 0, key_file)
    with Fleet(SMALL, num_workers, costs=SPREADING, hung_after_s=HUNG_AFTER_S, gate=gate) as fleet:
        yield Town(fleet, key_file, fleet.gate_address)


@contextmanager
def host(town: Town, place: str, address: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`hypic worker` as a process of its own; ended with the block."""
    command = [
        sys.executable, "-m", "hypic_sdk.cli", "worker", "--router", town.address,
        "--key", str(town.key_file), "--host", address, "--place", place, *words,
    ]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def states(town: Town) -> dict[str, str]:
    """By place: `a_0-3` is whichever process is at `a_0`."""
    return {worker.rpartition("-")[0]: state for worker, state in town.fleet.link.workers().items()}


def children_of(process_id: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process_id)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in listed.stdout.split()]
