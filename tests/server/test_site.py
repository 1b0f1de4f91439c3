"""Models, metrics, stats, the OpenAPI document, stopping with grace."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator

import jsonschema_rs
import pytest

from hypic_sdk.server.app import create_app
from hypic_sdk.server.routes.table import ROUTES
from hypic_sdk.server.services import ServiceFactory
from hypic_sdk.server.settings import ServerSettings
from hypic_sdk.server.site import SITE
from hypic_sdk.wire.replies import (
    CalledFunction,
    Delta,
    FunctionDelta,
    ReplyMessage,
    ReplyToolCall,
    ToolCallDelta,
)
from tests.prompt import tiny
from tests.server.pushing_worker import USAGE, PushingWorker
from tests.server.served import Answer, call, serve, serve_fake

ASK = {"messages": [{"role": "user", "content": "Where?"}]}
DOCUMENTS = [{"text": "Norwick lies on the Ash."}, {"text": "Ada lives there."}]


@pytest.fixture
def worker() -> PushingWorker:
    return PushingWorker(tiny.tokenizer().encode_text("a town"))


@pytest.fixture
def url(worker: PushingWorker) -> Iterator[str]:
    with serve_fake(worker) as url:
        yield url


def metrics(url: str) -> dict[str, float]:
    lines = call(url, "GET", "/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def test_models(url):
    [model] = call(url, "GET", "/v1/models").json["data"]
    assert (model["id"], model["hypic"]["min_segment_tokens"]) == ("tiny", 64)
    assert model["hypic"]["json_schema"]  # as response_format has it
    assert call(url, "GET", "/v1/models/tiny").json == model
    assert call(url, "GET", "/v1/models/other").error["code"] == "model_not_found"


def test_a_model_without_a_template_answers_plain_prompts_only(worker):
    with serve_fake(worker, template=None) as url:
        assert not call(url, "GET", "/v1/models").json["data"][0]["hypic"]["chat"]
        assert call(url, "POST", "/v1/chat/completions", ASK).error["code"] == "unsupported_option"
        assert call(url, "POST", "/v1/completions", {"prompt": "x"}).status == 200


def test_stats_are_the_books_of_the_store(url):
    stats = call(url, "GET", "/v1/cache/stats").json
    own = stats.pop("tenant")
    assert {name: value for name, value in stats.items() if name != "object"} == {
        **USAGE,
        "shadow": None,
    }
    assert own["num_segments"] == {"used": 0, "limit": 100_000}
    assert own["cached_bytes"] == {"used": 0, "limit": None}


def test_cached_tokens_are_the_same_in_reply_report_and_metrics(url):
    body = {**ASK, "documents": DOCUMENTS}
    call(url, "POST", "/v1/chat/completions", body)
    before = metrics(url)
    reply = call(url, "POST", "/v1/chat/completions", body).json
    after = metrics(url)
    cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    assert cached == reply["hypic"]["cached_tokens"]
    assert cached == sum(one["reused_tokens"] for one in reply["hypic"]["segments"])
    assert after["hypic_cached_tokens_total"] - before["hypic_cached_tokens_total"] == cached
    name = 'hypic_prompt_tokens_total{kind="segment"}'
    assert after[name] - before[name] == cached
    name = "hypic_generated_tokens_total"
    assert after[name] - before[name] == reply["usage"]["completion_tokens"]


def test_metrics_count_calls_times_errors_and_bytes(url, worker):
    call(url, "POST", "/v1/chat/completions", {**ASK, "stream": True})
    call(url, "POST", "/v1/chat/completions", {})
    told = metrics(url)
    assert told['hypic_requests_total{route="/v1/chat/completions",status="200"}'] == 1
    assert told['hypic_requests_total{route="/v1/chat/completions",status="400"}'] == 1
    assert told['hypic_errors_total{code="invalid_request"}'] == 1
    assert told["hypic_ttft_seconds_count"] == 1
    assert told["hypic_inter_token_seconds_count"] >= 1
    assert told['hypic_pool_bytes{pool="kv_slots",state="idle"}'] == 30
    assert told["hypic_evicted_entries"] == 7
    assert told["hypic_requests_in_flight"] == 0


def test_the_openapi_document_has_every_endpoint(url):
    document = call(url, "GET", "/openapi.json").json
    listed = {(path, method) for path, item in document["paths"].items() for method in item}
    assert listed == {(route.path, route.method.lower()) for route in ROUTES}
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    events = chat["responses"]["200"]["content"]["text/event-stream"]["x-event-data"]
    assert events == {"$ref": "#/components/schemas/ChatCompletionChunk"}
    refs = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document))
    assert refs
    assert set(refs) <= set(document["components"]["schemas"])


@pytest.mark.parametrize(
    "value",
    [
        ReplyMessage(content="yes"),
        ReplyMessage(
            content=None,
            reasoning_content="hm",
            tool_calls=[ReplyToolCall(id="1", function=CalledFunction(name="f", arguments="{}"))],
        ),
        Delta(role="assistant", content=""),
        Delta(),
        Delta(tool_calls=[ToolCallDelta(index=0, id="1", function=FunctionDelta(name="f"))]),
        Delta(tool_calls=[ToolCallDelta(index=0, function=FunctionDelta(arguments="{"))]),
    ],
)
def test_what_is_left_out_where_it_says_nothing_is_described_all_the_same(url, value):
    """Every field by its type, and what is written fits that."""
    schemas = call(url, "GET", "/openapi.json").json["components"]["schemas"]
    described = schemas[type(value).__name__]
    assert described["properties"].keys() == type(value).model_fields.keys()
    written = json.loads(value.model_dump_json())
    root = {"$ref": f"#/components/schemas/{type(value).__name__}"}
    jsonschema_rs.validate({**root, "components": {"schemas": schemas}}, written)
    assert None not in [one for name, one in written.items() if name != "content"]


class TestStopping:
    def served(self, worker, **settings):
        factory = ServiceFactory(
            tokenizer=tiny.tokenizer(),
            template=tiny.chat_template(tiny.CHATML, tiny.tokenizer()),
            worker=worker,
            model_name="tiny",
        )
        return create_app(factory, worker, settings=ServerSettings(**settings))

    def ask_and_stop(self, app) -> Answer:
        """A call that is in flight when the server is told to stop."""
        answers = []
        with serve(app) as url:
            body = {**ASK, "max_tokens": 400}
            asking = threading.Thread(
                target=lambda: answers.append(call(url, "POST", "/v1/chat/completions", body))
            )
            asking.start()
            while not app[SITE].drain._num_inside:
                pass
            app[SITE].drain.begin()
            refused = call(url, "POST", "/v1/chat/completions", ASK)
            assert (refused.status, refused.error["code"]) == (503, "overloaded")
            assert "retry-after" in refused.headers
            assert call(url, "GET", "/health/ready").json == {"status": "stopping"}
        asking.join()
        return answers[0]

    def test_what_is_in_flight_comes_to_its_end(self):
        worker = PushingWorker([65] * 20, pause_s=0.02)
        answer = self.ask_and_stop(self.served(worker))
        assert answer.json["usage"]["completion_tokens"] == 20
        assert worker.cancelled == []

    def test_within_a_time_and_then_each_is_answered(self):
        worker = PushingWorker([65] * 300, pause_s=0.02)
        answer = self.ask_and_stop(self.served(worker, drain_s=0.2))
        assert (answer.status, answer.error["message"]) == (503, "the server is stopping")
        assert worker.messages[0].request_id in worker.cancelled
        worker.join()
