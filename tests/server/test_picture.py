"""The picture of a prompt says of each token what a report says of all."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.prompt.segment import SegmentId
from hypic_sdk.server.picture import picture
from hypic_sdk.transport.messages import EngineReport, SegmentReport, SegmentStatus

HEAD, TAIL = 3, 2
KEPT = (SegmentStatus.HIT, SegmentStatus.COLD)


@dataclass(frozen=True)
class Drawn:
    """A prompt, told twice: token by token, and as an engine reports it."""

    report: EngineReport
    kinds: list[str]
    owners: list[int | None]


@st.composite
def prompts(draw: st.DrawFn) -> Drawn:
    kinds: list[str] = []
    owners: list[int | None] = []
    places: list[tuple[int, int, SegmentStatus]] = []
    for index in range(draw(st.integers(0, 5))):
        glue = draw(st.integers(0, 4))
        status = draw(st.sampled_from([*KEPT, SegmentStatus.LIVE, SegmentStatus.TRAILING]))
        num_tokens = draw(st.integers(HEAD + TAIL + 1 if status in KEPT else 1, 17))
        places.append((len(kinds) + glue, num_tokens, status))
        interior = "reused" if status is SegmentStatus.HIT else "computed"
        own = [interior] * num_tokens
        if status in KEPT:
            own = ["seam"] * HEAD + [interior] * (num_tokens - HEAD - TAIL) + ["seam"] * TAIL
        kinds += ["computed"] * glue + own
        owners += [None] * glue + [index] * num_tokens
    rest = draw(st.integers(1, 5))
    kinds += ["computed"] * rest
    owners += [None] * rest
    chain = draw(st.integers(0, len(kinds)))
    # a seam that a chain covers is none
    kinds[:chain] = ["reused"] * chain
    segments = tuple(_segment(*place, kinds, chain) for place in places)
    return Drawn(_report(kinds, chain, segments), kinds, owners)


def _segment(
    start: int, num_tokens: int, status: SegmentStatus, kinds: list[str], chain: int
) -> SegmentReport:
    own = kinds[start : start + num_tokens]
    reached = num_tokens - TAIL if status in KEPT else num_tokens
    return SegmentReport(
        SegmentId("seg_x"), 0, 0,
        SegmentStatus.PREFIX if chain - start >= reached else status,
        None, None, start, num_tokens, own.count("reused"), own.count("seam"), 0.0,
    )  # fmt: skip


def _report(kinds: list[str], chain: int, segments: tuple[SegmentReport, ...]) -> EngineReport:
    return EngineReport(
        prompt_tokens=len(kinds),
        chain_tokens=chain,
        segment_tokens=0,
        live_tokens=0,
        seam_tokens=kinds.count("seam"),
        cold_tokens=0,
        cached_tokens=kinds.count("reused"),
        exact=False,
        segments=segments,
        queue_ms=0.0,
        cold_ms=0.0,
        ttft_ms=0.0,
    )


@given(prompts())
def test_every_token_has_the_kind_that_it_has(drawn: Drawn) -> None:
    stretches = picture(drawn.report, drawn.report.segments, lambda _: TAIL)
    said = [one.kind for one in stretches for _ in range(one.tokens)]
    owners = [one.segment for one in stretches for _ in range(one.tokens)]
    assert said == drawn.kinds
    assert owners == drawn.owners
    assert [one.start for one in stretches] == [
        sum(one.tokens for one in stretches[:index]) for index in range(len(stretches))
    ]


@given(prompts(), st.integers(0, 5))
def test_what_stands_behind_the_last_remembered_segment_is_untold(drawn: Drawn, num: int) -> None:
    kept = drawn.report.segments[:num]
    stretches = picture(drawn.report, kept, lambda _: TAIL)
    said = [one.kind for one in stretches for _ in range(one.tokens)]
    assert len(said) == len(drawn.kinds)
    chain = drawn.report.chain_tokens
    told = max([chain, *(one.start + one.num_tokens for one in kept)])
    assert said[:told] == drawn.kinds[:told]
    is_cut = len(kept) < len(drawn.report.segments)
    assert set(said[told:]) <= {"untold" if is_cut else "computed"}
