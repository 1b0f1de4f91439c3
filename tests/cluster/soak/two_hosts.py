"""Two hosts on one wire that swallows everything now and then; prints what became of requests.

A program of its own, to be run in a network namespace (`unshare -rn python -m
tests.cluster.soak.two_hosts`): that is the router's host, with one worker.  The other host is a
second namespace with `hypic worker` in it.  While the wire is cut, packets go to a hardware address
that nobody has: neither end is told anything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypic_sdk.errors import HypicError
from hypic_sdk.server.fleet import Fleet
from hypic_sdk.server.worker_gate import GateSettings
from hypic_sdk.transport.messages import TokenEvent
from hypic_sdk.transport.peer_key import PeerKey
from tests.cluster.soak.storm import (
    HUNG_AFTER_S,
    LATE_S,
    MAY_RETRY,
    ORDERS,
    REQUEST_TIMEOUT_S,
    SETTINGS,
    SPREADING,
    START_TIMEOUT_S,
    ip,
    request,
    tokens_and_error,
)

HERE, THERE = "10.78.0.1", "10.78.0.2"
NOBODY = "02:00:00:00:00:99"
ORDER = ORDERS[0]
# when the wire is cut: before the router's plan, or so long after it
PHASES = {"dispatch": 0.0, "early transfer": 0.05, "transfer": 0.15, "late transfer": 0.4}
ALL_PHASES = [*PHASES, "combine", "combine there"]
CUT_S = 3.0


class Wire:
    """The second host, and the wire to it."""

    def __init__(self) -> None:
        self.host = subprocess.Popen(["unshare", "-n", "sleep", "100000"])
        time.sleep(0.3)
        ip("link", "set", "lo", "up")
        ip("link", "add", "here", "type", "veth", "peer", "name", "there")
        ip("link", "set", "there", "netns", str(self.host.pid))
        ip("addr", "add", f"{HERE}/24", "dev", "here")
        ip("link", "set", "here", "up")
        for words in (("link", "set", "lo", "up"), ("addr", "add", f"{THERE}/24", "dev", "there"),
                      ("link", "set", "there", "up")):  # fmt: skip
            subprocess.run([*self.inside, "ip", *words], check=True)

    @property
    def inside(self) -> list[str]:
        """What stands before a command on the other host."""
        return ["nsenter", "-t", str(self.host.pid), "-n"]

    def cut(self) -> None:
        """Swallow whatever goes either way."""
        words = ("lladdr", NOBODY, "nud", "permanent", "dev")
        ip("neigh", "replace", THERE, *words, "here")
        subprocess.run([*self.inside, "ip", "neigh", "replace", HERE, *words, "there"], check=True)

    def mend(self) -> None:
        """Let everything pass again."""
        ip("neigh", "del", THERE, "dev", "here")
        subprocess.run([*self.inside, "ip", "neigh", "del", HERE, "dev", "there"], check=True)

    def close(self) -> None:
        """The other host ends."""
        self.host.kill()
        self.host.wait()


class Trial:
    """Requests over a wire that is cut in each phase; what was wrong with them."""

    def __init__(self, fleet: Fleet, wire: Wire, expected: list[int]) -> None:
        self.fleet = fleet
        self.wire = wire
        self.expected = expected
        self.wrong: list[str] = []
        self.ends: Counter[str] = Counter()
        self.slowest_s = 0.0

    def run(self, name: str, phase: str) -> None:
        """One request; the wire is cut in this phase, and mended after a while."""
        if not self.settles(2):
            self.wrong.append(f"{name}: workers or leases before: {self.fleet.link.workers()}")
            return
        if phase == "combine there":  # whoever holds the documents answers
            there = next(p for w, p in self.fleet.ports().items() if w.startswith("there"))
            list(there.submit(request(f"{name} before", ORDER, name)))
        if phase == "dispatch":
            self.wire.cut()
        began_s = time.monotonic()
        stream = self.fleet.link.submit(request(name, ORDER, name))
        if phase.startswith("combine"):
            self.ends_after(name, stream, began_s, cut_at_first=True)
        else:
            if phase != "dispatch":
                time.sleep(PHASES[phase])
                self.wire.cut()
            self.ends_after(name, stream, began_s, cut_at_first=False)
        time.sleep(max(0.0, CUT_S - (time.monotonic() - began_s)))
        self.wire.mend()

    def ends_after(
        self, name: str, stream: Iterator[object], began_s: float, *, cut_at_first: bool
    ) -> None:
        """Hear a request to its end, and hold it to its deadline."""
        token_ids: list[int] = []
        error: str | None = None
        for event in stream:
            assert isinstance(event, TokenEvent)
            if cut_at_first:
                self.wire.cut()
                cut_at_first = False
            token_ids += event.token_ids
            error = None if event.error is None else event.error["code"]
        took_s = time.monotonic() - began_s
        self.slowest_s = max(self.slowest_s, took_s)
        self.ends[error or "well"] += 1
        if error is None and token_ids != self.expected:
            self.wrong.append(f"{name}: other tokens")
        if error is not None and error not in MAY_RETRY:
            self.wrong.append(f"{name}: {error}")
        if took_s > REQUEST_TIMEOUT_S + LATE_S:
            self.wrong.append(f"{name}: ended after {took_s:.1f} s")

    def settles(self, num_workers: int) -> bool:
        """Whether so many workers come to be ready, each met by the other, with nothing leased."""
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            states = list(self.fleet.link.workers().values())
            if states == ["ready"] * num_workers and len(self.fleet.endpoints) == num_workers:
                try:
                    usage = self.fleet.link.usage()
                except HypicError:
                    continue
                if usage["num_leases"] == usage["num_filling"] == 0:
                    return True
            time.sleep(0.1)
        return False


@contextmanager
def worker_there(wire: Wire, address: str, key_file: Path) -> Iterator[None]:
    """`hypic worker` on the other host."""
    words = ["worker", "--router", address, "--key", str(key_file), "--host", THERE]
    command = [*wire.inside, sys.executable, "-m", "hypic_sdk.cli", *words, "--place", "there"]
    process = subprocess.Popen([*command, "--model", SETTINGS.model_folder])
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--phase", action="append", choices=ALL_PHASES)
    wanted = parser.parse_args()
    with Fleet(SETTINGS, 1) as single:
        single.wait_ready(START_TIMEOUT_S)
        expected, _ = tokens_and_error(single, request("x", ORDER, ""))
    wire, began_s = Wire(), time.monotonic()
    key_file = Path(tempfile.mkdtemp()) / "workers.key"
    PeerKey.new().write(key_file)
    gate = GateSettings(HERE, 0, key_file)
    with (
        Fleet(SETTINGS, 1, costs=SPREADING, hung_after_s=HUNG_AFTER_S, gate=gate) as fleet,
        worker_there(wire, fleet.gate_address, key_file),
    ):
        fleet.wait_ready(START_TIMEOUT_S)
        trial = Trial(fleet, wire, expected)
        phases = wanted.phase or ALL_PHASES
        for number in range(wanted.rounds):
            for phase in phases:
                trial.run(f"{phase} {number}", phase)
        if not trial.settles(2):
            trial.wrong.append(f"in the end: {fleet.link.workers()}")
        facts = fleet.link.worker_facts().values()
        result = {
            "phases": phases,
            "ends": dict(trial.ends),
            "wrong": trial.wrong,
            "slowest_s": round(trial.slowest_s, 2),
            "entries_fetched": sum(one.num_fetched for one in facts),
            "entries_not_fetched": sum(one.num_not_fetched for one in facts),
            "wall_s": round(time.monotonic() - began_s, 1),
        }
    wire.close()
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
