"""Rungs of the ladder: algebra, purity, norms of transitions, drift by layer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from hypic_sdk.bench import faults
from hypic_sdk.bench.fidelity_arms import DEFAULT, FULL, Arm, Bench, FullReply
from hypic_sdk.bench.fidelity_cases import Case
from hypic_sdk.bench.probe import Probe, inner_parts
from hypic_sdk.bench.scores import angle_degrees, relative_l2
from hypic_sdk.bench.serving_targets import (
    LAYER_0_16_BITS,
    LAYER_0_FP16_T,
    LAYER_0_FP32,
    TARGETS,
)
from hypic_sdk.bench.subject import Subject
from hypic_sdk.doctor.laws import check_laws
from hypic_sdk.kernels.items import NO_SLOT
from hypic_sdk.models.base import LayerKind, TransitionKind
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, segment_id

NORM_TOKENS = 256
EXACT = f"{DEFAULT}, fp32 transition"
LEAST_NORM, LEAST_NORM_SHARE = 0.1, 1.0 / 3.0


@dataclass(frozen=True, slots=True)
class Law:
    """L0: one law of the algebra, and its error here."""

    law: str
    error: float
    bound: float
    holds: bool


@dataclass(frozen=True, slots=True)
class Purity:
    """L1: entries whose bytes are the same however they were made."""

    num_entries: int
    num_pure: int
    flipped_bit_found: bool  # the control: one bit of one entry was turned


@dataclass(frozen=True, slots=True)
class Norms:
    """Median spectral norm of each head's transition over `num_tokens` tokens."""

    num_tokens: int
    num_segments: int
    by_layer: tuple[tuple[float, ...], ...]  # none stored (a constant family): empty
    share_slow: float  # heads over LEAST_NORM

    @property
    def pass_on(self) -> bool:
        """Whether enough heads carry a state through a segment."""
        return self.share_slow >= LEAST_NORM_SHARE


@dataclass(frozen=True, slots=True)
class LayerDrift:
    """How far a linear layer's state after the reply is from full recompute's: medians."""

    arm: str
    attention: bool  # false: both arms ran with full attention silenced
    layer: int  # among linear layers
    relative_l2: float
    largest_l2: float
    degrees: float


def algebra(subject: Subject, probe: Probe) -> tuple[Law, ...]:
    """L0 on the model's family, shapes and device."""
    layout = probe.engine.describe().store_layout
    checks = check_laws(subject.family, layout, device=subject.device)
    return tuple(Law(one.law, one.error, one.bound, one.holds) for one in checks)


def purity(probe: Probe, prompts: Sequence[SegmentedPrompt]) -> Purity:
    """L1: alone, together, in reverse order, and by a request, each into an empty pool."""
    total = pure = 0
    found = False
    for prompt in prompts:
        parts = inner_parts(prompt)
        digests = [_digests(probe, parts, [whole]) for whole in (parts, parts[::-1])]
        digests.append(_digests(probe, parts, [(part,) for part in parts]))
        probe.engine.clear()
        probe.read(prompt, 1)
        digests.append(probe.engine.entry_digests(parts))
        kept = [several for several in zip(*digests, strict=True) if several[0] is not None]
        total += len(kept)
        pure += sum(len(set(several)) == 1 for several in kept)
        if kept and not found:
            with faults.planted(probe, prompt, faults.flip_bit):
                found = probe.engine.entry_digests(parts) != digests[0]
    return Purity(total, pure, found)


def _digests(
    probe: Probe, parts: tuple[PromptPart, ...], batches: Sequence[tuple[PromptPart, ...]]
) -> list[bytes | None]:
    probe.engine.clear()
    for batch in batches:
        probe.warm_parts(batch)
    return probe.engine.entry_digests(parts)


def transition_norms(subject: Subject, probe: Probe, texts: Sequence[str]) -> Norms:
    """Of the entries' own transitions, whose interiors are `NORM_TOKENS` tokens each."""
    head = probe.engine.describe().settings.reuse.seam_widths(1 << 20, 1).head_tokens
    length = NORM_TOKENS + max(head, probe.engine.describe().settings.conv_width - 1)
    ids = [subject.tokenizer.encode_text(text)[:length] for text in texts]
    ids = [one for one in ids if len(one) == length]
    parts = tuple(PromptPart(Role.INNER, one, segment_id(repr(one))) for one in ids)
    probe.engine.clear()
    probe.warm_parts(parts)
    found: list[torch.Tensor] = []
    with probe.engine.opened(parts) as (slabs, entries):
        for entry in entries:
            if entry is not None and slabs.transitions is not None:
                assert entry.transition_slot != NO_SLOT
                kept = slabs.transitions[entry.transition_slot]
                found.append(_norms(kept, subject.model.spec.linear.transition))
    probe.engine.clear()
    if not found:
        return Norms(NORM_TOKENS, 0, (), 0.0)
    medians_JH = torch.stack(found).median(0).values
    share = float((medians_JH > LEAST_NORM).double().mean())
    rows = tuple(tuple(round(float(x), 4) for x in row) for row in medians_JH)
    return Norms(NORM_TOKENS, len(found), rows, share)


def _norms(transitions: torch.Tensor, kind: TransitionKind) -> torch.Tensor:
    """[J, H] spectral norms of one entry's transitions, all layers."""
    kept = transitions.double().cpu()
    if kind is TransitionKind.DENSE:
        return torch.linalg.matrix_norm(kept, ord=2)
    return kept.exp() if kind is TransitionKind.SCALAR else kept.exp().amax(-1)


def drift(
    bench: Bench,
    arms: Sequence[Arm],
    cases: Sequence[Case],
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[LayerDrift]:
    """Every arm's states against full recompute's, with full attention and without.

    Args:
        is_over: no further arm is begun when it says so.
    """
    fulls = [bench.full(case) for case in cases]
    for attends in (True, False):
        wanted = _full_states(bench, fulls, attends=attends)
        for arm in arms:
            if is_over():
                return
            states = [
                bench.probe(arm, attends=attends)
                .force(full.case.prompt(bench.subject), full.token_ids)
                .state
                for full in fulls
            ]
            for layer in range(len(wanted[0])):
                pairs = [(a[layer], b[layer]) for a, b in zip(states, wanted, strict=True)]
                errors = [relative_l2(a, b) for a, b in pairs]
                degrees = [angle_degrees(a, b) for a, b in pairs]
                yield LayerDrift(
                    arm.name, attends, layer, statistics.median(errors), max(errors),
                    statistics.median(degrees),
                )  # fmt: skip


def _full_states(bench: Bench, fulls: Sequence[FullReply], *, attends: bool) -> list[torch.Tensor]:
    if attends:
        return [full.forced.state for full in fulls]
    probe = bench.probe(Arm(FULL, FULL), attends=False)
    prompts = [full.case.prompt(bench.subject) for full in fulls]
    return [
        probe.force(prompt, full.token_ids).state
        for prompt, full in zip(prompts, fulls, strict=True)
    ]


def first_layer_bounds(subject: Subject) -> dict[str, float]:
    """How far the state of a model's first layer may be from full recompute's, by arm (design 13).

    It has met no other layer, so composition is exact there but for rounding.  None where full
    attention comes first.
    """
    if subject.model.spec.layers[0] is not LayerKind.LINEAR:
        return {}
    is_16_bit = next(cast("torch.nn.Module", subject.model).parameters()).dtype.itemsize == 2
    if is_16_bit:
        return dict.fromkeys((DEFAULT, EXACT), TARGETS[LAYER_0_16_BITS])
    return {DEFAULT: TARGETS[LAYER_0_FP16_T], EXACT: TARGETS[LAYER_0_FP32]}


def drift_arms() -> tuple[Arm, ...]:
    """The default, with the transition in fp32 too, without seams, and naive addition."""
    default = Arm(DEFAULT)
    exact = replace(default, name=EXACT, pair="float32")
    plain = Arm("transition_rope", "transition_rope")
    return default, exact, plain, Arm("addition", "addition")


def distinct_worlds(cases: Sequence[Case], num_cases: int) -> list[Case]:
    """At most so many cases, no two of one world, spread over the strata in turn."""
    by_stratum: dict[str, list[Case]] = {}
    worlds = set()
    for case in cases:
        if case.world not in worlds:
            worlds.add(case.world)
            by_stratum.setdefault(case.stratum, []).append(case)
    queues = list(by_stratum.values())
    turns = [queue[i] for i in range(len(cases)) for queue in queues if i < len(queue)]
    return turns[:num_cases]
