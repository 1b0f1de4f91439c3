"""Counters under names with units, in a registry of their own."""

from __future__ import annotations

from hypic_sdk.telemetry import PromptTokens, Telemetry


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
