"""Expiry, pins, filters, quotas and jobs over the demo model behind real sockets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hypic_sdk.config import MIB, EngineConfig, StoreConfig
from hypic_sdk.prompt.segment import segment_id
from hypic_sdk.server.quota import Quota
from hypic_sdk.server.settings import ServerSettings
from hypic_sdk.server.tenants import Tenants
from tests.server.demo_server import DemoServer, demo_server
from tests.server.served import Answer, call

CHAT = "/v1/chat/completions"
NAMES = ("red", "blue", "green")
RED, BLUE, GREEN = ({"Authorization": f"Bearer key-of-{one}-0123456789"} for one in NAMES)
KEYS = {f"key-of-{one}-0123456789": one for one in NAMES}
SMALL = EngineConfig(store=StoreConfig(budget_bytes=48 * MIB))


def text(number: int, words: int = 60) -> str:
    return f"Note {number}. " + " ".join(
        f"The town {number} has {n} mills." for n in range(words // 6)
    )


@pytest.fixture(scope="module")
def server() -> Iterator[DemoServer]:
    quota = Quota(num_segments=400, text_bytes=1 << 20)
    settings = ServerSettings(upkeep_s=0.05, sweep_s=0.1, quota=quota)
    own = {
        "blue": Quota(cached_bytes=4 * MIB, pinned_bytes=3 * MIB),
        "green": Quota(warm_jobs=1),
    }
    tenants = Tenants(KEYS, own)
    with demo_server(SMALL, settings=settings, tenants=tenants) as server:
        yield server
        server.worker.call(lambda engine: engine.check())


def ask(server: DemoServer, *documents: dict[str, str], headers: Any = RED) -> Answer:
    messages = [{"role": "user", "content": "Where are mills?"}]
    body = {"messages": messages, "documents": documents, "max_tokens": 1}
    return call(server.url, "POST", CHAT, body, headers=headers)


def register(server: DemoServer, *items: Any, headers: Any = RED, **fields: Any) -> Any:
    segments = [{"text": one} if isinstance(one, str) else one for one in items]
    body = {"segments": segments, **fields}
    return call(server.url, "POST", "/v1/segments", body, headers=headers).json


def lookup(server: DemoServer, *ids: str, headers: Any = RED) -> list[Any]:
    answer = call(server.url, "POST", "/v1/segments/lookup", {"segment_ids": ids}, headers=headers)
    return [answer.json[id_] for id_ in ids]


def until(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    end_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end_s, "it does not come about"
        time.sleep(0.02)


def test_a_time_to_live_ends_text_entry_and_chains(server):
    made = register(server, {"text": text(1), "ttl": 2}, warm="wait")
    [segment] = made["data"]
    assert segment["expires_at"] - segment["created_at"] == 2
    by_id = {"segment_id": segment["id"]}
    assert ask(server, by_id).json["hypic"]["segments"][0]["status"] == "hit"
    [state] = lookup(server, segment["id"])
    assert (state["state"], state["tier"]) == ("warm", "gpu")
    assert state["bytes"] > 0
    until(lambda: ask(server, by_id).status == 422)
    refused = ask(server, by_id)
    assert refused.error["code"] == "segment_missing"
    assert refused.error["details"]["segment_ids"] == [segment["id"]]
    until(lambda: server.worker.call(lambda engine: engine.holdings("red")).num_segments == 0)
    # the text along heals, and is checked; no chain covers what was forgotten
    healed = ask(server, {**by_id, "text": text(1)})
    assert healed.json["hypic"]["segments"][0]["status"] == "cold"
    wrong = ask(server, {**by_id, "text": text(2)})
    assert (wrong.status, wrong.error["code"]) == (409, "segment_text_mismatch")


def test_missing_ids_are_all_named(server):
    ids = [segment_id(f"none {n}") for n in range(3)]
    refused = ask(server, *({"segment_id": one} for one in ids))
    assert (refused.status, refused.error["details"]["segment_ids"]) == (422, ids)


def test_a_pinned_segment_outlives_a_crowd(server):
    [pinned, other] = register(server, text(10), text(11), warm="wait")["data"]
    path = f"/v1/segments/{pinned['id']}"
    answer = call(server.url, "PATCH", path, {"pin": {"ttl": "1h"}}, headers=RED).json
    assert answer["pinned"]
    assert answer["pin_expires_at"] > time.time() + 3000
    register(server, *(text(n) for n in range(100, 140)), warm="wait")
    states = [one["state"] for one in lookup(server, pinned["id"], other["id"])]
    assert states == ["warm", "evicted"]
    stats = call(server.url, "GET", "/v1/cache/stats", headers=RED).json["tenant"]
    assert stats["pinned_bytes"]["used"] > 0
    assert call(server.url, "PATCH", path, {"pin": False}, headers=RED).json["pinned"] is False
    assert server.usage["num_leases"] == 0


def test_pins_have_a_budget(server):
    body = {"segments": [{"text": text(n)} for n in range(400, 410)]}
    made = call(server.url, "POST", "/v1/segments", body, headers=BLUE).json["data"]
    statuses = []
    for one in made:
        path = f"/v1/segments/{one['id']}"
        answer = call(server.url, "PATCH", path, {"pin": {}}, headers=BLUE)
        statuses.append(answer.status)
        if answer.status == 409:
            assert answer.error["code"] == "pin_budget_exhausted"
            details = answer.error["details"]
            assert details["needed_bytes"] > details["limit_bytes"] == 3 * MIB
            break
    assert statuses[0] == 200
    assert statuses[-1] == 409
    ids = {"segment_ids": [one["id"] for one in made]}
    call(server.url, "POST", "/v1/segments/delete", ids, headers=BLUE)
    assert server.usage["num_leases"] == 0


def test_a_tenant_is_held_to_its_cached_bytes(server):
    made = register(server, *(text(n) for n in range(500, 512)), headers=BLUE)["data"]
    for one in made:
        body = {"segment_ids": [one["id"]]}
        job = call(server.url, "POST", "/v1/segments/warm", body, headers=BLUE).json
        until(lambda job=job: warm_job(server, job["id"], BLUE)["status"] == "succeeded")
    stats = call(server.url, "GET", "/v1/cache/stats", headers=BLUE).json["tenant"]
    assert 0 < stats["cached_bytes"]["used"] <= stats["cached_bytes"]["limit"] == 4 * MIB
    body = {"segment_ids": [one["id"] for one in made]}
    refused = call(server.url, "POST", "/v1/segments/warm", body, headers=BLUE)
    assert (refused.status, refused.error["code"]) == (409, "quota_exceeded")
    assert refused.error["details"]["limit_bytes"] == 4 * MIB
    removed = call(server.url, "POST", "/v1/cache/clear", headers=BLUE).json["removed"]
    assert removed > 0
    stats = call(server.url, "GET", "/v1/cache/stats", headers=BLUE).json["tenant"]
    assert stats["cached_bytes"]["used"] == 0
    assert stats["num_segments"]["used"] == 12
    register(server, text(1000), warm="wait")
    assert lookup(server, segment_id(text(1000)))[0]["state"] == "warm"
    call(server.url, "POST", "/v1/cache/clear", headers=BLUE)
    assert lookup(server, segment_id(text(1000)))[0]["state"] == "warm"  # red's


def test_texts_have_quotas(server):
    left = 400 - call(server.url, "GET", "/v1/cache/stats", headers=RED).json["tenant"][
        "num_segments"]["used"]  # fmt: skip
    made = register(server, *(f"short {n}" for n in range(min(250, left))))
    assert not made.get("errors")
    body = {"segments": [{"text": "x" * (1 << 20)}, {"text": "short 0"}]}
    answer = call(server.url, "POST", "/v1/segments", body, headers=RED)
    assert answer.status == 207
    [error] = answer.json["errors"]
    assert error["code"] == "quota_exceeded"
    assert {"quota"} < set(error["details"])
    assert [one["created"] for one in answer.json["data"]] == [False]
    told = call(server.url, "GET", "/v1/segments?limit=1000", headers=RED).json["data"]
    ids = [one["id"] for one in told]
    call(server.url, "POST", "/v1/segments/delete", {"segment_ids": ids}, headers=RED)
    assert register(server, "short again")["data"][0]["created"]


def warm_job(server: DemoServer, job_id: str, headers: Any = RED) -> Any:
    return call(server.url, "GET", f"/v1/segments/warm/{job_id}", headers=headers).json


class TestWarmJobs:
    def begin(self, server: DemoServer, ids: list[str], **fields: Any) -> Any:
        body = {"segment_ids": ids, **fields}
        answer = call(server.url, "POST", "/v1/segments/warm", body, headers=RED)
        assert answer.status == 202
        return answer.json

    def test_progress_eta_cancel_and_going_on_where_it_stopped(self, server):
        call(server.url, "POST", "/v1/cache/clear", headers=RED)
        made = register(server, *(text(n, 120) for n in range(600, 620)))["data"]
        ids = [one["id"] for one in made]
        job = self.begin(server, ids, priority="background")
        assert job["priority"] == "background"
        until(lambda: warm_job(server, job["id"])["counts"]["done"] >= 3)
        told = warm_job(server, job["id"])
        if told["status"] == "running":
            assert told["eta_s"] > 0
        call(server.url, "POST", f"/v1/segments/warm/{job['id']}/cancel", headers=RED)
        events = call(server.url, "GET", f"/v1/segments/warm/{job['id']}/events", headers=RED)
        last = json.loads(events.events[-1])
        assert last["status"] == "cancelled"
        assert last["counts"]["done"] + last["counts"]["cancelled"] == 20
        again = self.begin(server, ids)
        events = call(server.url, "GET", f"/v1/segments/warm/{again['id']}/events", headers=RED)
        counts = [json.loads(one)["counts"] for one in events.events]
        done = [one["done"] + one["already_warm"] for one in counts]
        assert done == sorted(done)
        assert done[-1] == 20
        assert counts[-1]["already_warm"] >= last["counts"]["done"]
        third = self.begin(server, ids)
        until(lambda: warm_job(server, third["id"])["status"] == "succeeded")
        assert warm_job(server, third["id"])["tokens"]["computed"] == 0

    def test_requests_pass_a_job_in_the_background(self, server):
        """Asked beside one, they take less than beside a normal one."""

        def seconds(priority: str, first: int) -> float:
            call(server.url, "POST", "/v1/cache/clear", headers=RED)
            made = register(server, *(text(n, 300) for n in range(first, first + 16)))["data"]
            job = self.begin(server, [one["id"] for one in made], priority=priority)
            began_s = time.monotonic()
            num_asked = 0
            while warm_job(server, job["id"])["status"] == "running" and num_asked < 3:
                ask(server, {"text": text(2000 + first + num_asked, 400)})
                num_asked += 1
            took_s = (time.monotonic() - began_s) / max(1, num_asked)
            call(server.url, "POST", f"/v1/segments/warm/{job['id']}/cancel", headers=RED)
            until(lambda: warm_job(server, job["id"])["status"] != "running")
            ids = {"segment_ids": [one["id"] for one in made]}
            call(server.url, "POST", "/v1/segments/delete", ids, headers=RED)
            return took_s

        pairs = [
            (seconds("background", 700 + 80 * n), seconds("normal", 740 + 80 * n)) for n in range(2)
        ]
        assert sum(one for one, _ in pairs) < sum(other for _, other in pairs), pairs

    def test_one_more_than_may_run_is_told_when_to_try_again(self, server):
        made = register(server, *(text(n, 300) for n in range(900, 908)), headers=GREEN)["data"]
        body = {"segment_ids": [one["id"] for one in made]}
        answers: list[Answer] = []

        def begin() -> None:
            answers.append(call(server.url, "POST", "/v1/segments/warm", body, headers=GREEN))

        threads = [threading.Thread(target=begin) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused = [one for one in answers if one.status != 202]
        for one in refused:
            assert (one.status, one.error["code"]) == (429, "queue_full")
            assert one.error["details"] == {"quota": "warm_jobs", "limit": 1}
            assert int(one.headers["retry-after"]) >= 1
        assert len(refused) == 5
        [begun] = [one.json["id"] for one in answers if one.status == 202]
        call(server.url, "POST", f"/v1/segments/warm/{begun}/cancel", headers=GREEN)
