"""Replaying a trace: how a rate is found and told, and a whole run over random weights."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hypic_sdk.bench import replay, replay_server
from hypic_sdk.bench.cluster_trace import TraceShape, document_lengths, make_trace
from hypic_sdk.bench.published import read
from hypic_sdk.bench.replay import (
    FIRST_SHARE,
    NUM_HALVINGS,
    RATE_STEP,
    Arm,
    Time,
    highest_rate,
    run_replay_bench,
    served,
)
from hypic_sdk.bench.replay_caller import (
    Replay,
    ReplayPlan,
    Saturated,
    Sent,
    corpus,
    has_token,
)
from hypic_sdk.bench.replay_report import ArmResult, counters_of, table_of, write
from hypic_sdk.bench.replay_server import LateServer, ReplayServer, running
from hypic_sdk.bench.serving_model import SHAPES
from hypic_sdk.config import EngineConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import ConfigError
from hypic_sdk.models.qwen_config import Config
from hypic_sdk.prompt.tokenizer import PromptTokenizer
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


def searched(
    first_rate: float, bearable: float, num_replays: float = math.inf
) -> tuple[ArmResult, list[float]]:
    """What a search finds of a server that bears so much, and the rates that it tried."""
    result, tried = ArmResult("m"), []

    async def replay(rate: float) -> Replay:
        tried.append(rate)
        found = answered(rate, 0.5 if rate <= bearable else 1.5)
        result.heard(found, 1.0)
        return found

    asyncio.run(highest_rate(first_rate, 1.0, replay, lambda: len(tried) < num_replays))
    return result, tried


@given(bearable=st.floats(0.13, 500.0))
def test_the_highest_rate_is_found_to_a_step(bearable: float) -> None:
    result, tried = searched(1.0, bearable)
    best = result.best
    assert best is not None
    assert [one.rate for one in result.replays] == tried
    assert best.rate <= bearable
    # a bracket is a step wide, or a halving, and is halved twice
    assert best.rate * max(RATE_STEP, 2.0) ** (0.5**NUM_HALVINGS) >= bearable * (1 - 1e-9)
    assert best.rate == max(one.rate for one in result.replays if one.holds(1.0))


def test_a_server_that_bears_no_rate_ends_the_search() -> None:
    result, tried = searched(4.0, 0.0)
    assert result.best is None
    assert tried == [4.0, 2.0, 1.0, 0.5]


@given(bearable=st.floats(0.0, 500.0), num_replays=st.integers(0, 12))
def test_a_search_that_may_not_go_on_has_what_it_found(bearable: float, num_replays: int) -> None:
    result, tried = searched(1.0, bearable, num_replays)
    _, all_of_them = searched(1.0, bearable)
    assert tried == all_of_them[:num_replays]
    held = [rate for rate in tried if rate <= bearable]
    assert (None if result.best is None else result.best.rate) == max(held, default=None)


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


def told_in(folder: Path) -> Any:
    return json.loads((folder / "replay.json").read_text())


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
    assert result.saturated_hit_share > 0.2
    assert result.saturated_failed == 0
    assert result.replays[0].rate == FIRST_SHARE * result.saturated_per_s
    stages = ["start", "register", "first request", "fill and saturate", "search"]
    assert list(result.took_s) == stages
    assert result.cut_off == ""
    assert result.counters['hypic_prompt_tokens_total{kind="segment"}'] > 0
    [arm] = told_in(tmp_path)["arms"]
    assert [one["rate"] for one in arm["replays"]] == [r.rate for r in result.replays]
    assert arm["took_s"] == result.took_s
    told = read(tmp_path, for_pages=False).replay
    assert told is not None, "what is written is what pages are made of"
    assert [one.rate for one in told.arms[0].replays] == [r.rate for r in result.replays]
    with pytest.raises(ConfigError, match="tiny"):
        read(tmp_path)
    assert "none held" in console.export_text()


@pytest.mark.timeout(180)
def test_a_run_ends_with_its_time_and_gives_each_arm_a_share(tmp_path: Path) -> None:
    """The first arm has hardly time to begin; the second has what that leaves."""
    config = EngineConfig(device="cpu", store=StoreConfig(budget_bytes=32 << 20))
    plan = replace(PLAN, limit_s=20.0, seconds=2.0, total_s=32.0)
    console = Console(record=True, width=160)
    began_s = time.perf_counter()
    results = run_replay_bench(
        console,
        plan=plan,
        modes=["prefix_cache", "transition_rope_recompute"],
        server=ReplayServer(shape="tiny-8k", config=config),
        folder=tmp_path,
    )
    assert time.perf_counter() - began_s < 32.0 + 3.0, "it ends by itself"
    for result, told in zip(results, told_in(tmp_path)["arms"], strict=True):
        assert result.cut_off == told["cut_off"] != "", "every rate holds: a search has no end"
    assert "over in: " in console.export_text()


def test_a_server_that_is_late_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_server, "STOP_TIMEOUT_S", 0.1)
    with pytest.raises(LateServer, match="not ready"), running(ReplayServer(shape="tiny-8k"), 0.01):
        raise AssertionError("it can not be ready yet")


KILLED = """
from hypic_sdk.bench.replay_server import ReplayServer, running
from hypic_sdk.config import EngineConfig
with running(ReplayServer(shape="tiny-8k", config=EngineConfig(device="cpu"))) as url:
    print(url, flush=True)
    input()
"""


@pytest.mark.timeout(120)
def test_a_server_ends_with_a_bench_that_is_killed() -> None:
    with Popen([sys.executable, "-c", KILLED], stdin=PIPE, stdout=PIPE, text=True) as bench:
        assert bench.stdout is not None
        url = bench.stdout.readline().strip()
        with urlopen(f"{url}/health/ready") as reply:
            assert reply.status == 200
        bench.kill()
    until_s = time.monotonic() + 60.0
    while time.monotonic() < until_s:
        try:
            urlopen(f"{url}/health/ready", timeout=5.0).close()
        except OSError:
            return
        time.sleep(0.2)
    raise AssertionError("it still answers")


class Hanging:
    """In the place of a caller: one of its calls never ends."""

    def __init__(self, hangs_in: str) -> None:
        self._hangs_in = hangs_in

    def __getattr__(self, name: str) -> Any:
        async def call(*args: float) -> Any:
            if name == self._hangs_in:
                await asyncio.sleep(3600.0)
            if name == "register":
                return 1.0
            if name == "saturate":
                return Saturated(8.0, 0.5, 0)
            return Sent(0.1) if name == "first" else answered(args[0], 0.5)

        return call


STAGES = {"register": "register", "first": "first request", "saturate": "fill and saturate"}
STAGES["replay"] = "search"


@pytest.mark.parametrize("call", STAGES)
def test_what_hangs_is_given_up_and_what_was_found_is_written(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "Caller", lambda client, plan: Hanging(call))
    result, said = ArmResult("m"), []
    plan = replace(PLAN, seconds=0.01)

    def save() -> None:
        write(tmp_path, "s", plan, {}, [result])

    arm = Arm(plan, result, Time(0.5), said.append, save)
    asyncio.run(arm.measure("http://127.0.0.1:9"))
    assert result.cut_off == STAGES[call]
    [told] = told_in(tmp_path)["arms"]
    assert told == json.loads(json.dumps(asdict(result)))
    assert list(told["took_s"])[-1] == STAGES[call]
    assert told["saturated_per_s"] == (8.0 if call == "replay" else 0.0)
    assert any("no counters" in line for line in said), "nobody listens there"


def test_a_file_is_whole_while_it_is_written(tmp_path: Path) -> None:
    write(tmp_path, "s", PLAN, {}, [ArmResult("a")])
    with pytest.raises(TypeError):  # in the midst of the next one
        write(tmp_path, "s", PLAN, {"x": object()}, [])
    assert [arm["mode"] for arm in told_in(tmp_path)["arms"]] == ["a"]
    found = Replay.of(1.0, [Sent(None, error="x")], kept_up=True)
    write(tmp_path, "s", PLAN, {}, [ArmResult("b", [found])])
    assert told_in(tmp_path)["arms"][0]["replays"][0]["p50_s"] is None


def test_counters_are_of_forwards_and_tokens() -> None:
    text = (
        "# HELP hypic_graph_replays_total x\nhypic_graph_replays_total 7.0\n"
        'hypic_eager_forwards_total{reason="cold_rows"} 3.0\nhypic_graph_captures_total 0.0\n'
        "hypic_graph_replays_created 1.7e9\nhypic_other 4\n"
    )
    assert counters_of(text) == {
        "hypic_graph_replays_total": 7.0,
        'hypic_eager_forwards_total{reason="cold_rows"}': 3.0,
    }


def test_a_table_of_arms_that_came_to_nothing() -> None:
    console = Console(record=True, width=200, quiet=False)
    console.print(table_of([ArmResult("prefix_cache"), ArmResult("b")], PLAN))
    assert console.export_text().count("none held") == 2


def test_what_is_served_follows_the_options() -> None:
    store = StoreConfig(1 << 30, 1500, "int8")
    config = served(None, "tiny-8k", "cpu", store, 9.0).config
    assert (config.store, config.capture_ahead_s) == (store, 9.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_with_fewer_words_than_the_tokenizer_is_refused_before_a_server_starts(shape):
    num_words = PromptTokenizer.from_folder(reader_path()).vocab_size
    num_rows = Config.from_hf(SHAPES[shape]).vocab_size
    if num_rows >= num_words:
        assert served(None, shape, "cpu", StoreConfig()).shape == shape
        return
    told = f"{shape}' has {num_rows} words, .* tokenizer has {num_words}: .* qwen3.5-35b-a3b, tiny"
    with pytest.raises(ConfigError, match=told):
        served(None, shape, "cpu", StoreConfig())


@pytest.mark.parametrize("num_gpus", [0, 2])
@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1", "cuda:2", "cuda:x", "gpu"])
def test_a_device_that_is_not_here_is_refused_before_a_server_starts(
    device: str, num_gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: num_gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_gpus)
    if device in ("auto", "cpu") or (num_gpus and device in ("cuda", "cuda:1")):
        assert served(None, "tiny-8k", device, StoreConfig()).config.device == device
    else:
        with pytest.raises(ConfigError, match=f"no device '{device}' can be used here, only"):
            served(None, "tiny-8k", device, StoreConfig())


def test_a_report_says_what_was_served_and_how_its_cache_was_split() -> None:
    store = StoreConfig(3 << 29, 1500, "int8", segments_per_request=7)
    words = served(None, "tiny-8k", "cpu", store, 9.0).words
    assert words == (
        "tiny-8k, cache of 1.5 GiB split for 7 segments of 1500 tokens a request, pairs in int8"
    )
    assert served(None, None, "cpu", store, 9.0).words.startswith("the packaged reader, cache")
