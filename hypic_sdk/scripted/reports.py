"""The cache report of a scripted request, by the same arithmetic as an engine's."""

from __future__ import annotations

from hypic_sdk.engine.plan import Gap
from hypic_sdk.prompt.segment import PromptPart, Role
from hypic_sdk.scripted.books import Opened
from hypic_sdk.transport.messages import (
    EngineReport,
    MissReason,
    SegmentReport,
    SegmentStatus,
)

_TIER = "gpu"


def report_of(opened: Opened, *, queue_ms: float, ttft_ms: float) -> EngineReport:
    """What the prompt cost; nothing was computed, so cold time is 0."""
    layout, plan = opened.layout, opened.plan
    prompt = layout.prompt
    hits = sum(gap.stop - gap.start for gap in plan.gaps if gap.key not in opened.misses)
    cold = {gap.key: gap.num_tokens for gap in plan.gaps if gap.key in opened.misses}
    gaps = {gap.part_index: gap for gap in layout.gaps}
    return EngineReport(
        prompt_tokens=prompt.num_tokens,
        chain_tokens=plan.chain_tokens,
        segment_tokens=sum(gap.stop - gap.start for gap in plan.gaps),
        live_tokens=plan.live_tokens,
        seam_tokens=sum(_seam_tokens(gap, plan.chain_tokens) for gap in layout.gaps),
        cold_tokens=sum(cold.values()),
        cached_tokens=plan.chain_tokens + hits,
        exact=layout.exact_until(prompt.num_tokens),
        segments=tuple(
            _segment(opened, part, start, gaps.get(index))
            for index, (part, start) in enumerate(zip(prompt.parts, prompt.starts, strict=True))
            if part.segment_id is not None
        ),
        queue_ms=queue_ms,
        cold_ms=0.0,
        ttft_ms=ttft_ms,
    )


def _seam_tokens(gap: Gap, chain_tokens: int) -> int:
    head = max(0, gap.start - max(gap.segment_start, chain_tokens))
    return head + max(0, gap.segment_start + gap.num_tokens - max(gap.stop, chain_tokens))


def _segment(opened: Opened, part: PromptPart, start: int, gap: Gap | None) -> SegmentReport:
    num_tokens, chain_tokens = len(part.token_ids), opened.plan.chain_tokens
    covered = min(max(0, chain_tokens - start), num_tokens)
    status, reason = _outcome(opened, part, gap, covered)
    is_hit = status is SegmentStatus.HIT
    assert part.segment_id is not None, "only segments are told of"
    return SegmentReport(
        segment_id=part.segment_id,
        message_index=part.message_index,
        content_index=part.content_index,
        status=status,
        miss_reason=reason,
        tier=_TIER if is_hit else None,
        start=start,
        num_tokens=num_tokens,
        reused_tokens=covered + (gap.stop - gap.start if is_hit and gap is not None else 0),
        seam_tokens=0 if gap is None else _seam_tokens(gap, chain_tokens),
        cold_ms=0.0,
    )


def _outcome(
    opened: Opened, part: PromptPart, gap: Gap | None, covered: int
) -> tuple[SegmentStatus, MissReason | None]:
    reached = len(part.token_ids) if gap is None else gap.stop - gap.segment_start
    if covered >= reached:
        return SegmentStatus.PREFIX, None
    if part.role is Role.TRAILING:
        return SegmentStatus.TRAILING, None
    if gap is None:
        off = not opened.uses_segments
        return SegmentStatus.LIVE, MissReason.POLICY_OFF if off else MissReason.BELOW_MIN_TOKENS
    if gap.key in opened.misses:
        return SegmentStatus.COLD, opened.misses[gap.key]
    return SegmentStatus.HIT, None
