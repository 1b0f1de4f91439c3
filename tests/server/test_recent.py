"""The latest requests and the pools over time: bounded, each tenant's own, without texts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from hypic_sdk import segment_id
from hypic_sdk.config import ReuseConfig
from hypic_sdk.errors import ConfigError, NumericsError, WorkerLost
from hypic_sdk.server import recent
from hypic_sdk.server.settings import ServerSettings
from hypic_sdk.server.tenants import Tenants
from hypic_sdk.wire.recent import RecentRequest
from tests.prompt import tiny
from tests.server.pushing_worker import USAGE, PushingWorker
from tests.server.served import Answer, call, serve_fake

SAID = "a town there"
ASK = [{"role": "user", "content": "Where?"}]
TEXTS = ("Norwick lies on the Ash.", "Ada lives there, by the mill.")
KEYS = {"key-of-red-0123456789": "red", "key-of-blue-0123456789": "blue"}
RED, BLUE = ({"Authorization": f"Bearer {key}"} for key in KEYS)


@pytest.fixture
def worker() -> Iterator[PushingWorker]:
    worker = PushingWorker(tiny.tokenizer().encode_text(SAID))
    yield worker
    worker.join()


@pytest.fixture
def url(worker: PushingWorker) -> Iterator[str]:
    with serve_fake(worker, settings=ServerSettings(sample_s=0.05, keep_samples=4)) as url:
        yield url


def ask(url: str, headers: dict[str, str] | None = None, **fields: object) -> Answer:
    body = {"messages": ASK, **fields}
    return call(url, "POST", "/v1/chat/completions", body, headers=headers)


def latest(url: str, query: str = "", headers: dict[str, str] | None = None) -> list[dict]:
    """What is remembered, once the handler of the last call is done."""
    answer = call(url, "GET", f"/v1/requests/recent{query}", headers=headers)
    assert answer.status == 200, answer.text
    return answer.json["data"]


def until_latest(url: str, request_id: str) -> dict:
    end_s = time.monotonic() + 5
    while time.monotonic() < end_s:
        found = [one for one in latest(url) if one["id"] == request_id]
        if found:
            return found[0]
        time.sleep(0.02)
    raise AssertionError(f"{request_id} is not remembered")


def documents() -> list[dict[str, str]]:
    return [{"text": text, "title": f"<b>{place}</b>"} for place, text in enumerate(TEXTS)]


class TestRequests:
    @pytest.mark.parametrize("stream", [False, True])
    def test_a_request_says_what_its_report_says(self, url, stream):
        for _ in range(2):  # cold, then hits
            answer = ask(url, documents=documents(), stream=stream)
        one = until_latest(url, answer.headers["x-request-id"])
        if stream:
            report = next(
                told for event in answer.events[:-1] if (told := json.loads(event).get("hypic"))
            )
        else:
            report = answer.json["hypic"]
        for name in ("prompt_tokens", "cached_tokens", "seam_tokens", "exactness"):
            assert one[name] == report[name]
        assert [{**use, "title": f"<b>{n}</b>"} for n, use in enumerate(report["segments"])] == one[
            "segments"
        ]
        assert {use["status"] for use in one["segments"]} == {"hit"}
        assert one["timing_ms"].items() >= report["timing_ms"].items()
        assert one["timing_ms"]["total"] > 0
        assert (one["status"], one["mode"], one["stream"]) == ("ok", "pic", stream)
        tokens = dict.fromkeys(("reused", "seam", "computed"), 0)
        for stretch in one["picture"]:
            tokens[stretch["kind"]] += stretch["tokens"]
        assert tokens["reused"] == report["cached_tokens"] > 0
        assert tokens["seam"] == report["seam_tokens"] > 0
        assert sum(tokens.values()) == report["prompt_tokens"]

    def test_no_text_is_kept(self, url):
        ask(url, documents=documents())
        told = call(url, "GET", "/v1/requests/recent").text
        assert not [text for text in (*TEXTS, SAID, "Where?") if text in told]

    def test_newest_first_and_a_bounded_number(self, worker, monkeypatch):
        held: list[int] = []
        newest = recent.RecentRequests.newest

        def spying(kept: recent.RecentRequests, limit: int) -> list[RecentRequest]:
            held.append(len(newest(kept, 10**6)))
            return newest(kept, limit)

        monkeypatch.setattr(recent.RecentRequests, "newest", spying)
        with serve_fake(worker, settings=ServerSettings(keep_requests=3)) as url:
            ids = [ask(url).json["id"] for _ in range(5)]
            until_latest(url, ids[-1])
            assert [one["id"] for one in latest(url)] == ids[:1:-1]
            assert [one["id"] for one in latest(url, "?limit=1")] == ids[-1:]
            assert call(url, "GET", "/v1/requests/recent?limit=4").status == 400
        assert held[-1] == 3

    @pytest.mark.parametrize("limit", ["0", "-1", "x", "101", "1e2", ""])
    def test_a_limit_that_is_none(self, url, limit):
        answer = call(url, "GET", f"/v1/requests/recent?limit={limit}")
        assert (answer.status, answer.error["param"]) == (400, "limit")

    def test_segments_of_one_request_are_bounded(self, url, monkeypatch):
        monkeypatch.setattr(recent, "MAX_SEGMENTS", 1)
        one = until_latest(url, ask(url, documents=documents()).json["id"])
        assert (one["num_segments"], len(one["segments"])) == (2, 1)
        assert one["picture"][-1]["kind"] == "untold"
        assert sum(stretch["tokens"] for stretch in one["picture"]) == one["prompt_tokens"]

    def test_the_title_of_a_registered_segment(self, url):
        call(url, "POST", "/v1/segments", {"segments": [{"text": TEXTS[0], "title": "Norwick"}]})
        named = {"segment_id": segment_id(TEXTS[0])}
        one = until_latest(url, ask(url, documents=[named, {"text": TEXTS[1]}]).json["id"])
        assert [use["title"] for use in one["segments"]] == ["Norwick", None]

    def test_titles_of_parts(self, url):
        content = [
            {"type": "text", "text": "See"},
            {"type": "segment", "text": TEXTS[0], "title": "within"},
            {"type": "text", "text": "Where?"},
        ]
        body = {"messages": [{"role": "user", "content": content}]}
        ids = [call(url, "POST", "/v1/chat/completions", body).json["id"]]
        ids += [call(url, "POST", "/v1/completions", {"prompt": content}).json["id"]]
        for id_, endpoint in zip(ids, ("chat", "completions"), strict=True):
            one = until_latest(url, id_)
            assert one["endpoint"] == endpoint
            assert [use["title"] for use in one["segments"]] == ["within"]

    def test_generate_and_mode_off(self, url):
        body = {"text": f"{TEXTS[0]}<<PIC_SEP>>Where?"}
        id_ = call(url, "POST", "/generate", body).headers["x-request-id"]
        assert until_latest(url, id_)["endpoint"] == "generate"
        off = until_latest(url, ask(url, hypic={"mode": "off"}).json["id"])
        assert (off["mode"], off["cached_tokens"]) == ("off", 0)

    @pytest.mark.parametrize("stream", [False, True])
    def test_what_failed(self, url, worker, stream):
        worker.failure = NumericsError("not finite")
        answer = ask(url, stream=stream)
        one = until_latest(url, answer.headers["x-request-id"])
        assert (one["status"], one["error_code"]) == ("failed", "numerics_error")
        assert one["picture"] == []
        assert one["timing_ms"]["ttft"] is None

    def test_what_nobody_takes(self, url, worker):
        worker.refuses = WorkerLost("nobody")
        answer = ask(url)
        assert until_latest(url, answer.headers["x-request-id"])["status"] == "failed"

    def test_what_was_refused_before_is_not_told(self, url):
        assert ask(url, max_tokens=-1).status == 400
        assert latest(url) == []


def test_what_was_cancelled():
    worker = PushingWorker(tiny.tokenizer().encode_text(SAID * 40), pause_s=0.05)
    with serve_fake(worker) as url:
        with pytest.raises(TimeoutError):
            call(url, "POST", "/v1/chat/completions", {"messages": ASK}, timeout_s=0.3)
        end_s = time.monotonic() + 5
        while not latest(url):
            assert time.monotonic() < end_s
            time.sleep(0.02)
        [one] = latest(url)
        assert (one["status"], one["error_code"]) == ("cancelled", None)
        assert one["completion_tokens"] > 0
    worker.join()


class TestHistory:
    def history(self, url: str) -> dict:
        return call(url, "GET", "/v1/cache/history").json

    def test_samples_are_bounded_and_go_on(self, url, worker):
        end_s = time.monotonic() + 5
        while len(self.history(url)["data"]) < 4:
            assert time.monotonic() < end_s
            time.sleep(0.02)
        before = self.history(url)
        assert before["interval_s"] == 0.05
        ask(url, documents=documents())
        ask(url, documents=documents())
        requests = latest(url)
        ask(url, hypic={"mode": "off"})  # has no part in the hit rate
        time.sleep(0.4)
        after = self.history(url)["data"]
        assert len(after) == 4
        assert after[0]["at"] > before["data"][-1]["at"]
        assert [one["at"] for one in after] == sorted(one["at"] for one in after)
        assert after[-1]["kv_slots"] == USAGE["kv_slots"]
        assert after[-1]["num_evicted"] == USAGE["num_evicted"]
        assert after[-1]["num_requests"] == 3
        for name in ("prompt_tokens", "cached_tokens"):
            assert after[-1][name] == sum(one[name] for one in requests) > 0

    def test_no_sample_while_the_engine_is_away(self, worker):
        worker.ready = False
        with serve_fake(worker, settings=ServerSettings(sample_s=0.02)) as url:
            self.history(url)
            time.sleep(0.2)
            assert self.history(url)["data"] == []
            worker.ready = True
            time.sleep(0.2)
            assert self.history(url)["data"]

    def test_a_look_that_fails_leaves_a_hole(self, worker, monkeypatch):
        def fails() -> dict:
            raise WorkerLost("nobody")

        with serve_fake(worker, settings=ServerSettings(sample_s=0.02)) as url:
            self.history(url)
            with monkeypatch.context() as patch:
                patch.setattr(worker, "usage", fails)
                time.sleep(0.1)
                num = len(self.history(url)["data"])
                time.sleep(0.1)
                assert len(self.history(url)["data"]) <= num + 1
            time.sleep(0.2)
            assert len(self.history(url)["data"]) > num + 1


def test_tenants_see_their_own():
    worker = PushingWorker(tiny.tokenizer().encode_text(SAID))
    settings = ServerSettings(sample_s=0.05)
    with serve_fake(worker, settings=settings, tenants=Tenants(KEYS)) as url:
        ids = [ask(url, RED, documents=documents()).json["id"] for _ in range(2)]
        time.sleep(0.3)
        assert [one["id"] for one in latest(url, headers=RED)] == ids[::-1]
        assert latest(url, headers=BLUE) == []
        red, blue = (
            call(url, "GET", "/v1/cache/history", headers=one).json["data"][-1]
            for one in (RED, BLUE)
        )
        assert (red["num_requests"], blue["num_requests"]) == (2, 0)
        assert (blue["prompt_tokens"], blue["cached_tokens"]) == (0, 0)
        assert red["cached_tokens"] > 0
        for path in ("/v1/requests/recent", "/v1/cache/history"):
            assert call(url, "GET", path).status == 401
    worker.join()


def test_settings_that_keep_nothing_are_refused():
    for name in ("keep_requests", "keep_samples"):
        with pytest.raises(ConfigError):
            ServerSettings(**{name: 0})
    with pytest.raises(ConfigError):
        ServerSettings(sample_s=0.0)


def test_the_tail_seam_is_that_of_the_settings():
    from hypic_sdk.config import SeamRule
    from hypic_sdk.service import ModelFacts

    facts = ModelFacts(ReuseConfig(seam=SeamRule.parse("8+5")))
    assert recent.RecentRequests(facts, 1)._tail_tokens(100) == 5
