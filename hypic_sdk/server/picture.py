"""The picture of a prompt: which tokens were reused, which were seams, which were computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from hypic_sdk.config import SeamWidths
from hypic_sdk.transport.messages import EngineReport, SegmentReport, SegmentStatus
from hypic_sdk.wire.recent import Stretch

Kind = Literal["reused", "seam", "computed", "untold"]
Part = tuple[int, Kind]
"""Where it stops (global position), and its kind."""


def picture(
    report: EngineReport, segments: Sequence[SegmentReport], seams: Callable[[int], SeamWidths]
) -> tuple[Stretch, ...]:
    """The prompt of a report in stretches, from its first token to its last, none of them empty.

    Tokens of the kind "reused" are the report's `cached_tokens`, seams its `seam_tokens`, if all of
    its segments are given.

    Args:
        segments: the first of the report's segments, in prompt order; what stands behind the last
            of them is "untold" if there are more.
        seams: the widths of a segment of so many tokens that is kept.
    """
    is_cut = len(segments) < len(report.segments)
    stretches: list[Stretch] = []
    position = 0
    for index, segment in enumerate(segments):
        parts: list[tuple[int, Kind, int | None]] = [(segment.start, "computed", None)]
        parts += [(stop, kind, index) for stop, kind in _parts(segment, seams)]
        for stop, kind, owner in parts:
            stretches += _stretches(position, stop, kind, owner, report.chain_tokens)
            position = max(position, stop)
    rest: Kind = "untold" if is_cut else "computed"
    stretches += _stretches(position, report.prompt_tokens, rest, None, report.chain_tokens)
    return tuple(stretches)


def _parts(segment: SegmentReport, seams: Callable[[int], SeamWidths]) -> Iterator[Part]:
    """A segment in parts, as if there were no chain."""
    stop = segment.start + segment.num_tokens
    kind: Kind = "computed"
    # a prefix that is followed by seams was covered up to its interior's end
    if segment.status in (SegmentStatus.HIT, SegmentStatus.COLD) or segment.seam_tokens:
        widths = seams(segment.num_tokens)
        yield segment.start + widths.head_tokens, "seam"
        kind = "reused" if segment.status is SegmentStatus.HIT else "computed"
        yield stop - widths.tail_tokens, kind
        kind = "seam"
    yield stop, kind


def _stretches(
    start: int, stop: int, kind: Kind, segment: int | None, chain_tokens: int
) -> Iterator[Stretch]:
    """The tokens from `start` to `stop`, those that a chain covers apart."""
    covered = min(max(start, chain_tokens), stop)
    for begin, end, what in ((start, covered, "reused"), (covered, stop, kind)):
        if begin < end:
            yield Stretch(kind=what, start=begin, tokens=end - begin, segment=segment)
