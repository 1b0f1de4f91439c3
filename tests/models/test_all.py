"""What is exact in every model: continuing equals the longer forward, decode equals prefill."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.models.base import CausalLM
from hypic_sdk.models.qwen3_5 import Config, Model
from hypic_sdk.models.tiny_hybrid import build_tiny
from tests.closeness import assert_close, relative_rms
from tests.models.oracle import MOE_SIZES, NEXT_SIZES, SIZES, randomise, token_ids
from tests.plain_context import PlainContext

QWEN_FIELDS: dict[str, dict[str, Any]] = {
    "qwen3_5": {"model_type": "qwen3_5_text", **SIZES},
    "qwen3_5_moe": {"model_type": "qwen3_5_moe_text", **MOE_SIZES},
    "qwen3_next": {"model_type": "qwen3_next", **NEXT_SIZES, "mlp_only_layers": [1]},
}


@cache
def tiny_qwen(name: str, dtype: torch.dtype) -> CausalLM:
    config = Config.from_hf(QWEN_FIELDS[name])
    model = Model(config, torch.float64)
    randomise(model)
    return model.to(dtype).eval()


MODELS: dict[str, Callable[[torch.dtype], CausalLM]] = {
    **{name: partial(tiny_qwen, name) for name in QWEN_FIELDS},
    **{
        f"{family} {layers}": cache(
            lambda dtype, family=family, layers=layers: build_tiny(
                family, seed=2, dtype=dtype, layers=layers
            )
        )
        for family in FAMILIES
        for layers in ("LLA", "AL")
    },
}
# design 3.7, dense models
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=6, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([1, 1, 2, 3, 5, 17, 64]), min_size=2, max_size=4),
    dtype=st.sampled_from(list(BOUNDS)),
    seed=st.integers(0, 2**20),
)
def test_any_cut_equals_the_longer_forward(
    name: str, lengths: list[int], dtype: torch.dtype, seed: int
) -> None:
    """Continuing from the states, conv tails and keys of what came before changes nothing."""
    model, ids = MODELS[name](dtype), token_ids(sum(lengths), seed)
    whole, context, start = PlainContext().logits(model, ids), PlainContext(), 0
    for length in lengths:
        got = context.logits(model, ids[start : start + length])
        want = whole[start : start + length]
        assert_close(f"tokens {start}..", got, want, rel_rms=BOUNDS[dtype])
        start += length


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_decode_equals_prefill(name: str, dtype: torch.dtype) -> None:
    model, ids = MODELS[name](dtype), token_ids(24, seed=7)
    context = PlainContext()
    decoded = torch.cat([context.logits(model, [token]) for token in ids])
    assert_close("decode", decoded, PlainContext().logits(model, ids), rel_rms=BOUNDS[dtype])


@pytest.mark.parametrize("name", MODELS)
def test_models_are_causal(name: str) -> None:
    """A later token changes no earlier logit, and an earlier one changes every later row."""
    model, ids = MODELS[name](torch.float64), token_ids(20)
    base = PlainContext().logits(model, ids)
    ids[8] = (ids[8] + 1) % 97
    changed = PlainContext().logits(model, ids)
    assert_close("before", changed[:8], base[:8], rel_rms=1e-14)
    assert all(relative_rms(changed[i], base[i]) > 1e-6 for i in range(8, 20))


@pytest.mark.parametrize("name", MODELS)
def test_no_gradients_and_no_buffers(name: str) -> None:
    model = MODELS[name](torch.float32)
    assert isinstance(model, torch.nn.Module)
    assert not model.training
    assert not list(model.buffers())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not PlainContext().extend(model, [1, 2]).requires_grad
