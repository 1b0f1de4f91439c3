"""The bar says of every token what the report says of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.cli.picture import CellKind, bar, segment_row, shrink, summary, token_kinds
from hypic_sdk.wire.report import CacheReport, SegmentUse, Timing


@st.composite
def reports(draw: st.DrawFn) -> CacheReport:
    """Segments of any status between live stretches; a chain may cover a beginning."""
    prefix = draw(st.integers(0, 20))
    position, segments = prefix + draw(st.integers(0, 5)), []
    for _ in range(draw(st.integers(0, 4))):
        tokens = draw(st.integers(1, 60))
        status = draw(st.sampled_from(["hit", "cold", "live"]))
        seam = min(tokens, 8) if status == "hit" else 0
        segments.append(
            SegmentUse(
                segment_id="seg_x",
                status=status,
                start=position,
                tokens=tokens,
                reused_tokens=tokens - seam if status == "hit" else 0,
                seam_tokens=seam,
                cold_ms=0.0,
            )
        )
        position += tokens + draw(st.integers(0, 5))
    total = position + draw(st.integers(1, 9))
    interior = sum(s.reused_tokens for s in segments)
    seam = sum(s.seam_tokens for s in segments)
    return CacheReport(
        exactness="composed",
        prompt_tokens=total,
        cached_tokens=prefix + interior,
        prefix_tokens=prefix,
        segment_tokens=interior,
        live_tokens=total - prefix - interior,
        seam_tokens=seam,
        cold_tokens=0,
        segments=tuple(segments) if draw(st.booleans()) else None,
        timing_ms=Timing(queue=0.0, cold=0.0, ttft=12.0),
    )


@given(report=reports())
def test_kinds_count_what_the_report_counts(report: CacheReport) -> None:
    kinds = token_kinds(report)
    assert len(kinds) == report.prompt_tokens
    assert kinds.count(CellKind.REUSED) == report.cached_tokens
    assert kinds.count(CellKind.SEAM) == report.seam_tokens


@given(report=reports(), width=st.integers(1, 120))
def test_the_bar_fits_and_hides_nothing_that_was_computed(report: CacheReport, width: int) -> None:
    kinds = token_kinds(report)
    cells = shrink(kinds, width)
    assert len(cells) == len(bar(report, width).plain) == min(width, len(kinds))
    # every cell shows at least what its costliest token cost
    assert (CellKind.REUSED in cells) <= (CellKind.REUSED in kinds)
    assert (CellKind.SEAM in kinds) == (CellKind.SEAM in cells)


def test_words_beside_the_bar() -> None:
    segment = SegmentUse(
        segment_id="seg_x",
        status="cold",
        miss_reason="never_warmed",
        start=0,
        tokens=70,
        reused_tokens=0,
        seam_tokens=8,
        cold_ms=12.4,
    )
    assert segment_row(segment, "a.txt") == ("a.txt", "cold", "never_warmed", "", "70", "0", "12")
    report = CacheReport(
        exactness="composed",
        prompt_tokens=100,
        cached_tokens=60,
        prefix_tokens=0,
        segment_tokens=60,
        live_tokens=40,
        seam_tokens=16,
        cold_tokens=0,
        segments=None,
        timing_ms=Timing(queue=0.0, cold=0.0, ttft=12.0),
    )
    assert "60 reused, 16 recomputed at seams, 24 computed" in summary(report)
