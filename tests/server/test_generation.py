"""Chats and plain prompts over HTTP: whole, streamed, failing, left early."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from hypic_sdk.errors import NumericsError, PoolExhausted, WorkerLost
from hypic_sdk.server.settings import ServerSettings
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.server.served import Answer, call, serve_fake

SAID = "a town 🙂 there"
ASK = [{"role": "user", "content": "Where?"}]
DOCUMENTS = [{"text": "Norwick lies on the Ash."}, {"text": "Ada lives there."}]


@pytest.fixture
def worker() -> Iterator[PushingWorker]:
    worker = PushingWorker(tiny.tokenizer().encode_text(SAID))
    yield worker
    worker.join()


@pytest.fixture
def url(worker: PushingWorker) -> Iterator[str]:
    with serve_fake(worker) as url:
        yield url


def ask(url: str, **fields: object) -> Answer:
    return call(url, "POST", "/v1/chat/completions", {"messages": ASK, **fields})


class TestWhole:
    def test_a_chat_over_documents(self, url, worker):
        answer = ask(url, documents=DOCUMENTS)
        assert answer.status == 200
        assert answer.json["choices"][0]["message"] == {"role": "assistant", "content": SAID}
        details = answer.json["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == 0
        assert [one["status"] for one in answer.json["hypic"]["segments"]] == ["cold", "cold"]
        again = ask(url, documents=DOCUMENTS).json
        cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == sum(one["reused_tokens"] for one in again["hypic"]["segments"]) > 0

    def test_the_id_of_the_call_is_the_engine_s_and_the_reply_s(self, url, worker):
        answer = ask(url)
        assert answer.headers["x-request-id"] == answer.json["id"] == worker.last.request_id

    def test_a_plain_prompt(self, url):
        answer = call(url, "POST", "/v1/completions", {"prompt": "x", "logprobs": 1})
        assert answer.json["choices"][0]["text"] == SAID
        assert "".join(answer.json["choices"][0]["logprobs"]["tokens"])

    def test_no_tokens_asked_for(self, url):
        answer = ask(url, max_tokens=0, documents=DOCUMENTS)
        assert answer.json["choices"][0]["message"]["content"] == ""
        assert answer.json["usage"]["completion_tokens"] == 0

    def test_a_stop_string_ends_the_text_and_the_request(self, url, worker):
        answer = ask(url, stop=" t")
        assert answer.json["choices"][0]["message"]["content"] == "a"
        assert answer.json["choices"][0]["finish_reason"] == "stop"
        assert worker.finished == [answer.json["id"]]


class TestStreams:
    def test_the_form_of_the_events(self, url):
        answer = ask(url, stream=True)
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.text.endswith("data: [DONE]\n\n")
        assert all(block.startswith("data: ") for block in answer.text.split("\n\n")[:-1])
        chunks = [json.loads(data) for data in answer.events[:-1]]
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        said = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
        assert "".join(said) == SAID
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "stop"]
        assert {chunk["id"] for chunk in chunks} == {answer.headers["x-request-id"]}

    def test_usage_and_report_on_the_last_chunk(self, url):
        *before, last, _ = ask(url, stream=True, documents=DOCUMENTS).events
        assert all(json.loads(chunk)["usage"] is None for chunk in before)
        assert isinstance(json.loads(last)["usage"]["prompt_tokens_details"]["cached_tokens"], int)
        assert len(json.loads(last)["hypic"]["segments"]) == 2

    def test_or_on_one_of_its_own(self, url):
        options = {"include_usage": True}
        *_, ends, last, _ = ask(url, stream=True, stream_options=options).events
        assert json.loads(ends)["choices"][0]["finish_reason"] == "stop"
        assert json.loads(last)["choices"] == []
        assert json.loads(last)["usage"]["completion_tokens"] > 1

    def test_plain_prompts_stream_too(self, url):
        body = {"prompt": "x", "stream": True}
        *chunks, done = call(url, "POST", "/v1/completions", body).events
        assert done == "[DONE]"
        assert "".join(json.loads(one)["choices"][0]["text"] for one in chunks) == SAID

    def test_a_silent_stream_says_a_comment(self):
        worker = PushingWorker(tiny.tokenizer().encode_text("ab"), pause_s=0.3)
        with serve_fake(worker, settings=ServerSettings(keep_alive_s=0.05)) as url:
            answer = ask(url, stream=True)
        assert ": still here\n\n" in answer.text
        assert answer.events[-1] == "[DONE]"


class TestFailures:
    @pytest.mark.parametrize("stream", [False, True])
    def test_before_the_first_token_it_is_told_as_a_status(self, url, worker, stream):
        worker.reply = lambda message: (_ for _ in ()).throw(AssertionError("not reached"))
        worker.refuses = PoolExhausted("no room", needed_bytes=9, limit_bytes=8)
        answer = ask(url, stream=stream)
        assert (answer.status, answer.error["code"]) == (503, "pool_exhausted")
        assert answer.error["details"] == {"needed_bytes": 9, "limit_bytes": 8}
        assert answer.headers["retry-after"] == "1"

    def test_of_the_engine_in_a_whole_reply(self, url, worker):
        worker.failure = NumericsError("not finite")
        answer = ask(url)
        assert (answer.status, answer.error["code"]) == (500, "numerics_error")
        assert answer.error["request_id"] == answer.headers["x-request-id"]

    def test_after_it_as_an_event_without_done(self, url, worker):
        worker.failure = WorkerLost("gone")
        answer = ask(url, stream=True)
        assert answer.status == 200
        assert json.loads(answer.events[-1])["error"]["code"] == "worker_lost"
        assert "[DONE]" not in answer.text

    def test_a_bug_of_ours_says_nothing_but_the_id(self, url, worker):
        worker.refuses = ZeroDivisionError("secret detail")
        answer = ask(url)
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
        assert answer.error["request_id"] == answer.headers["x-request-id"]
        assert "secret" not in answer.text

    def test_an_engine_that_starts(self, url, worker):
        worker.ready = False
        answer = ask(url)
        assert (answer.status, answer.error["code"]) == (503, "overloaded")
        assert "retry-after" in answer.headers
        assert call(url, "GET", "/health/ready").status == 503
        assert call(url, "GET", "/health/live").status == 200
        worker.ready = True
        assert call(url, "GET", "/health/ready").json == {"status": "ready"}


class TestLeaving:
    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
    def test_a_caller_that_goes_away_cancels_its_request(self, stream):
        worker = PushingWorker([65] * 400, pause_s=0.02)
        with serve_fake(worker) as url:
            body = json.dumps({"messages": ASK, "stream": stream, "max_tokens": 400})
            left_s = leave_early(url, body, worker, after_bytes=400 if stream else 0)
            until(lambda: worker.cancelled)
            assert time.monotonic() - left_s < 1.0
            assert worker.cancelled == [worker.last.request_id]
            worker.join()
            text = call(url, "GET", "/metrics").text
        assert 'hypic_requests_total{route="/v1/chat/completions",status="499"} 1.0' in text or (
            stream and "hypic_requests_in_flight 0.0" in text
        )

    def test_a_request_is_cancelled_by_its_id(self):
        worker = PushingWorker([65] * 400, pause_s=0.02)
        with serve_fake(worker) as url:
            answers: list[Answer] = []
            asking = threading.Thread(target=lambda: answers.append(ask(url, max_tokens=400)))
            asking.start()
            until(lambda: worker.messages)
            path = f"/v1/requests/{worker.last.request_id}"
            assert call(url, "DELETE", path).json["cancelled"]
            asking.join()
            assert (answers[0].status, answers[0].error["code"]) == (499, "request_cancelled")
            assert not call(url, "DELETE", path).json["cancelled"]
            worker.join()

    def test_others_are_not_disturbed(self):
        worker = PushingWorker(tiny.tokenizer().encode_text(SAID), pause_s=0.02)
        with serve_fake(worker) as url:
            body = json.dumps({"messages": ASK, "stream": True})
            leave_early(url, body, worker, after_bytes=100)
            assert ask(url).json["choices"][0]["message"]["content"] == SAID


def leave_early(url: str, body: str, worker: PushingWorker, *, after_bytes: int) -> float:
    """Ask, and hang up once the engine works on it; the time of hanging up."""
    host, port = url.removeprefix("http://").split(":")
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall((head + body).encode())
        until(lambda: worker.messages)
        received = 0
        while received < after_bytes:
            received += len(connection.recv(4096))
    return time.monotonic()


def until(holds, timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "it does not come to hold"
        time.sleep(0.01)
