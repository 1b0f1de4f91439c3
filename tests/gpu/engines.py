"""Engines over `tiny_hybrid` on the device under test."""

from __future__ import annotations

from functools import lru_cache

import torch

from hypic_sdk.config import (
    Determinism,
    EngineConfig,
    ReuseConfig,
    SchedulerConfig,
    SeamRule,
    ShadowConfig,
    StoreConfig,
)
from hypic_sdk.engine.engine import Engine
from hypic_sdk.models.base import CausalLM
from hypic_sdk.models.tiny_hybrid import build_tiny
from hypic_sdk.prompt.segment import BorderKind, PromptPart, SegmentedPrompt
from tests.engine.prompts import inner, prompt_of, tokens


@lru_cache(maxsize=32)
def model_on(device: torch.device, family: str, dtype: torch.dtype) -> CausalLM:
    """The model that tests of the engine use, the same weights on every device."""
    return build_tiny(family, seed=1, dtype=dtype, device=device, layers="LAL")


def engine_on(
    device: torch.device,
    family: str,
    dtype: torch.dtype,
    *,
    determinism: Determinism = Determinism.ALL,
    pair: str | None = None,
    step_tokens: int = 64,
    graphs: str = "off",
    shadow: ShadowConfig | None = None,
    overlap: bool = False,
) -> Engine:
    """An engine there; segments of any length are kept, dense transitions in full."""
    wide = "float64" if dtype == torch.float64 else "float32"
    config = EngineConfig(
        device=str(device),
        determinism=determinism,
        graphs=graphs,
        capture_asks=2,  # tests are too short for captures that pay
        shadow=shadow,
        overlap=overlap,
        reuse=ReuseConfig(seam=SeamRule(4, 0), min_segment_tokens=1),
        store=StoreConfig(
            budget_bytes=32 << 20,
            expected_segment_tokens=64,
            pair=pair or wide,
        ),
        scheduler=SchedulerConfig(step_tokens=step_tokens, chunk_tokens=64),
    )
    return Engine(model_on(device, family, dtype), "test", config)


def two_documents(seed: int = 0) -> tuple[SegmentedPrompt, list[PromptPart]]:
    """A leading part, segments of one and of several chunks, one of them twice, a long question."""
    documents = [inner(tokens(seed + 1, 50)), inner(tokens(seed + 2, 150))]
    prompt = prompt_of(
        tokens(seed + 4, 21),
        documents[0],
        tokens(seed + 5, 3),
        documents[1],
        documents[0],
        tokens(seed + 6, 90),
        borders=[(21, BorderKind.LEADING), (295, BorderKind.MESSAGE), (356, BorderKind.PROMPT)],
    )
    return prompt, documents
