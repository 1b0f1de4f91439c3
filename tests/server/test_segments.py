"""Registered segments and warm jobs over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hypic_sdk.errors import QueueFull
from hypic_sdk.prompt.segment import segment_id
from hypic_sdk.server.quota import Quota
from hypic_sdk.server.settings import ServerSettings
from hypic_sdk.server.warm_board import WarmBoard
from hypic_sdk.wire.segments import RegisterRequest, SegmentIds
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.server.served import call, serve_fake
from tests.service.services import service

UNKNOWN = "seg_" + "a" * 32


@pytest.fixture
def worker() -> PushingWorker:
    return PushingWorker(tiny.tokenizer().encode_text("a town"))


@pytest.fixture
def url(worker: PushingWorker) -> Iterator[str]:
    with serve_fake(worker, settings=ServerSettings(quota=Quota(warm_jobs=1))) as url:
        yield url


def register(url: str, *texts: str, **fields: object) -> list[str]:
    body = {"segments": [{"text": text} for text in texts], **fields}
    answer = call(url, "POST", "/v1/segments", body)
    assert answer.status == 200
    return [one["id"] for one in answer.json["data"]]


class TestSegments:
    def test_registering_twice_is_the_same_segment(self, url):
        body = {"segments": [{"text": "A town", "external_id": "doc", "title": "T"}]}
        [first] = call(url, "POST", "/v1/segments", body).json["data"]
        [second] = call(url, "POST", "/v1/segments", body).json["data"]
        assert first["id"] == segment_id("A town")
        assert (first["created"], second["created"]) == (True, False)
        assert call(url, "GET", f"/v1/segments/{first['id']}").json["title"] == "T"
        found = call(url, "GET", "/v1/segments?external_id=doc").json["data"]
        assert [one["id"] for one in found] == [first["id"]]

    def test_what_is_wrong_with_one_is_told_beside_the_others(self, url):
        body = {
            "segments": [
                {"text": "A", "external_id": "doc"},
                {"text": "B", "external_id": "doc"},
                {"text": "C"},
            ]
        }
        answer = call(url, "POST", "/v1/segments", body)
        assert answer.status == 207
        assert [one["id"] for one in answer.json["data"]] == [segment_id("A"), segment_id("C")]
        [error] = answer.json["errors"]
        assert (error["index"], error["details"]["external_id"]) == (1, "doc")

    def test_pages(self, url):
        ids = register(url, *(f"town {number}" for number in range(7)))
        seen, after = [], ""
        while True:
            page = call(url, "GET", f"/v1/segments?limit=3{after}").json
            seen += [one["id"] for one in page["data"]]
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        assert seen == ids
        assert call(url, "GET", f"/v1/segments?after={UNKNOWN}").status == 400

    def test_changing_what_is_said_about_one(self, url):
        [id_] = register(url, "A town")
        answer = call(url, "PATCH", f"/v1/segments/{id_}", {"title": "T", "metadata": {"page": 1}})
        assert (answer.json["title"], answer.json["metadata"]) == ("T", {"page": 1})
        answer = call(url, "PATCH", f"/v1/segments/{id_}", {"external_id": "doc"})
        assert (answer.json["title"], answer.json["external_id"]) == ("T", "doc")
        assert call(url, "PATCH", f"/v1/segments/{UNKNOWN}", {"title": "T"}).status == 404
        for name in ("text", "tokens", "metdata"):
            answer = call(url, "PATCH", f"/v1/segments/{id_}", {name: "B town"})
            assert (answer.status, answer.error["param"]) == (400, name)

    def test_a_rule_over_several_fields_names_one(self, url):
        for body in ({}, {"segment_ids": [UNKNOWN], "external_ids": ["a"]}):
            answer = call(url, "POST", "/v1/segments/delete", body)
            assert (answer.status, answer.error["param"]) == (400, "segment_ids")

    def test_a_pin_without_an_end_can_be_said_in_two_ways(self, url):
        [id_] = register(url, "A town")
        for pin, is_pinned in ((True, True), (False, False), ({}, True), (False, False)):
            answer = call(url, "PATCH", f"/v1/segments/{id_}", {"pin": pin})
            assert (answer.status, answer.json["pinned"]) == (200, is_pinned)
        for number, pin in enumerate((True, {}, {"ttl": "1h"})):
            item = {"text": f"town {number}", "pin": pin}
            [made] = call(url, "POST", "/v1/segments", {"segments": [item]}).json["data"]
            assert made["pinned"]
            assert (made["pin_expires_at"] is not None) == (number == 2)
        assert call(url, "PATCH", f"/v1/segments/{id_}", {"pin": 1}).status == 400

    def test_deleting_one_and_several(self, url, worker):
        first, second, third = register(url, "A town", "B town", "C town", warm="wait")
        assert call(url, "DELETE", f"/v1/segments/{first}").json["deleted"]
        assert call(url, "DELETE", f"/v1/segments/{first}").status == 404
        answer = call(url, "POST", "/v1/segments/delete", {"segment_ids": [second, first, second]})
        assert [(one["id"], one["deleted"]) for one in answer.json["data"]] == [
            (second, True),
            (first, False),
        ]
        assert [one["id"] for one in call(url, "GET", "/v1/segments").json["data"]] == [third]
        assert len(worker.warm) == 1

    def test_looking_up(self, url):
        [first] = register(url, "A town", warm="wait")
        [second] = register(url, "B town")
        body = {"segment_ids": [first, second, UNKNOWN]}
        states = call(url, "POST", "/v1/segments/lookup", body).json
        assert [states[id_]["state"] for id_ in body["segment_ids"]] == [
            "warm", "registered", "unknown",
        ]  # fmt: skip

    @pytest.mark.parametrize("method", ["GET", "DELETE"])
    @pytest.mark.parametrize("id_", ["seg_x", "..", "%00", "a" * 3000, "seg_%F0%9F%99%82"])
    def test_ids_that_are_none(self, url, method, id_):
        assert call(url, method, f"/v1/segments/{id_}").status in (404, 405)


class TestWarm:
    def test_a_job_from_its_beginning_to_its_end(self, url):
        ids = register(url, "A town", "B town")
        answer = call(url, "POST", "/v1/segments/warm", {"segment_ids": ids})
        assert answer.status == 202
        job = answer.json["id"]
        events = call(url, "GET", f"/v1/segments/warm/{job}/events")
        assert events.text.count("event: end\n") == 1
        last = json.loads(events.events[-1])
        assert (last["status"], last["counts"]["done"]) == ("succeeded", 2)
        assert call(url, "GET", f"/v1/segments/warm/{job}").json == last
        assert [one["id"] for one in call(url, "GET", "/v1/segments/warm").json["data"]] == [job]

    def test_registering_and_warming_in_one_call(self, url):
        body = {"segments": [{"text": "A town"}], "warm": "wait"}
        assert call(url, "POST", "/v1/segments", body).json["job"]["counts"]["done"] == 1
        assert call(url, "POST", "/v1/segments", body).json["job"]["counts"]["already_warm"] == 1

    def test_progress_and_cancel(self, url, worker):
        ids = register(url, "A town", "B town", "C town")
        worker.gate.clear()
        job = call(url, "POST", "/v1/segments/warm", {"segment_ids": ids}).json
        assert job["status"] == "running"
        refused = call(url, "POST", "/v1/segments/warm", {"segment_ids": ids})
        assert (refused.status, refused.error["code"]) == (429, "queue_full")
        assert call(url, "POST", f"/v1/segments/warm/{job['id']}/cancel").status == 200
        last = json.loads(call(url, "GET", f"/v1/segments/warm/{job['id']}/events").events[-1])
        assert (last["status"], last["counts"]["cancelled"]) == ("cancelled", 3)

    def test_unknown_segments_and_jobs(self, url):
        answer = call(url, "POST", "/v1/segments/warm", {"segment_ids": [UNKNOWN]})
        assert (answer.status, answer.error["code"]) == (404, "segment_not_found")
        for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
            answer = call(url, method, f"/v1/segments/warm/warm_x{path}")
            assert (answer.status, answer.error["code"]) == (404, "job_not_found")


def test_jobs_that_are_being_begun_count_as_running():
    """Two calls that meet do not both have the last place."""
    board = WarmBoard(max_running=1, keep_s=60.0)
    with board.place():
        with pytest.raises(QueueFull) as caught, board.place():
            pass
        assert caught.value.details == {"quota": "warm_jobs", "limit": 1}
    with board.place():  # the other was not begun after all
        pass


def test_jobs_that_are_over_count_no_more(url):
    made = register(url, "A town", "B town")
    job = call(url, "POST", "/v1/segments/warm", {"segment_ids": made}).json
    call(url, "GET", f"/v1/segments/warm/{job['id']}/events")  # ends with it
    tenant = call(url, "GET", "/v1/cache/stats").json["tenant"]
    assert tenant["warm_jobs"]["used"] == 0


@pytest.mark.parametrize("way", ["register", "update"])
def test_metadata_have_a_cap_as_a_whole(url, way):
    [made] = register(url, "A town")
    metadata = {f"k{n}": "x" * 4096 for n in range(4)}
    if way == "register":
        item = {"text": "A town", "metadata": metadata}
        answer = call(url, "POST", "/v1/segments", {"segments": [item]})
    else:
        answer = call(url, "PATCH", f"/v1/segments/{made}", {"metadata": metadata})
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")
    assert "16384" in answer.error["message"]
    assert "metadata" in answer.error["param"]
    assert call(url, "GET", f"/v1/segments/{made}").json["metadata"] == {}


def test_jobs_are_forgotten_some_time_after_their_end():
    times_s = iter((0.0, 0.0, 50.0, 61.0))
    board = WarmBoard(max_running=1, keep_s=60.0, clock=lambda: next(times_s))
    over = service(PushingWorker())
    texts = RegisterRequest(segments=[{"text": "A town"}])
    [segment] = over.segments.register_each(texts).data
    job = over.segments.warm(SegmentIds(segment_ids=[segment.id]))
    with board.place():
        board.add(job)
    job.wait(timeout_s=10)
    assert [len(board.snapshots()) for _ in range(3)] == [1, 1, 0]
