"""Live checks as an operator sees them: books, metrics, health, explain, and the fall-back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hypic_sdk import Hypic
from hypic_sdk.config import EngineConfig, ShadowConfig
from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.server.settings import ServerSettings
from tests.server.demo_server import DemoServer, demo_server
from tests.server.served import call
from tests.server.test_kept_segments import until

DOCS = [{"text": DOCUMENTS[name]} for name in ("lantern", "clock")]
ASK = [{"role": "user", "content": "How many kilograms does the Fenwold clock weigh?"}]


def checking(**fields: Any) -> EngineConfig:
    """Checks that begin at once and may take all the time that nobody wants."""
    return EngineConfig(shadow=ShadowConfig(idle_s=0.0, share=1.0, **fields))


@pytest.fixture
def server() -> Iterator[DemoServer]:
    config = checking(limit_kl=1e-12, window=1)
    with demo_server(config, settings=ServerSettings(sample_s=0.02)) as server:
        yield server


def books(server: DemoServer) -> Any:
    return call(server.url, "GET", "/v1/cache/stats").json["shadow"]


def metric(server: DemoServer, name: str) -> float:
    lines = call(server.url, "GET", "/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_everybody_is_told_and_a_reset_goes_on(server: DemoServer) -> None:
    with Hypic(server.url) as client:
        assert books(server)["kl"] is None
        before = client.prompts.explain(messages=ASK, documents=DOCS)
        first = client.chat.completions.create(messages=ASK, documents=DOCS, max_tokens=8)
        assert first.cache.degraded is None
        until(lambda: books(server)["num_switched_off"] == 1)
        told = books(server)
        assert told["num_replies"] == 1
        assert told["kl"] == told["kl_nats"] / told["num_tokens"] > 0.0
        assert 0.0 <= told["top1"] <= 1.0
        assert metric(server, "hypic_shadow_replies") == 1.0
        assert metric(server, "hypic_shadow_kl_nats") == told["kl_nats"]
        assert metric(server, "hypic_shadow_switched_off_engines") == 1.0
        until(lambda: call(server.url, "GET", "/health/ready").json["shadow"] == told)
        second = client.chat.completions.create(messages=ASK, documents=DOCS, max_tokens=8)
        plain = client.chat.completions.create(
            messages=ASK, documents=DOCS, max_tokens=8, hypic={"mode": "off"}
        )
        assert second.cache.degraded == "reuse_switched_off"
        assert second.cache.exactness == "exact"
        assert second.choices[0].message.content == plain.choices[0].message.content
        assert plain.cache.degraded is None
        explained = client.prompts.explain(messages=ASK, documents=DOCS)
        assert "reuse_switched_off" in [one.code for one in explained.warnings]
        assert explained.live_tokens == explained.prompt_tokens
        assert explained.shadow.kl == told["kl"]
        assert before.shadow.num_replies == 0
        server.worker.call(lambda engine: engine.shadow.books.reset())
        third = client.chat.completions.create(messages=ASK, documents=DOCS, max_tokens=8)
        assert third.cache.degraded is None
        assert third.cache.cached_tokens > 0


def test_without_them_nothing_is_said() -> None:
    with demo_server() as server, Hypic(server.url) as client:
        assert books(server) is None
        assert client.prompts.explain(messages=ASK, documents=DOCS).shadow is None
        assert "shadow" not in call(server.url, "GET", "/health/ready").json
        assert metric(server, "hypic_shadow_replies") == 0.0
