"""Reports: every token is told once, under its true name."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypic_sdk.config import SeamRule
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, segment_id
from hypic_sdk.transport.messages import MissReason, SegmentStatus
from tests.engine.harness import answer, check_report, engine_of, report_of, warm
from tests.engine.prompts import inner, prompt_of, prompts, tokens

FEW = settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])


@FEW
@given(prompt=prompts(), seam=st.builds(SeamRule, st.integers(0, 9), st.integers(0, 9)))
def test_every_token_is_accounted_for(prompt, seam):
    engine = engine_of(seam=seam)
    segments = [part for part in prompt.parts if part.role is Role.INNER]
    first = report_of(answer(engine, prompt, max_tokens=0))
    second = report_of(answer(engine, prompt, max_tokens=0))
    for report in (first, second):
        check_report(report)
        assert report.prompt_tokens == prompt.num_tokens
        assert len(report.segments) == len(segments)
        by_part = dict(zip(prompt.starts, prompt.parts, strict=True))
        for segment in report.segments:
            assert by_part[segment.start].segment_id == segment.segment_id
            assert len(by_part[segment.start].token_ids) == segment.num_tokens
        in_gaps = sum(
            s.num_tokens - s.seam_tokens
            for s in report.segments
            if s.status in (SegmentStatus.HIT, SegmentStatus.COLD)
        )
        in_chain = sum(s.reused_tokens for s in report.segments if s.status is SegmentStatus.PREFIX)
        assert in_chain <= report.chain_tokens
        if report.chain_tokens == 0:
            assert report.segment_tokens == in_gaps
    assert first.cached_tokens == 0
    assert second.cold_tokens == 0
    assert second.cold_ms == 0.0
    kept = {p.segment_id: len(p.token_ids) for p in segments if engine.probe([p])[0]}
    assert first.cold_tokens == sum(kept.values())


def test_statuses_and_reasons():
    hit, cold, short = inner(tokens(1, 50)), inner(tokens(2, 40)), inner(tokens(3, 4))
    last = PromptPart(Role.TRAILING, tokens(4, 30), segment_id("the last one"), 2, 1)
    body = prompt_of(tokens(5, 10), hit, (6, 6), cold, short, (7,))
    prompt = SegmentedPrompt((*body.parts[:-1], last))
    engine = engine_of(seam=SeamRule(4, 2))
    warm(engine, hit)
    report = report_of(answer(engine, prompt))
    told = [(s.status, s.miss_reason, s.reused_tokens, s.seam_tokens) for s in report.segments]
    assert told == [
        (SegmentStatus.HIT, None, 44, 6),
        (SegmentStatus.COLD, MissReason.NEVER_WARMED, 0, 6),
        (SegmentStatus.LIVE, MissReason.ALL_SEAM, 0, 0),
        (SegmentStatus.TRAILING, None, 0, 0),
    ]
    assert [s.tier for s in report.segments] == ["gpu", None, None, None]
    assert [s.start for s in report.segments] == [10, 62, 102, 106]
    assert (report.segments[3].message_index, report.segments[3].content_index) == (2, 1)
    assert (report.segment_tokens, report.cached_tokens, report.cold_tokens) == (78, 44, 40)
    assert report.seam_tokens == 12
    assert report.live_tokens == 10 + 2 + 12 + 4 + 30
    assert report.cold_ms > 0
    assert report.ttft_ms >= report.queue_ms >= 0


def test_a_segment_that_is_all_seam_says_so():
    """However long it is; and one that is too short says that, whatever its seams."""
    engine = engine_of(seam=SeamRule.parse("100%"))
    (segment,) = report_of(answer(engine, prompt_of(inner(tokens(1, 50)), (5, 5)))).segments
    assert segment.status is SegmentStatus.LIVE
    assert segment.miss_reason is MissReason.ALL_SEAM
    assert segment.seam_tokens == 0  # nothing of it was cached


def test_switched_off_segments_say_so():
    prompt = prompt_of(inner(tokens(1, 50)), (5, 5))
    for engine, reuse in ((engine_of(), False), (engine_of(mode="prefix_cache"), True)):
        (segment,) = report_of(answer(engine, prompt, reuse=reuse)).segments
        assert segment.status is SegmentStatus.LIVE
        assert segment.miss_reason is MissReason.POLICY_OFF
