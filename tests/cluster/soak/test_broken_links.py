"""Links lose, change, delay and swallow bytes at random: answers and entries stay those of one."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hypic_sdk.engine import fetching
from hypic_sdk.errors import TransferFailed
from hypic_sdk.links import courier, link_ends
from hypic_sdk.links.tcp_link import TcpLink
from hypic_sdk.prompt.segment import SegmentedPrompt
from hypic_sdk.transport.messages import WarmRequest
from hypic_sdk.transport.peer_channel import PeerChannel
from hypic_sdk.transport.peer_messages import PeerMessage
from tests.cluster.workers import Cluster, alone, cluster, token_events
from tests.engine.harness import engine_of, request_of, token_ids
from tests.engine.prompts import inner, prompt_of, tokens

DOCUMENTS = [inner(tokens(seed, 20 + 13 * seed)) for seed in range(5)]
ORDERS = [(0, 1, 2, 3, 4), (4, 2, 0), (3, 1), (2, 2, 4, 1)]
LIMIT_S = 20.0  # of one request: several fetches may time out, one after the other


def prompt(order: tuple[int, ...]) -> SegmentedPrompt:
    pieces = [piece for n in order for piece in (DOCUMENTS[n], tokens(50 + n, 2))]
    return prompt_of(tokens(99, 5), *pieces, tokens(98, 9))


class Trouble:
    """Breaks every so many sends, by a kind that is drawn."""

    def __init__(self, patch: pytest.MonkeyPatch, seed: int, share: float) -> None:
        self.rng = random.Random(seed)
        self.share = share
        self.faults: Counter[str] = Counter()
        self.num_asked = 0
        self.lock = threading.Lock()
        self.send_bytes, self.send_word = TcpLink.send, PeerChannel.send
        trouble = self

        def send_bytes(
            link: TcpLink, payload: torch.Tensor, *, timeout_s: float, number: int
        ) -> None:
            trouble.bytes_go(link, payload, timeout_s, number)

        def send_word(channel: PeerChannel, worker: str, message: PeerMessage) -> None:
            if not trouble.strikes(0.1 * trouble.share, ("deaf",)):
                trouble.send_word(channel, worker, message)

        patch.setattr(TcpLink, "send", send_bytes)
        patch.setattr(PeerChannel, "send", send_word)

    def strikes(self, share: float, kinds: tuple[str, ...]) -> str | None:
        with self.lock:
            if self.rng.random() >= share:
                return None
            kind = self.rng.choice(kinds)
            self.faults[kind] += 1
            return kind

    def bytes_go(self, link: TcpLink, payload: torch.Tensor, timeout_s: float, number: int) -> None:
        kind = self.strikes(self.share, ("swallow", "cut", "change", "late"))
        if kind == "swallow":
            return
        if kind == "cut":
            link.close()
            raise TransferFailed("cut")
        if kind == "change":
            payload = payload.clone()
            payload[self.rng.randrange(payload.numel())] ^= 1
        if kind == "late":
            time.sleep(0.7)
        self.send_bytes(link, payload, timeout_s=timeout_s, number=number)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_ends, "CONNECT_TIMEOUT_S", 1.0)
    monkeypatch.setattr(link_ends, "TRANSFER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(fetching, "FETCH_TIMEOUT_S", 1.5)
    monkeypatch.setattr(courier, "MAX_REST_S", 0.2)


def storm(workers: Cluster, trouble: Trouble, num_faults: int, limit_s: float) -> list[str]:
    """Ask until so many faults struck; what was wrong."""
    expected = [alone(prompt(order), max_tokens=4) for order in ORDERS]
    wrong: list[str] = []
    deadline_s = time.monotonic() + limit_s
    number = 0
    while sum(trouble.faults.values()) < num_faults and time.monotonic() < deadline_s:
        began_s = time.monotonic()
        # two at once share entries that nobody has yet
        batch = [(place, f"n{number}") for place in trouble.rng.sample(range(len(ORDERS)), 2)]
        streams = [
            workers.router.submit(
                replace(request_of(prompt(ORDERS[place]), max_tokens=4), namespace=namespace)
            )
            for place, namespace in batch
        ]
        for (place, namespace), stream in zip(batch, streams, strict=True):
            if token_ids(token_events(stream)) != expected[place]:
                wrong.append(f"{namespace}: other tokens")
        if time.monotonic() - began_s > LIMIT_S:
            wrong.append(f"n{number}: {time.monotonic() - began_s:.1f} s")
        number += 1
    trouble.num_asked = number
    return wrong


def assert_nothing_is_left(workers: Cluster) -> None:
    deadline_s = time.monotonic() + 20
    for member in workers.members:
        while member.worker.call(lambda engine: engine.has_work):
            assert time.monotonic() < deadline_s, "work is left"
            time.sleep(0.01)
        usage = member.worker.call(lambda engine: engine.usage())
        assert (usage.num_leases, usage.num_filling) == (0, 0)
        member.worker.call(lambda engine: engine.check())


def assert_true_entries(workers: Cluster, num_namespaces: int) -> None:
    """Every entry that anybody holds is that of a worker that never met another."""
    true = true_digests()
    assert all(true)
    num_compared = 0
    for member in workers.members:
        for number in range(num_namespaces):
            held = member.worker.call(
                lambda engine, n=number: engine.entry_digests(DOCUMENTS, f"n{n}")
            )
            for found, expected in zip(held, true, strict=True):
                num_compared += found is not None
                assert found in (None, expected), (member.name, number)
    assert num_compared > 0


def true_digests() -> list[bytes | None]:
    engine = engine_of("gated_delta_rule")
    engine.warm(WarmRequest("true", tuple(DOCUMENTS)))
    while engine.has_work:
        engine.step()
    return engine.entry_digests(DOCUMENTS)


def run(tmp_path: Path, patch: pytest.MonkeyPatch, num_faults: int, limit_s: float) -> None:
    trouble = Trouble(patch, seed=num_faults, share=0.4)
    with cluster(tmp_path, 3) as workers:
        assert storm(workers, trouble, num_faults, limit_s) == []
        assert sum(trouble.faults.values()) >= num_faults, trouble.faults
        assert_nothing_is_left(workers)
        assert_true_entries(workers, trouble.num_asked)


@pytest.mark.usefixtures("hasty")
def test_a_few_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, monkeypatch, 8, 60)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("hasty")
def test_two_hundred_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, monkeypatch, 200, 800)
