"""The picture of a prompt: which tokens were reused, which were seams, which were computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from hypic_sdk.transport.messages import EngineReport, SegmentReport, SegmentStatus
from hypic_sdk.wire.recent import Stretch

Kind = Literal["reused", "seam", "computed", "untold"]


def picture(
    report: EngineReport, segments: Sequence[SegmentReport], tail_tokens: Callable[[int], int]
) -> tuple[Stretch, ...]:
    """The prompt of a report in stretches, from its first token to its last, none of them empty.

    Tokens of the kind "reused" are the report's `cached_tokens`, seams its `seam_tokens`, if all of
    its segments are given.

    Args:
        segments: the first of the report's segments, in prompt order; what stands behind the last
            of them is "untold" if there are more.
        tail_tokens: the tail seam of a segment of so many tokens that is kept.
    """
    stretches: list[Stretch] = []
    covered = report.chain_tokens
    position = 0
    for index, segment in enumerate(segments):
        stretches += _stretches(position, segment.start, "computed", None, covered)
        position = segment.start
        for stop, kind in _parts(segment, covered, tail_tokens(segment.num_tokens)):
            stretches += _stretches(position, stop, kind, index, covered)
            position = stop
    rest: Kind = "untold" if len(segments) < len(report.segments) else "computed"
    stretches += _stretches(position, report.prompt_tokens, rest, None, covered)
    return tuple(stretches)


def _parts(segment: SegmentReport, covered: int, tail_tokens: int) -> Iterator[tuple[int, Kind]]:
    """A segment in parts: where each stops, and its kind.

    The report counts the seam tokens that no chain covers: the tail is the last of them.
    """
    start, stop = segment.start, segment.start + segment.num_tokens
    tail = min(tail_tokens, segment.seam_tokens)
    is_hit = segment.status is SegmentStatus.HIT
    first_live = min(max(start, covered), stop)
    yield first_live, "reused"
    yield first_live + segment.seam_tokens - tail, "seam"
    yield stop - tail, "reused" if is_hit else "computed"
    yield stop, "seam"


def _stretches(
    start: int, stop: int, kind: Kind, segment: int | None, covered: int
) -> Iterator[Stretch]:
    """The tokens from `start` to `stop`, those that a chain covers apart."""
    middle = min(max(start, covered), stop)
    for begin, end, what in ((start, middle, "reused"), (middle, stop, kind)):
        if begin < end:
            yield Stretch(kind=what, start=begin, tokens=end - begin, segment=segment)
