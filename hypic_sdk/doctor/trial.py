"""A small model of the same kind, run through an engine: which ops run how, and warm = cold."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import torch

from hypic_sdk.config import MIB, Determinism, EngineConfig
from hypic_sdk.doctor.report import LawCheck, OpChoice
from hypic_sdk.engine.engine import Engine
from hypic_sdk.errors import NumericsError, from_payload
from hypic_sdk.kernels.backend import picked_choices
from hypic_sdk.models.loader import Checkpoint
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, segment_id
from hypic_sdk.transport.messages import EngineRequest, SamplingParams, TokenEvent

_BUDGET_BYTES = 256 * MIB
_SEGMENT_TOKENS = (150, 90)
_MOST_STEPS = 10_000


def run_trial(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, config: EngineConfig
) -> tuple[tuple[OpChoice, ...], LawCheck | None]:
    """One prompt with two segments, cold and then warm, sampled and greedy.

    Returns:
        every op that ran, with what ran it and why; law 4 where it is asked for bit by bit.
    Raises:
        HypicError: whatever ended a request.
    """
    trial_config = checkpoint.loaded.config.trial()
    with torch.device(device):
        model = checkpoint.loaded.module.Model(trial_config, dtype)
    _fill(model)
    store = replace(config.store, budget_bytes=_BUDGET_BYTES)
    reuse = replace(config.reuse, min_segment_tokens=1)
    engine = Engine(model.eval(), "trial", replace(config, store=store, reuse=reuse))
    prompt = _prompt(trial_config.vocab_size)
    with picked_choices() as picked:
        cold, warm = (_answer(engine, prompt, name, 0.0) for name in ("cold", "warm"))
        _answer(engine, prompt, "drawn", 0.8)
    ops = tuple(OpChoice(op, choice.implementation, choice.reason) for op, choice in picked.items())
    if engine.describe().settings.determinism is not Determinism.ALL:
        return ops, None
    pairs = zip(cold, warm, strict=True)
    differs = max((abs(a - b) for a, b in pairs), default=math.nan)
    return ops, LawCheck("law 4: warm = cold, bit for bit, in a small model", differs, 0.0)


@torch.no_grad()
def _fill(model: torch.nn.Module) -> None:
    """Random weights of ordinary sizes; drawn on the CPU, alike on every device."""
    rng = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        scale = 0.1 if parameter.ndim == 1 else 1.0 / math.sqrt(parameter.shape[-1])
        parameter.copy_(scale * torch.randn(parameter.shape, generator=rng))


def _prompt(vocab_size: int) -> SegmentedPrompt:
    draw = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(vocab_size) for _ in range(count))

    parts = [PromptPart(Role.LEADING, tokens(12))]
    for count in _SEGMENT_TOKENS:
        ids = tokens(count)
        parts += [PromptPart(Role.INNER, ids, segment_id(repr(ids))),
                  PromptPart(Role.GLUE, tokens(3))]  # fmt: skip
    return SegmentedPrompt((*parts[:-1], PromptPart(Role.TRAILING, tokens(9))))


def _answer(
    engine: Engine, prompt: SegmentedPrompt, request_id: str, temperature: float
) -> list[float]:
    """Log-probabilities of the reply's tokens."""
    sampling = SamplingParams(
        max_tokens=4, temperature=temperature, seed=1, ignore_eos=True, logprobs=1
    )
    engine.submit(EngineRequest(request_id, prompt, sampling))
    found: list[float] = []
    for _ in range(_MOST_STEPS):
        for event in engine.step():
            found += _logprobs(event)
        if not engine.has_work:
            return found
    raise NumericsError("the trial of a small model did not end")


def _logprobs(event: Any) -> list[float]:
    if event.error is not None:
        raise from_payload(event.error)
    return [one.logprob for one in event.logprobs] if isinstance(event, TokenEvent) else []
