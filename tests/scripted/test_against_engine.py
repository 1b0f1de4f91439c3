"""The scripted engine's books are those of the real one: same requests, same reports."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from hypic_sdk.config import MODES, EngineConfig, ReuseConfig, SeamRule
from hypic_sdk.demo.library import DOCUMENTS, SYSTEM
from hypic_sdk.offline import LocalHypic
from hypic_sdk.wire.report import CacheReport, Timing

TEXTS = [*DOCUMENTS.values()][:4]
SHORT = "Ada lives in Norwick. "
NO_TIME = Timing(queue=0, cold=0, ttft=0)

CONFIGS = {
    "default": ReuseConfig(),
    "tail": ReuseConfig(seam=SeamRule.parse("8+8")),
    "whole": ReuseConfig(mode=MODES["transition_rope"], min_segment_tokens=1),
    "prefix": ReuseConfig(mode=MODES["prefix_cache"]),
    "full": ReuseConfig(mode=MODES["full_recompute"]),
}


def requests(seed: int) -> list[dict[str, Any]]:
    """Chats over documents in all orders, in sessions and without, some of them twice."""
    rng = random.Random(seed)
    made: list[dict[str, Any]] = []
    for number in range(7):
        documents = rng.sample([*TEXTS, SHORT], rng.randint(0, 3))
        content: list[Any] = [{"type": "segment", "text": text} for text in documents]
        content.insert(
            rng.randint(0, len(content)), {"type": "text", "text": f"Who is it? {number}"}
        )
        system = [{"role": "system", "content": SYSTEM}] if rng.random() < 0.7 else []
        hypic: dict[str, Any] = {"session_id": "s"} if rng.random() < 0.5 else {}
        if rng.random() < 0.2:
            hypic["mode"] = "off"
        one = {
            "messages": [*system, {"role": "user", "content": content}],
            "max_tokens": 0,
            "hypic": hypic,
        }
        made += [one, one] if rng.random() < 0.4 else [one]
        if rng.random() < 0.3:
            turn = [{"role": "assistant", "content": "Ada."}, {"role": "user", "content": "Why?"}]
            made.append({**one, "messages": [*one["messages"], *turn]})
    return made + long_conversations()


def long_conversations() -> list[dict[str, Any]]:
    """One of many turns, then others that leave it at each of them."""
    turns = [{"role": "system", "content": SYSTEM}]
    for number in range(4):
        turns.append({"role": "user", "content": f"What is number {number}?"})
        turns.append({"role": "assistant", "content": f"It is {number}."})
    asked = [turns[:-1]]
    for stop in range(1, len(turns), 2):
        asked.append([*turns[:stop], {"role": "user", "content": f"And {stop}?"}])
    return [{"messages": messages, "max_tokens": 0} for messages in asked]


def without_times(report: CacheReport | None) -> CacheReport:
    assert report is not None
    assert report.segments is not None
    segments = tuple(one.model_copy(update={"cold_ms": 0.0}) for one in report.segments)
    return report.model_copy(update={"timing_ms": NO_TIME, "segments": segments})


@pytest.mark.parametrize("name", CONFIGS)
def test_reports_are_the_engines(name: str) -> None:
    config = replace(EngineConfig(), reuse=CONFIGS[name])
    with LocalHypic(config=config) as real, LocalHypic.scripted(config=config) as scripted:
        for number, request in enumerate(requests(seed=len(name))):
            told = [
                without_times(local.chat.completions.create(**request).cache)
                for local in (real, scripted)
            ]
            assert told[0] == told[1], f"request {number}"


def test_warm_jobs_lookups_and_deletions_are_the_engines() -> None:
    told = []
    for local in (LocalHypic(), LocalHypic.scripted()):
        with local:
            made = local.segments.create_many([*TEXTS[:2], SHORT])
            first = local.segments.warm.create(made).wait()
            second = local.segments.warm.create(made).wait()
            states = [one.state for one in local.segments.lookup(made).values()]
            local.segments.delete(made[0])
            left = [one.state for one in local.segments.lookup(made).values()]
            told.append((first.counts, second.counts, first.tokens.total, states, left))
    assert told[0] == told[1]
