"""What one request's prompt cost, true to the token: prompt = chain + segment + live."""

from __future__ import annotations

from dataclasses import dataclass

from hypic_sdk.config import ReuseConfig
from hypic_sdk.engine.plan import Gap
from hypic_sdk.engine.request import Request
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentId, SegmentKey
from hypic_sdk.transport.messages import (
    EngineReport,
    MissReason,
    SegmentReport,
    SegmentStatus,
)

# where a hit lay: in the engine's own memory, which has this name on a CPU too
_TIER = "gpu"
_PEER = "peer"  # in another worker's memory


@dataclass(frozen=True, slots=True)
class Standing:
    """One part of a prompt that has a segment id, and its interior if the settings keep one."""

    part: PromptPart
    segment_id: SegmentId
    start: int
    gap: Gap | None


def engine_report(request: Request, reuse: ReuseConfig) -> EngineReport:
    """The report of an admitted request whose prompt was processed under these settings."""
    grant, plan, layout = request.held, request.held.plan, request.layout
    hits = sum(gap.stop - gap.start for gap in plan.gaps if _is_hit(request, gap.key))
    segments = tuple(
        _segment_report(request, standing, reuse, first=first)
        for standing, first in _standings(request)
    )
    tokens_of = {gap.key: gap.entry_tokens for gap in plan.gaps}
    segment_tokens = sum(gap.stop - gap.start for gap in plan.gaps)
    return EngineReport(
        prompt_tokens=request.num_prompt_tokens,
        chain_tokens=plan.chain_tokens,
        segment_tokens=segment_tokens,
        live_tokens=plan.live_tokens,
        seam_tokens=sum(_seam_tokens(gap, plan.chain_tokens) for gap in layout.gaps),
        cold_tokens=sum(
            tokens_of[key] for key in grant.own_jobs - request.pulled - request.made_elsewhere
        ),
        cached_tokens=plan.chain_tokens + hits,
        exact=layout.exact_until(request.num_prompt_tokens),
        segments=segments,
        queue_ms=_ms(request.clock.submitted_s, request.clock.admitted_s),
        cold_ms=sum(request.cold_ms.values()),
        ttft_ms=_ms(request.clock.submitted_s, request.clock.first_token_s),
        degraded=request.degraded,
    )


def _ms(start_s: float, stop_s: float | None) -> float:
    return 0.0 if stop_s is None else 1e3 * (stop_s - start_s)


def _standings(request: Request) -> list[tuple[Standing, bool]]:
    """Every part with a segment id, in prompt order, and whether its key comes for the first time.

    Time spent on a key is told once, where it comes first behind the chain.
    """
    layout, chain_tokens = request.layout, request.held.plan.chain_tokens
    gaps = {gap.part_index: gap for gap in layout.gaps}
    seen: set[SegmentKey] = set()
    standings = []
    for index, (part, start) in enumerate(
        zip(layout.prompt.parts, layout.prompt.starts, strict=True)
    ):
        if part.segment_id is None:
            continue
        gap = gaps.get(index)
        first = gap is not None and gap.start >= chain_tokens and gap.key not in seen
        if first and gap is not None:
            seen.add(gap.key)
        standings.append((Standing(part, part.segment_id, start, gap), first))
    return standings


def _seam_tokens(gap: Gap, chain_tokens: int) -> int:
    """Tokens of the segment's seams that no chain covered."""
    head = max(0, gap.start - max(gap.segment_start, chain_tokens))
    return head + max(0, gap.segment_start + gap.num_tokens - max(gap.stop, chain_tokens))


def _segment_report(
    request: Request, standing: Standing, reuse: ReuseConfig, *, first: bool
) -> SegmentReport:
    """What became of one segment; `first`: its cold time is told here."""
    grant = request.held
    part, start, gap = standing.part, standing.start, standing.gap
    num_tokens = len(part.token_ids)
    covered = min(max(0, grant.plan.chain_tokens - start), num_tokens)
    status, reason = _outcome(request, part, gap, covered, reuse)
    is_hit = status is SegmentStatus.HIT
    interior = gap.stop - gap.start if is_hit and gap is not None else 0
    cold_ms = 0.0
    if status is SegmentStatus.COLD and first and gap is not None:
        cold_ms = request.cold_ms.get(gap.key, 0.0)
    return SegmentReport(
        segment_id=standing.segment_id,
        message_index=part.message_index,
        content_index=part.content_index,
        status=status,
        miss_reason=reason,
        tier=_tier(request, gap) if is_hit else None,
        start=start,
        num_tokens=num_tokens,
        reused_tokens=covered + interior,
        seam_tokens=0 if gap is None else _seam_tokens(gap, grant.plan.chain_tokens),
        cold_ms=cold_ms,
    )


def _outcome(
    request: Request, part: PromptPart, gap: Gap | None, covered: int, reuse: ReuseConfig
) -> tuple[SegmentStatus, MissReason | None]:
    """Status, and why it is not a hit.

    Args:
        covered: tokens of the part that the chain covers.
    """
    misses = request.held.misses
    reached = len(part.token_ids) if gap is None else gap.stop - gap.segment_start
    if covered >= reached:
        return SegmentStatus.PREFIX, None
    if part.role is Role.TRAILING:
        return SegmentStatus.TRAILING, None
    if gap is None:
        return SegmentStatus.LIVE, _why_live(request, part, reuse)
    if _is_hit(request, gap.key):
        return SegmentStatus.HIT, None
    return SegmentStatus.COLD, misses[gap.key]


def _is_hit(request: Request, key: SegmentKey) -> bool:
    """Whether the entry was held: here at admission, or by the worker it was fetched from."""
    return key not in request.held.misses or key in request.pulled


def _tier(request: Request, gap: Gap | None) -> str:
    return _PEER if gap is not None and gap.key in request.pulled else _TIER


def _why_live(request: Request, part: PromptPart, reuse: ReuseConfig) -> MissReason:
    """Why a segment has no interior that is kept."""
    if not request.uses_segments:
        return MissReason.POLICY_OFF
    is_short = len(part.token_ids) < reuse.min_segment_tokens
    return MissReason.BELOW_MIN_TOKENS if is_short else MissReason.ALL_SEAM
