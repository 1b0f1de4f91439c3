"""Replaying a trace: how a rate is found and told, and a whole run over random weights."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hypic_sdk.bench.cluster_trace import TraceShape, document_lengths, make_trace
from hypic_sdk.bench.replay import (
    NUM_HALVINGS,
    RATE_STEP,
    Replay,
    ReplayPlan,
    Sent,
    corpus,
    has_token,
    highest_rate,
    run_replay_bench,
)
from hypic_sdk.bench.replay_server import ReplayServer
from hypic_sdk.config import EngineConfig, StoreConfig
from hypic_sdk.errors import ConfigError
from hypic_sdk.wire.replies import ChatCompletionChunk

SMALL = TraceShape(num_documents=8, per_request=3, median_tokens=40, live_tokens=30)
PLAN = ReplayPlan(SMALL, max_tokens=2, limit_s=20.0, seconds=1.0, num_callers=2, fill_s=0.5)


TOKEN = {"token": "", "bytes": [], "logprob": -1.0, "top_logprobs": []}
CHUNKS = [
    ([], False),
    ([{"index": 0, "delta": {"role": "assistant"}}], False),
    ([{"index": 0, "delta": {"content": ""}}], False),
    ([{"index": 0, "delta": {"content": "a"}}], True),
    ([{"index": 0, "delta": {}, "logprobs": {"content": [TOKEN]}}], True),
]


def answered(rate: float, ttft_s: float) -> Replay:
    return Replay.of(rate, [Sent(ttft_s, 3, 10)] * 4, kept_up=True)


@given(bearable=st.floats(0.13, 500.0))
def test_the_highest_rate_is_found_to_a_step(bearable: float) -> None:
    tried = []

    async def replay(rate: float) -> Replay:
        tried.append(rate)
        return answered(rate, 0.5 if rate <= bearable else 1.5)

    heard: list[Replay] = []
    best = asyncio.run(highest_rate(1.0, 1.0, replay, heard.append))
    assert best is not None
    assert [one.rate for one in heard] == tried
    assert best.rate <= bearable
    # a bracket is a step wide, or a halving, and is halved twice
    assert best.rate * max(RATE_STEP, 2.0) ** (0.5**NUM_HALVINGS) >= bearable * (1 - 1e-9)
    assert best.rate == max(one.rate for one in heard if one.holds(1.0))


def test_a_server_that_bears_no_rate_ends_the_search() -> None:
    async def replay(rate: float) -> Replay:
        return answered(rate, 9.0)

    assert asyncio.run(highest_rate(4.0, 1.0, replay, lambda _: None)) is None


@given(
    times=st.lists(st.one_of(st.none(), st.floats(0.001, 9)), min_size=1, max_size=200),
    kept_up=st.booleans(),
)
def test_what_failed_took_for_ever(times: list[float | None], *, kept_up: bool) -> None:
    sent = [Sent(t, 2, 8) if t is not None else Sent(None, error="x") for t in times]
    found = Replay.of(1.0, sent, kept_up=kept_up)
    assert found.num_failed == times.count(None)
    assert found.p50_s <= found.p99_s
    assert found.holds(math.inf) == (kept_up and None not in times)
    if len(sent) > found.num_failed:
        assert found.hit_share == 0.25
        assert found.mean_prompt_tokens == 8
    if 2 * found.num_failed > len(times):
        assert found.p50_s == math.inf


@given(stream=st.integers(1, 99), seed=st.integers(0, 99))
def test_streams_ask_for_the_same_corpus(stream: int, seed: int) -> None:
    shape = replace(SMALL, seed=seed, num_requests=20)
    lengths = document_lengths(shape)
    first, other = list(make_trace(shape)), list(make_trace(shape, stream))
    for arrival in (*first, *other):
        for name, num_tokens in arrival.documents:
            assert lengths[int(name.removeprefix("seg_"))] == num_tokens
    assert first != other


def test_texts_have_about_the_lengths_of_the_trace() -> None:
    texts, lengths = corpus(SMALL), document_lengths(SMALL)
    assert len(set(texts)) == len(lengths)
    for text, num_tokens in zip(texts, lengths, strict=True):
        assert num_tokens <= len(text) / 3 <= 2 * num_tokens + 60


def test_an_unknown_mode_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="full_recompute"):
        run_replay_bench(Console(), plan=PLAN, modes=["fast"], server=ReplayServer())


@pytest.mark.parametrize(("choices", "has_one"), CHUNKS)
def test_a_token_without_text_is_a_first_token(choices: list[Any], has_one: bool) -> None:
    """As a random model draws many: ids beyond those of the tokenizer."""
    whole = {"id": "x", "created": 0, "model": "m", "choices": choices}
    assert has_token(ChatCompletionChunk.model_validate(whole)) == has_one


@pytest.mark.timeout(180)
def test_a_run_over_random_weights(tmp_path: Path) -> None:
    config = EngineConfig(device="cpu", store=StoreConfig(budget_bytes=32 << 20))
    plan = replace(PLAN, limit_s=0.0)  # no rate holds: the search is short
    console = Console(record=True, width=160)
    [result] = run_replay_bench(
        console,
        plan=plan,
        modes=["transition_rope_recompute"],
        server=ReplayServer(shape="tiny-8k", config=config),
        folder=tmp_path,
    )
    assert result.best is None
    assert [one.errors for one in result.replays] == [{}] * len(result.replays)
    assert all(one.hit_share > 0.2 for one in result.replays)
    assert result.saturated_per_s > 0
    assert result.saturated_failed == 0
    assert result.replays[0].rate == result.saturated_per_s / 2
    told = json.loads((tmp_path / "replay.json").read_text())
    assert [one["rate"] for one in told["arms"][0]["replays"]] == [r.rate for r in result.replays]
    assert "none held" in console.export_text()
