"""Engine processes under faults at random; prints what became of every request as JSON.

A program of its own, so that it can run in a network namespace where addresses can be made to
swallow everything (`unshare -rn python -m tests.cluster.soak.storm --holes`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress

from hypic_sdk.config import EngineConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import HypicError
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, segment_id
from hypic_sdk.router.costs import CostModel
from hypic_sdk.server.fleet import Fleet
from hypic_sdk.transport.control import Question
from hypic_sdk.transport.messages import EngineRequest, SamplingParams, TokenEvent
from hypic_sdk.transport.process_settings import ProcessSettings

START_TIMEOUT_S = 120.0
REQUEST_TIMEOUT_S = 20.0
LATE_S = 5.0  # an end within its deadline is seen by this much later at most
HUNG_AFTER_S = 5.0
NUM_CLIENTS = 3
SETTINGS = ProcessSettings(
    str(reader_path()), EngineConfig(store=StoreConfig(budget_bytes=96 << 20)), "CRITICAL"
)
SPREADING = CostModel(prefill_ms_per_token=100, transfer_ms=0.1, transfer_ms_per_token=0)
# of an error that its caller may well try again after
SUSPECT = "request_rejected"  # it was there at two deaths: by the rule, whoever was the killer
MAY_RETRY = frozenset({"worker_lost", "worker_error", "transfer_failed", "deadline_exceeded"})


def document(number: int) -> PromptPart:
    ids = tuple(100 + (7 * number + 3 * i) % 4000 for i in range(80 + 20 * number))
    return PromptPart(Role.INNER, ids, segment_id(f"document {number}"))


DOCUMENTS = [document(number) for number in range(6)]
ORDERS = [(0, 1, 2, 3, 4, 5), (5, 3, 1), (2, 4, 0, 1), (4, 5)]


def request(name: str, order: tuple[int, ...], namespace: str) -> EngineRequest:
    parts = (*(DOCUMENTS[n] for n in order), PromptPart(Role.TRAILING, (50, 51, 52)))
    return EngineRequest(
        name, SegmentedPrompt(parts), SamplingParams(6, ignore_eos=True), namespace,
        timeout_s=REQUEST_TIMEOUT_S,
    )  # fmt: skip


def tokens_and_error(fleet: Fleet, message: EngineRequest) -> tuple[list[int], str | None]:
    events = [event for event in fleet.link.submit(message) if isinstance(event, TokenEvent)]
    error = events[-1].error
    token_ids = [token for event in events for token in event.token_ids]
    return token_ids, None if error is None else error["code"]


class Storm:
    """Clients that ask without end, and a hand that breaks things."""

    def __init__(self, fleet: Fleet, expected: list[list[int]], seed: int) -> None:
        self.fleet = fleet
        self.expected = expected
        self.rng = random.Random(seed)
        self.numbers = itertools.count()
        self.ends: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.namespaces: set[str] = set()
        self.slowest_s = 0.0
        self.is_over = threading.Event()

    def client(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.is_over.is_set():
            number = next(self.numbers)
            # each pair of requests has entries of its own: what is cold is spread
            namespace, place = f"n{number // 2}", rng.randrange(len(ORDERS))
            self.namespaces.add(namespace)
            began_s = time.monotonic()
            message = request(f"r{number}", ORDERS[place], namespace)
            found, code = tokens_and_error(self.fleet, message)
            took_s = time.monotonic() - began_s
            self.slowest_s = max(self.slowest_s, took_s)
            self.ends[code or "well"] += 1
            if code is None and found != self.expected[place]:
                self.wrong.append(f"r{number}: other tokens")
            if code is not None and code not in {*MAY_RETRY, SUSPECT}:
                self.wrong.append(f"r{number}: {code}")
            if took_s > REQUEST_TIMEOUT_S + LATE_S:
                self.wrong.append(f"r{number}: ended after {took_s:.1f} s")
            if code is not None:
                time.sleep(0.2)

    def fault(self, kind: str) -> None:
        self.faults[kind] += 1
        place = self.rng.randrange(len(self.fleet.process_ids))
        pause_s = self.rng.uniform(0.2, 3.0)
        process = self.fleet.process_ids[place]
        if kind == "hole":
            hole(place, is_open=True)
            time.sleep(pause_s)
            hole(place, is_open=False)
        elif process is not None:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
                time.sleep(pause_s if kind == "stop" else 0.0)
                os.kill(process, signal.SIGCONT)

    def run(self, num_faults: int, kinds: list[str]) -> None:
        threads = [threading.Thread(target=self.client, args=(n,)) for n in range(NUM_CLIENTS)]
        for thread in threads:
            thread.start()
        for _ in range(num_faults):
            time.sleep(self.rng.uniform(0.1, 1.0))
            self.fault(self.rng.choice(kinds))
        self.is_over.set()
        for thread in threads:
            thread.join(REQUEST_TIMEOUT_S + 2 * LATE_S)
            if thread.is_alive():
                self.wrong.append("a request did not end")


def host_of(place: int) -> str:
    return f"10.77.0.{place + 1}"


def hole(place: int, *, is_open: bool) -> None:
    """Swallow whatever goes to a worker's address, or no longer."""
    host = host_of(place)
    if is_open:
        ip("addr", "del", f"{host}/32", "dev", "lo")
        ip("route", "add", "blackhole", f"{host}/32")
    else:
        ip("route", "del", "blackhole", f"{host}/32")
        ip("addr", "add", f"{host}/32", "dev", "lo")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def settled(fleet: Fleet) -> str | None:
    """What is still held when nobody asks for anything any more."""
    deadline_s = time.monotonic() + 90
    said = "nothing was told"
    while time.monotonic() < deadline_s:
        states = list(fleet.link.workers().values())
        if states == ["ready"] * len(fleet.process_ids):
            with suppress(HypicError):
                usage = fleet.link.usage()
                said = f"{usage['num_leases']} leases, {usage['num_filling']} filling"
                if usage["num_leases"] == usage["num_filling"] == 0:
                    return None
        time.sleep(0.2)
    return f"{states}: {said}"


def digests(fleet: Fleet, namespace: str) -> list[list[bytes | None]]:
    links = [supervisor.link for supervisor in fleet._supervisors]
    return [link.ask(Question.DIGESTS, DOCUMENTS, namespace) for link in links]


def compare_entries(storm: Storm, true: list[bytes]) -> int:
    """Check every entry that anybody holds; how many these are."""
    num_compared = 0
    for namespace in sorted(storm.namespaces):
        for held in digests(storm.fleet, namespace):
            for found, expected in zip(held, true, strict=True):
                num_compared += found is not None
                if found is not None and bytes(found) != expected:
                    storm.wrong.append(f"an entry of {namespace} has other bytes")
    return num_compared


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=8)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--holes", action="store_true")
    wanted = parser.parse_args()
    hosts = ["127.0.0.1"] * wanted.workers
    if wanted.holes:
        ip("link", "set", "lo", "up")
        hosts = [host_of(place) for place in range(wanted.workers)]
        for host in hosts:
            ip("addr", "add", f"{host}/32", "dev", "lo")
    with Fleet(SETTINGS, 1) as single:
        single.wait_ready(START_TIMEOUT_S)
        expected = [tokens_and_error(single, request("x", o, ""))[0] for o in ORDERS]
        true = [bytes(one or b"") for one in digests(single, "")[0]]
        assert all(true), "a document is not kept"
    began_s = time.monotonic()
    with Fleet(
        SETTINGS, wanted.workers, costs=SPREADING, hung_after_s=HUNG_AFTER_S, hosts=hosts
    ) as fleet:
        fleet.wait_ready(START_TIMEOUT_S)
        storm = Storm(fleet, expected, wanted.seed)
        storm.run(wanted.faults, ["kill", "stop", *(["hole"] * 2 if wanted.holes else [])])
        left = settled(fleet)
        if left is not None:
            storm.wrong.append(left)
        num_compared = compare_entries(storm, true)
        tallies = fleet.link.router.tallies().values()
        result = {
            "faults": dict(storm.faults),
            "ends": dict(storm.ends),
            "wrong": storm.wrong,
            "slowest_s": round(storm.slowest_s, 2),
            "entries_compared": num_compared,
            "entries_fetched": sum(tally.num_fetched for tally in tallies),
            "entries_not_fetched": sum(tally.num_not_fetched for tally in tallies),
            "restarts": fleet.health.num_restarts,
            "wall_s": round(time.monotonic() - began_s, 1),
        }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
