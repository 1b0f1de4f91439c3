"""Whether another tenant has a document cached is not told by the time an answer takes."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from hypic_sdk.config import EngineConfig
from hypic_sdk.server.tenants import Tenants
from tests.server.demo_server import DemoServer, demo_server
from tests.server.served import call

RED, BLUE = ({"Authorization": f"Bearer key-of-{one}-0123456789"} for one in ("red", "blue"))
NUM_PAIRS = 24
# of a standard normal: two in a thousand tests of equals are beyond it
BEYOND = 3.1
SENTENCES = [f"The {one} of Norwick stands by the river." for one in (
    "mill", "tower", "market", "bridge", "school", "bakery", "harbour", "church", "library",
)]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[DemoServer]:
    keys = {f"key-of-{one}-0123456789": one for one in ("red", "blue")}
    with demo_server(EngineConfig(), tenants=Tenants(keys)) as server:
        yield server


def documents() -> Iterator[str]:
    """Other orders of the same sentences: as many tokens, and none a hit for another."""
    draw = random.Random(5)
    seen: set[str] = set()
    while True:
        text = " ".join(draw.sample(SENTENCES, len(SENTENCES)))
        if text not in seen:
            seen.add(text)
            yield text


def ask(server: DemoServer, text: str, headers: Mapping[str, str]) -> tuple[float, str]:
    """Seconds, and what became of the document."""
    body = {
        "messages": [{"role": "user", "content": "Where?"}],
        "documents": [{"text": text}],
        "max_tokens": 1,
    }
    started_s = time.perf_counter()
    answer = call(server.url, "POST", "/v1/chat/completions", body, headers=headers)
    took_s = time.perf_counter() - started_s
    [segment] = answer.json["hypic"]["segments"]
    return took_s, segment["status"]


def signed_rank(differences: Sequence[float]) -> float:
    """Wilcoxon's statistic in standard deviations from what equals would give."""
    ordered = sorted(differences, key=abs)
    total = sum(math.copysign(rank, one) for rank, one in enumerate(ordered, start=1))
    n = len(ordered)
    return total / math.sqrt(n * (n + 1) * (2 * n + 1) / 6)


def paired(server: DemoServer, who: Mapping[str, str], texts: Iterator[str]) -> float:
    """How `who` is answered about what red has warm, against what nobody has: in random order."""
    draw = random.Random(7)
    differences = []
    for _ in range(NUM_PAIRS):
        warmed, unknown = next(texts), next(texts)
        assert ask(server, warmed, RED)[1] == "cold"
        order = [warmed, unknown]
        draw.shuffle(order)
        took = {text: ask(server, text, who) for text in order}
        assert took[unknown][1] == "cold"
        assert (took[warmed][1] == "cold") == (who is BLUE)
        differences.append(took[unknown][0] - took[warmed][0])
    return signed_rank(differences)


def test_another_tenant_learns_nothing_from_the_time(server):
    texts = documents()
    # the time tells whoever may know, so the test can see what it looks for
    assert paired(server, RED, texts) > BEYOND
    assert abs(paired(server, BLUE, texts)) < BEYOND


def test_the_statistic():
    draw = random.Random(3)
    beyond = 0
    for _ in range(400):
        beyond += abs(signed_rank([draw.gauss(0, 1) for _ in range(NUM_PAIRS)])) > BEYOND
    assert beyond <= 4
    assert signed_rank([draw.gauss(2, 1) for _ in range(NUM_PAIRS)]) > BEYOND
