"""Forwards as CUDA graphs: replays give what the same forwards give eagerly."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.bench.serving_model import random_model
from hypic_sdk.config import (
    Determinism,
    EngineConfig,
    ReuseConfig,
    SchedulerConfig,
    SeamRule,
    StoreConfig,
)
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.graph_tables import decode_contexts
from hypic_sdk.engine.graphs import GraphCounts
from hypic_sdk.families.registry import FAMILIES
from tests.closeness import assert_close
from tests.engine.replayed import answers, prompts
from tests.gpu.engines import engine_on

pytestmark = pytest.mark.gpu

# each twice and more: the first time a shape runs eagerly
BATCHES = [prompts(20), prompts(30), prompts(40)[1:], prompts(50)[1:]]


def counts_of(engine: Engine) -> GraphCounts:
    counts = engine._runner.graph_counts
    assert counts is not None, "graphs are on"
    assert "a capture failed" not in counts.eager
    return counts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_replays_equal_eager_forwards_bit_for_bit(device, family, dtype):
    """With row-independent arithmetic, however many rows a bucket adds."""
    found = []
    for graphs in ("auto", "off"):
        engine = engine_on(device, family, dtype, pair="float16", step_tokens=128, graphs=graphs)
        found.append(answers(engine, BATCHES, 4))
        if graphs == "auto":
            counts = counts_of(engine)
            assert counts.num_replayed > 2 * counts.num_captured > 2, counts
    for mine, right in zip(*found, strict=True):
        assert torch.equal(mine, right)


@pytest.mark.parametrize("determinism", [Determinism.ALL, Determinism.ENTRIES])
def test_a_mixture_of_experts_replays(device, determinism):
    """In 16 bits; without row-independent arithmetic the sums of a product may differ."""
    model = random_model("tiny", device)
    found = []
    for graphs in ("auto", "off"):
        config = EngineConfig(
            device=str(device),
            determinism=determinism,
            graphs=graphs,
            capture_asks=2,
            reuse=ReuseConfig(seam=SeamRule(4, 0), min_segment_tokens=1),
            store=StoreConfig(budget_bytes=32 << 20, expected_segment_tokens=64),
        )
        engine = Engine(model, "test", config)
        found.append(_best(engine))
        if graphs == "auto":
            assert counts_of(engine).num_replayed > 4
    for mine, right in zip(*found, strict=True):
        if determinism is Determinism.ALL:
            assert torch.equal(mine, right)
        else:
            assert_close("logprobs", mine[0], right[0], rel_rms=2e-2)


def _best(engine: Engine) -> list[torch.Tensor]:
    """Every request's log-probabilities, over the whole vocabulary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.engine.harness.VOCAB", 500)
        return answers(engine, BATCHES, 4)


def test_usual_forwards_are_captured_before_the_first_request(device):
    """Decode rows of twenty replies run on graphs from their first step on, as they do eagerly."""
    found = []
    for graphs in ("auto", "off"):
        engine = engine_on(
            device, "gated_delta_rule", torch.bfloat16, pair="float16", graphs=graphs
        )
        twenty = SchedulerConfig(max_requests=20)
        engine.capture_ahead(EngineConfig(scheduler=twenty, capture_ahead_s=60.0))
        counts = counts_of(engine) if graphs == "auto" else GraphCounts()
        before = counts.num_captured
        found.append(answers(engine, [[prompts(60)[2]] * 20], 4))
        # up to 16 replies and up to 32, each over contexts of any length there may be; a hit
        longest = engine.describe().settings.max_context_tokens
        expected = 2 * len({min(tokens, longest) for tokens in decode_contexts()}) + 1
        assert counts.num_captured == before == (expected if graphs == "auto" else 0)
        assert counts.num_replayed >= (3 if graphs == "auto" else 0)
    for mine, right in zip(*found, strict=True):
        assert torch.equal(mine, right)
