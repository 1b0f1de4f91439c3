"""Engines over `tiny_hybrid`, and what tests ask of them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from hypic_sdk.config import (
    MODES,
    Determinism,
    EngineConfig,
    ReuseConfig,
    SchedulerConfig,
    SeamRule,
    ShadowConfig,
    StoreConfig,
)
from hypic_sdk.engine.batch import FiniteFlags
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.grammars import GrammarBook
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.models.base import CausalLM
from hypic_sdk.models.tiny_hybrid import build_tiny
from hypic_sdk.prompt.segment import PromptPart, SegmentedPrompt
from hypic_sdk.transport.messages import (
    EngineReport,
    EngineRequest,
    FinishReason,
    SamplingParams,
    TokenEvent,
    WarmEvent,
    WarmRequest,
)
from tests.engine.prompts import VOCAB

ALL_FAMILIES = tuple(FAMILIES)
# one of every form of transition, the two with special treatment of positions or decays among them
FEW_FAMILIES = ("gated_delta_rule", "lightning", "mamba2", "gla")

_ids = itertools.count()


@lru_cache(maxsize=32)
def model_of(family: str, dtype: torch.dtype = torch.float64) -> CausalLM:
    """A tiny hybrid; models have no state, so tests share them.

    Its attention stands before a linear layer, or what attention does in a cold pass would reach
    no entry and no test.
    """
    return build_tiny(family, seed=1, dtype=dtype, layers="LAL")


def engine_of(
    family: str = "gated_delta_rule",
    *,
    dtype: torch.dtype = torch.float64,
    mode: str = "transition_rope_recompute",
    seam: SeamRule = SeamRule(4, 0),
    anchored: bool = False,
    pair: str = "float64",
    budget_bytes: int = 32 << 20,
    expected_segment_tokens: int = 64,
    model: CausalLM | None = None,
    max_context_tokens: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    grammars: GrammarBook | None = None,
    shadow: ShadowConfig | None = None,
    overlap: bool = False,
    joined: bool = False,
    **scheduler: object,
) -> Engine:
    """An engine on the CPU; segments of any length are kept."""
    config = EngineConfig(
        device="cpu",
        determinism=Determinism.ALL,
        max_context_tokens=max_context_tokens,
        reuse=ReuseConfig(MODES[mode], seam, min_segment_tokens=1, anchored=anchored),
        store=StoreConfig(
            budget_bytes=budget_bytes,
            expected_segment_tokens=expected_segment_tokens,
            pair=pair,
        ),
        scheduler=SchedulerConfig(**{"step_tokens": 64, "chunk_tokens": 64, **scheduler}),
        shadow=shadow,
        overlap=overlap,
        joined=joined,
    )
    model = model if model is not None else model_of(family, dtype)
    return Engine(model, "test", config, grammars=grammars, clock=clock)


def request_of(
    prompt: SegmentedPrompt, *, max_tokens: int = 3, request_id: str | None = None, **fields: object
) -> EngineRequest:
    """A greedy request that tells every token's whole distribution."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, logprobs=VOCAB)
    fields = {"sampling": sampling, **fields}
    return EngineRequest(request_id or f"r{next(_ids)}", prompt, **fields)


def drain(engine: Engine, max_steps: int = 100_000) -> list[TokenEvent | WarmEvent]:
    """Step until nothing is left to do; the books must be right and nothing held then."""
    events: list[TokenEvent | WarmEvent] = []
    for _ in range(max_steps):
        if not engine.has_work:
            check_idle(engine)
            return events
        events += engine.step()
    raise AssertionError(f"work is left after {max_steps} steps")


def check_idle(engine: Engine) -> None:
    """Nothing is in flight: every byte is free or idle, and the recount agrees."""
    engine.check()
    usage = engine.usage()
    assert usage.total.total == usage.budget_bytes
    assert (usage.num_leases, usage.num_filling) == (0, 0)
    assert (usage.total.pinned, usage.total.reserved, usage.total.filling) == (0, 0, 0)


def events_of(
    events: Sequence[TokenEvent | WarmEvent], request_id: str
) -> list[TokenEvent | WarmEvent]:
    """One request's events."""
    return [event for event in events if event.request_id == request_id]


def answer(engine: Engine, prompt: SegmentedPrompt, **fields: object) -> list[TokenEvent]:
    """Run one request alone to its good end."""
    message = request_of(prompt, **fields)
    engine.submit(message)
    events = events_of(drain(engine), message.request_id)
    check_ended(events)
    return events


def check_ended(events: Sequence[TokenEvent]) -> None:
    """One last event, without an error, with a report whose sums are right."""
    assert [event.finish_reason is not None for event in events].count(True) == 1
    last = events[-1]
    assert last.error is None, last.error
    assert last.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
    check_report(report_of(events))


def check_report(report: EngineReport) -> None:
    """True to the token."""
    parts = report.chain_tokens + report.segment_tokens + report.live_tokens
    assert parts == report.prompt_tokens
    assert 0 <= report.seam_tokens <= report.live_tokens
    assert 0 <= report.cached_tokens <= report.chain_tokens + report.segment_tokens
    reused = sum(segment.reused_tokens for segment in report.segments)
    assert reused <= report.cached_tokens
    for segment in report.segments:
        assert segment.reused_tokens + segment.seam_tokens <= segment.num_tokens


def report_of(events: Sequence[TokenEvent]) -> EngineReport:
    """The report of a request that ended."""
    report = events[-1].report
    assert report is not None
    return report


def token_ids(events: Sequence[TokenEvent]) -> list[int]:
    """The reply."""
    return [token for event in events for token in event.token_ids]


def logprobs(events: Sequence[TokenEvent]) -> torch.Tensor:
    """[tokens, VOCAB]: every step's log-probabilities."""
    steps = [step for event in events for step in event.logprobs]
    table = torch.full((len(steps), VOCAB), float("nan"), dtype=torch.float64)
    for row, step in enumerate(steps):
        for token_id, logprob in step.top:
            table[row, token_id] = logprob
    assert torch.isfinite(table).all(), "a token has no finite log-probability"
    return table


def warm(engine: Engine, *parts: PromptPart, namespace: str = "") -> list[WarmEvent]:
    """Warm segments, one after the other in the order given."""
    message = WarmRequest(f"w{next(_ids)}", tuple(parts), namespace)
    engine.warm(message)
    events = events_of(drain(engine), message.request_id)
    assert events[-1].done
    return events


def spoil(engine: Engine, bad: PromptPart) -> None:
    """Let a segment's last chunk be told as not finite."""
    original = engine._runner._finite_flags

    def flags(batch, *args):
        found = original(batch, *args)

        def told() -> FiniteFlags:
            right = found()
            colds = tuple(
                is_finite and step.job.segment_id != bad.segment_id
                for step, is_finite in zip(batch.colds, right.colds, strict=True)
            )
            return FiniteFlags(colds, right.snapshots)

        return told

    engine._runner._finite_flags = flags
