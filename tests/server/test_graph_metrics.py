"""Graphs as an operator sees them: a scrape tells what ran how, also where capturing fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypic_sdk import Hypic
from hypic_sdk.engine.capture_rule import CaptureRule
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.graphs import Forward
from tests.server.demo_server import DemoServer, demo_server
from tests.server.served import call

if TYPE_CHECKING:
    import pytest

ASK = [{"role": "user", "content": "How many kilograms does the Fenwold clock weigh?"}]


def refuse(forward: Forward) -> Forward:
    raise RuntimeError("this device captures nothing")


def counted(server: DemoServer) -> dict[str, float]:
    lines = call(server.url, "GET", "/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if "_created" not in line]
    names = ("hypic_graph_", "hypic_eager_")
    return {name: float(value) for name, value in pairs if name.startswith(names)}


def switch_on(engine: Engine) -> None:
    engine._runner.use_graphs(refuse, CaptureRule(asks=2))


def test_a_scrape_tells_of_eager_forwards_and_failed_captures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with demo_server() as server, Hypic(server.url) as client:
        client.chat.completions.create(messages=ASK, max_tokens=2)
        before = counted(server)
        assert set(before.values()) == {0.0}, "graphs are off on a CPU"
        server.worker.call(switch_on)
        client.chat.completions.create(messages=ASK, max_tokens=6)
        after = counted(server)
    assert after.keys() == before.keys()
    assert after["hypic_graph_failed_captures_total"] == 1.0
    assert after['hypic_eager_forwards_total{reason="new_shape"}'] >= 1.0
    assert after['hypic_eager_forwards_total{reason="failed_capture"}'] >= 1.0
    assert after["hypic_graph_replays_total"] == 0.0
    assert "a forward could not be captured" in caplog.text
