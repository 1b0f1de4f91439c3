"""A composed state, written into transformers' own cache, goes on there as it does here.

The end-to-end oracle: what the engine assembled (states after gaps, conv tails, keys turned to
their places) is all that a model needs, and every part of it lies where the formulas say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from hypic_sdk.engine.engine import Engine
from hypic_sdk.models.base import LayerKind
from hypic_sdk.models.loader import load_model
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt
from tests.closeness import assert_close, relative_rms
from tests.engine.harness import answer, engine_of, logprobs, report_of, token_ids
from tests.engine.prompts import inner, prompt_of, tokens
from tests.models.oracle import (
    LEAST_MARGIN,
    moe_model,
    next_model,
    oracle_logits,
    router_margins,
    save,
    text_model,
)

REL_RMS = 1e-5  # design 3.7: fp32 on both sides
MAKERS: dict[str, Callable[..., Any]] = {
    "qwen3_5": text_model,
    "qwen3_5_moe": moe_model,
    "qwen3_next": next_model,
}
MIXERS = ["linear_attention", "full_attention", "linear_attention", "full_attention"]


def injected(engine: Engine, oracle: Any, position: int, kinds: tuple[LayerKind, ...]) -> Any:
    """transformers' cache, filled from the chain entry that ends at `position`."""
    store = engine._store  # no public way to a state, on purpose
    chains = [resident.entry for resident in store._memory.chains.held.values()]
    (chain,) = (entry for entry in chains if entry.position == position)
    slabs, cache = store.slabs, DynamicCache(config=oracle.config)
    for i, kind in enumerate(kinds):
        index = kinds[:i].count(kind)
        if kind is LayerKind.ATTENTION:
            rows = chain.kv_slots
            keys, values = (x[index, rows].transpose(0, 1) for x in (slabs.keys, slabs.values))
            cache.update(keys[None], values[None], i)
            continue
        # [C, W]: transformers keeps one column more than it ever reads
        tail = slabs.conv_tails[chain.state_slot, index].T
        cache.update_conv_state(torch.nn.functional.pad(tail, (1, 0))[None], i)
        cache.update_recurrent_state(slabs.states[chain.state_slot, index][None].float(), i)
    return cache


@torch.no_grad()
def continued(oracle: Any, cache: Any, more: tuple[int, ...], reply: list[int]) -> torch.Tensor:
    """Log-probabilities of the reply's tokens: `more` in one forward, then token by token."""
    rows = []
    for piece in ([*more], *([token] for token in reply[:-1])):
        out = oracle(input_ids=torch.tensor([piece]), cache=cache, use_cache=True)
        rows.append(out.logits[0, -1].double())
    return torch.stack(rows).log_softmax(-1)


def two_turns(seed: int) -> tuple[SegmentedPrompt, SegmentedPrompt, tuple[int, ...]]:
    """A prompt with segments among other tokens, one of them twice, and the same with more."""
    first, second = inner(tokens(seed, 50)), inner(tokens(seed + 1, 90))
    prompt = prompt_of(
        tokens(seed + 2, 21), first, tokens(seed + 3, 3), second, first, tokens(seed + 4, 11)
    )
    more = tokens(seed + 5, 9)
    trailing = PromptPart(Role.TRAILING, prompt.parts[-1].token_ids + more)
    return prompt, SegmentedPrompt((*prompt.parts[:-1], trailing)), more


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("mode", ["transition_rope_recompute", "addition"])
def test_a_composed_state_continues_alike_in_transformers(
    name: str, mode: str, tmp_path: Path
) -> None:
    oracle = MAKERS[name](layer_types=MIXERS, max_position_embeddings=2048)
    model = load_model(save(oracle, tmp_path), device="cpu").model
    for seed in range(0, 300, 10):
        prompt, longer, more = two_turns(seed)
        engine = engine_of(model=model, dtype=torch.float32, pair="float16", mode=mode)
        answer(engine, prompt, max_tokens=0, session_id="s")
        cache = injected(engine, oracle, prompt.num_tokens, model.spec.layers)
        events = answer(engine, longer, max_tokens=5, session_id="s")
        with router_margins(oracle) as margins:
            want = continued(oracle, cache, more, token_ids(events))
        if min(margins, default=1.0) > LEAST_MARGIN:
            break
    else:
        raise AssertionError("a near tie in every prompt")
    report = report_of(events)
    assert report.chain_tokens == prompt.num_tokens
    assert not report.exact
    assert_close("logprobs", logprobs(events), want, rel_rms=REL_RMS)
    # and composing is something else than the longer forward, or nothing would be shown
    whole = oracle_logits(oracle, longer.token_ids)[-1].double().log_softmax(-1)
    assert relative_rms(logprobs(events)[0], whole) > 100 * REL_RMS
