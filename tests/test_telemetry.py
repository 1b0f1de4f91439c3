"""Counters under names with units, in a registry of their own."""

from __future__ import annotations

import pytest

from hypic_sdk.engine.graph_tables import Eager
from hypic_sdk.engine.pipeline import Synchronous
from hypic_sdk.telemetry import PromptTokens, Telemetry
from tests.server.pushing_worker import USAGE


def told(telemetry: Telemetry) -> dict[str, float]:
    lines = telemetry.text().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def test_cached_tokens_are_chain_and_segment():
    telemetry = Telemetry()
    telemetry.note_reply(PromptTokens(chain=5, segment=7, seam=2, live=11, cold=3), 4)
    telemetry.note_reply(None, 1)
    counted = told(telemetry)
    assert counted["hypic_cached_tokens_total"] == 12
    assert counted["hypic_generated_tokens_total"] == 5
    kinds = ("chain", "segment", "seam", "live", "cold")
    assert [counted[f'hypic_prompt_tokens_total{{kind="{kind}"}}'] for kind in kinds] == [
        5, 7, 2, 11, 3,
    ]  # fmt: skip


def test_two_servers_of_one_process_count_apart():
    first, second = Telemetry(), Telemetry()
    first.note_reply(None, 3)
    assert told(second)["hypic_generated_tokens_total"] == 0


def graph_facts(replayed: int, **eager: int) -> dict[str, object]:
    by_reason = {**dict.fromkeys(REASONS, 0), **eager}
    counted = {"num_replayed": replayed, "num_captured": 2, "num_failed": 0, "capture_s": 0.5}
    return {**USAGE, "graphs": {**counted, "eager": by_reason}}


REASONS = [reason.name.lower() for reason in Eager]


def test_forwards_are_counted_by_way_and_never_back():
    """The sums begin anew with each engine, a counter does not."""
    telemetry = Telemetry()
    for facts in (graph_facts(5, cold_rows=3), graph_facts(7, cold_rows=3), graph_facts(2)):
        telemetry.note_usage(facts)
    telemetry.note_usage(graph_facts(4, many_rows=1))
    counted = told(telemetry)
    assert counted["hypic_graph_replays_total"] == 7 + 2
    assert counted["hypic_graph_captures_total"] == 2
    assert counted["hypic_graph_capture_seconds_total"] == 0.5
    assert counted['hypic_eager_forwards_total{reason="cold_rows"}'] == 3
    assert counted['hypic_eager_forwards_total{reason="many_rows"}'] == 1


def step_facts(**synchronous: int) -> dict[str, object]:
    by_reason = {**dict.fromkeys(STEP_REASONS, 0), **synchronous}
    return {**USAGE, "steps": {"num_overlapped": 9, "num_dropped": 2, "synchronous": by_reason}}


STEP_REASONS = [reason.name.lower() for reason in Synchronous]


def test_steps_are_counted():
    telemetry = Telemetry()
    telemetry.note_usage(step_facts(other_rows=4))
    counted = told(telemetry)
    assert counted["hypic_overlapped_steps_total"] == 9
    assert counted["hypic_dropped_tokens_total"] == 2
    assert counted['hypic_synchronous_steps_total{reason="other_rows"}'] == 4


@pytest.mark.parametrize(
    ("name", "facts", "reasons"),
    [
        ("hypic_eager_forwards_total", lambda all_: graph_facts(1, **all_), REASONS),
        ("hypic_synchronous_steps_total", lambda all_: step_facts(**all_), STEP_REASONS),
    ],
)
def test_reasons_are_those_of_the_engine(name, facts, reasons):
    """Each is a series from the first scrape on, and no other ever comes."""
    telemetry = Telemetry()

    def series() -> set[str]:
        return {one for one in told(telemetry) if one.startswith(name)}

    first = series()
    telemetry.note_usage(facts(dict.fromkeys(reasons, 1)))
    assert series() == first == {f'{name}{{reason="{reason}"}}' for reason in reasons}
    assert sum(value for one, value in told(telemetry).items() if one in first) == len(reasons)
