"""L2, warm = cold: one prompt with nothing kept, all kept and one segment missing, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hypic_sdk.bench import faults
from hypic_sdk.bench.kept_rows import KeptRows, TimeLimit
from hypic_sdk.bench.probe import Probe, Reading, inner_parts
from hypic_sdk.prompt.segment import SegmentedPrompt

REPLY_TOKENS, TOP_LOGPROBS = 8, 8


@dataclass(frozen=True, slots=True)
class WarmCold:
    """Prompts whose tokens and log-probabilities are equal cold, warm and mixed."""

    determinism: str
    num_prompts: int
    num_wanted: int  # more than there are prompts: the run was cut off
    num_equal: int  # bit for bit
    num_same_tokens: int
    noise: float  # nats: the most that a chosen token's log-probability moved before any differed
    widest_gap: float  # nats between the two best where a token first differed; 0: none did
    flipped_bit_found: bool  # whether a reply showed one turned bit of an entry; it need not


@dataclass(frozen=True, slots=True)
class PromptBits:
    """One prompt of `WarmCold`."""

    determinism: str
    prompt: int
    equal: bool
    same_tokens: bool
    noise: float
    gap: float
    flip_found: bool | None  # none: not asked any more


def warm_cold(
    probe: Probe,
    prompts: Sequence[SegmentedPrompt],
    kept: KeptRows | None = None,
    *,
    limit: TimeLimit | None = None,
    share: float = 1.0,
) -> WarmCold:
    """All misses, all hits, one miss among hits; the same reply with the same bits.

    Args:
        kept: prompts that are done already, and where others go.
        limit, share: no prompt but the first is begun when that share of the time has passed.
    """
    kept = KeptRows(None, {}) if kept is None else kept
    determinism = probe.engine.describe().settings.determinism.value
    found = [PromptBits(**row) for row in kept.rows if row["determinism"] == determinism]
    for number in range(len(found), len(prompts)):
        if found and limit is not None and limit.is_over(share):
            break
        ask_flip = not any(one.flip_found for one in found)
        one = _prompt_bits(probe, prompts[number], number, determinism, ask_flip=ask_flip)
        found.append(one)
        kept.add({name: getattr(one, name) for name in PromptBits.__slots__})
    return WarmCold(
        determinism,
        len(found),
        len(prompts),
        sum(one.equal for one in found),
        sum(one.same_tokens for one in found),
        max((one.noise for one in found), default=0.0),
        max((one.gap for one in found), default=0.0),
        any(one.flip_found for one in found),
    )


def _prompt_bits(
    probe: Probe, prompt: SegmentedPrompt, number: int, determinism: str, *, ask_flip: bool
) -> PromptBits:
    probe.engine.clear()
    cold, warm = _read(probe, prompt), _read(probe, prompt)
    probe.engine.delete(inner_parts(prompt)[:1])
    others = (warm, _read(probe, prompt))
    found = None
    if ask_flip:
        with faults.planted(probe, prompt, faults.flip_bit) as num_entries:
            found = num_entries > 0 and _bits(_read(probe, prompt)) != _bits(cold)
    moved = [_moved(cold, other) for other in others]
    return PromptBits(
        determinism,
        number,
        all(_bits(other) == _bits(cold) for other in others),
        all(other.token_ids == cold.token_ids for other in others),
        max(noise for noise, _ in moved),
        max(gap for _, gap in moved),
        found,
    )


def _read(probe: Probe, prompt: SegmentedPrompt) -> Reading:
    # an empty reply would be equal to any other
    return probe.read(prompt, REPLY_TOKENS, TOP_LOGPROBS, ignore_eos=True)


def _bits(reading: Reading) -> tuple[object, ...]:
    return reading.token_ids, reading.logprobs


def _moved(cold: Reading, other: Reading) -> tuple[float, float]:
    """How far log-probabilities moved while tokens were equal, and the gap where one was not."""
    noise = 0.0
    for one, two in zip(cold.logprobs, other.logprobs, strict=True):
        if one.token_id != two.token_id:
            (_, best), (_, second) = one.top[:2]
            return noise, best - second
        noise = max(noise, math.fabs(one.logprob - two.logprob))
    return noise, 0.0
