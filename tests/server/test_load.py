"""Two hundred callers at once, three times over, on a server process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.server.served import call

CALLERS = 200
KEY = "key-of-red-0123456789"
RED = {"Authorization": f"Bearer {KEY}"}


def document(number: int) -> str:
    return " ".join(f"The town {number} has {n} mills." for n in range(16))


@contextmanager
def process(folder: Path, *words: str) -> Iterator[tuple[int, str]]:
    """Process id and URL of a server whose one tenant may have 120 requests in flight."""
    keys = folder / "keys"
    keys.write_text(f"red {KEY} in_flight=120\n")
    command = [sys.executable, "-m", "hypic_sdk.cli", "serve", "--port", "0", "--keys", str(keys)]
    environment = {**os.environ, "HYPIC_CACHE_DIR": str(folder), "COLUMNS": "200"}
    running = subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        found = re.search(r"http://\S+", running.stdout.readline())
        assert found
        yield running.pid, found.group()
    finally:
        running.terminate()
        running.stdout.close()
        assert running.wait(60) == 0


async def one(session: aiohttp.ClientSession, number: int, max_tokens: int) -> str:
    """A caller: whole, streamed, impatient; what came of it."""
    draw = random.Random(number)
    documents = [{"text": document(draw.randrange(40))} for _ in range(draw.randrange(1, 3))]
    body = {
        "messages": [{"role": "user", "content": f"Question {number}?"}],
        "documents": documents,
        "max_tokens": max_tokens,
        "stream": number % 2 == 0,
        "seed": 1,
    }
    leaves_s = 0.2 if number % 20 == 0 else 120.0
    try:
        async with asyncio.timeout(leaves_s):
            async with session.post("/v1/chat/completions", json=body) as response:
                text = await response.text()
    except TimeoutError:
        return "left"
    if response.status != 200:
        assert json.loads(text)["error"]["code"] in ("queue_full", "overloaded", "pool_exhausted")
        assert int(response.headers["Retry-After"]) > 0
        return str(response.status)
    if body["stream"]:
        assert text.endswith("data: [DONE]\n\n"), text[-400:]
    return "answered"


async def load(url: str, max_tokens: int) -> Counter[str]:
    connector = aiohttp.TCPConnector(limit=CALLERS)
    async with aiohttp.ClientSession(url, connector=connector, headers=RED) as session:
        calls = (one(session, number, max_tokens) for number in range(CALLERS))
        return Counter(await asyncio.gather(*calls))


def rss_bytes(process_id: int) -> int:
    """Of a process and its children."""
    total, pids = 0, [process_id]
    while pids:
        pid = pids.pop()
        total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    return total


def idle_books(url: str) -> dict[str, Any]:
    """The store's books once nothing is in flight: what is held is idle, to the byte."""
    end_s = time.monotonic() + 60
    while True:
        books = call(url, "GET", "/v1/cache/stats", headers=RED).json
        pools = [books[name] for name in ("state_rows", "transition_rows", "kv_slots")]
        in_use = sum(pool[state] for pool in pools for state in ("reserved", "filling", "pinned"))
        own = books["tenant"]
        if not (in_use or books["num_leases"] or own["in_flight"]["used"]):
            held = sum(pool[state] for pool in pools for state in ("free", "idle"))
            assert held == books["budget_bytes"]
            return books
        assert time.monotonic() < end_s, books
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("model", "max_tokens"), [(["--model", "scripted"], 6), ([], 2)], ids=["scripted", "demo"]
)
def test_only_refusals_that_say_when_and_nothing_left_behind(tmp_path, model, max_tokens):
    told: list[Counter[str]] = []
    rss: list[int] = []
    books: list[dict[str, Any]] = []
    with process(tmp_path, *model) as (process_id, url):
        for _ in range(3):
            told.append(asyncio.run(load(url, max_tokens)))
            books.append(idle_books(url))
            rss.append(rss_bytes(process_id))
    for one in told:
        assert set(one) <= {"answered", "left", "429", "503"}
        # of 200, 120 may be in flight, and 10 do not wait for their answer
        assert one["answered"] >= 110
    assert abs(rss[2] - rss[1]) <= 0.02 * rss[1], rss
    assert books[2]["budget_bytes"] == books[0]["budget_bytes"]
