"""Spans of a request: one for each stretch of it, in order, with what it counted."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from hypic_sdk.config import EngineConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.scripted.opening import open_scripted
from hypic_sdk.server.app import create_app
from hypic_sdk.server.otel import OtelTracing
from hypic_sdk.server.services import ServiceFactory
from tests.server.served import call, serve
from tests.source_tree import REPOSITORY

CHAT = "/v1/chat/completions"
PHASES = ("hypic.prompt", "hypic.queue", "hypic.cold", "hypic.assembly", "hypic.decode")
DOCUMENT = "The town of Norwick lies on the river Ash and has a mill. " * 12
ASK = {
    "messages": [{"role": "user", "content": "Where is the mill?"}],
    "documents": [{"text": DOCUMENT}],
    "max_tokens": 5,
}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def url(exporter: InMemorySpanExporter) -> Iterator[str]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    opened = open_scripted(None, EngineConfig())
    with opened.worker as worker:
        factory = ServiceFactory.from_folder(reader_path(), worker, model_name="scripted")
        app = create_app(factory, worker, tracing=OtelTracing(provider))
        with serve(app) as url:
            yield url
    provider.shutdown()


def spans(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """By name, of one request."""
    end_s = time.monotonic() + 10
    # a stream's last chunk is read before its handler has ended
    while not any(one.name == "hypic.request" for one in exporter.get_finished_spans()):
        assert time.monotonic() < end_s, "no request was traced"
        time.sleep(0.01)
    found = exporter.get_finished_spans()
    by_name = {one.name: one for one in found}
    assert len(by_name) == len(found)
    return by_name


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_told_stretch_by_stretch(url, exporter, stream):
    answers = []
    for _ in range(2):
        exporter.clear()
        answers.append(call(url, "POST", CHAT, {**ASK, "stream": stream}))
        told = spans(exporter)
        assert set(told) == {"hypic.request", *PHASES}
        request = told["hypic.request"]
        assert request.kind is SpanKind.SERVER
        assert request.attributes["hypic.request_id"] == answers[-1].headers["x-request-id"]
        for name in PHASES:
            assert told[name].parent.span_id == request.context.span_id
            assert request.start_time <= told[name].start_time <= told[name].end_time
            assert told[name].end_time <= request.end_time
        starts = [told[name].start_time for name in PHASES]
        assert starts == sorted(starts)
    # of the second request, whose document was there
    attributes = told["hypic.request"].attributes
    if not stream:
        usage = answers[1].json["usage"]
        assert attributes["hypic.prompt_tokens"] == usage["prompt_tokens"]
        assert attributes["hypic.completion_tokens"] == usage["completion_tokens"]
        details = usage["prompt_tokens_details"]
        assert attributes["hypic.cached_tokens"] == details["cached_tokens"] > 0
    assert attributes["hypic.num_segments"] == 1
    assert attributes["hypic.status"] == 200
    assembly = told["hypic.assembly"].attributes
    parts = ("live_tokens", "segment_tokens", "chain_tokens")
    assert sum(assembly[f"hypic.{one}"] for one in parts) == attributes["hypic.prompt_tokens"]
    assert told["hypic.cold"].attributes["hypic.cold_tokens"] == 0


def test_errors_are_marked(url, exporter):
    call(url, "POST", CHAT, {"messages": []})
    request = spans(exporter)["hypic.request"]
    assert request.status.status_code is StatusCode.ERROR
    assert request.attributes["hypic.error_code"] == "invalid_request"
    assert request.attributes["hypic.status"] == 400


def test_no_text_is_told(url, exporter):
    call(url, "POST", CHAT, ASK)
    told = str([dict(one.attributes) for one in exporter.get_finished_spans()])
    for word in ("Norwick", "mill", "Where"):
        assert word not in told


def test_a_trace_of_the_caller_is_followed(url, exporter):
    header = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    call(url, "POST", CHAT, ASK, headers=header)
    request = spans(exporter)["hypic.request"]
    assert f"{request.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{request.parent.span_id:016x}" == "b7ad6b7169203331"


def run(script: str) -> subprocess.CompletedProcess[Any]:
    return subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


def test_without_the_extra_nothing_is_imported_and_nothing_is_missed():
    script = """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)
import importlib.util
from hypic_sdk.server import tracing
tracing.find_spec = lambda name: None
sys.meta_path.insert(0, Hidden())
import hypic_sdk.server.app
found = tracing.find_tracing()
found.begin("r", {}).note(a=1)
assert "opentelemetry" not in sys.modules
print(type(found).__name__)
"""
    ended = run(script)
    assert ended.stdout.strip() == "Untraced", ended.stderr
