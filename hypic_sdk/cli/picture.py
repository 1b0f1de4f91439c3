"""A request's prompt as a coloured bar: what was reused, recomputed at seams, computed.

The glyphs differ as much as the colours, so the picture also reads in a log or without colours.
"""

from __future__ import annotations

import itertools
from enum import Enum

from rich.text import Text

from hypic_sdk.wire.report import CacheReport, SegmentUse


class CellKind(Enum):
    """What a prompt token cost: its glyph, its colour, its name in the legend."""

    REUSED = ("█", "green", "reused")
    SEAM = ("▒", "yellow", "recomputed at seams")
    COMPUTED = ("░", "red", "computed")


def token_kinds(report: CacheReport) -> list[CellKind]:
    """One kind per prompt token.

    A seam is drawn at the head of its segment.  A cold segment was computed in this request, and
    so is drawn as computed.  Without per-segment rows only the totals are known: reused first.
    """
    if report.segments is None:
        return (
            [CellKind.REUSED] * report.cached_tokens
            + [CellKind.SEAM] * report.seam_tokens
            + [CellKind.COMPUTED]
            * (report.prompt_tokens - report.cached_tokens - report.seam_tokens)
        )
    kinds = [CellKind.COMPUTED] * report.prompt_tokens
    for segment in report.segments:
        if segment.status == "hit":
            interior = segment.start + segment.seam_tokens
            stop = segment.start + segment.tokens
            kinds[segment.start : stop] = [CellKind.REUSED] * segment.tokens
            kinds[segment.start : interior] = [CellKind.SEAM] * segment.seam_tokens
    kinds[: report.prefix_tokens] = [CellKind.REUSED] * report.prefix_tokens
    return kinds


def shrink(kinds: list[CellKind], width: int) -> list[CellKind]:
    """At most `width` cells, each the costliest kind of its tokens, so that no seam vanishes."""
    order = [CellKind.REUSED, CellKind.COMPUTED, CellKind.SEAM]
    width = max(1, min(width, len(kinds)))
    edges = [index * len(kinds) // width for index in range(width + 1)]
    return [max(kinds[start:stop], key=order.index) for start, stop in itertools.pairwise(edges)]


def bar(report: CacheReport, width: int) -> Text:
    """The prompt from left to right in at most `width` cells."""
    text = Text()
    for kind in shrink(token_kinds(report), width):
        glyph, colour, _ = kind.value
        text.append(glyph, style=colour)
    return text


def legend() -> Text:
    """What the glyphs mean."""
    text = Text()
    for kind in CellKind:
        glyph, colour, name = kind.value
        text.append(f"{glyph}{glyph}", style=colour)
        text.append(f" {name}   ")
    return text


def summary(report: CacheReport) -> str:
    """The numbers under the bar."""
    return (
        f"{report.prompt_tokens} prompt tokens: {report.cached_tokens} reused, "
        f"{report.seam_tokens} recomputed at seams, "
        f"{report.prompt_tokens - report.cached_tokens - report.seam_tokens} computed; "
        f"first token after {report.timing_ms.ttft:.0f} ms"
    )


def segment_row(segment: SegmentUse, name: str) -> tuple[str, ...]:
    """A row of the table of segments: name, status, reason, tier, tokens, reused, milliseconds."""
    return (
        name,
        segment.status,
        segment.miss_reason or "",
        segment.tier or "",
        str(segment.tokens),
        str(segment.reused_tokens),
        f"{segment.cold_ms:.0f}",
    )
