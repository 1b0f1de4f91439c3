"""What every adapter shares, whatever its framework: known texts, and prompts cut at them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, final

from hypic_sdk.matching import AutoSegmenter, Cut, KnownText
from hypic_sdk.wire.report import CacheReport, Usage

__all__ = [
    "Cut",
    "KnownText",
    "SegmentRegistry",
    "Segmenter",
    "cache_details",
    "report_values",
]


class Segmenter(Protocol):
    """Cuts a prompt at known texts."""

    def cut(self, prompt: str) -> Cut:
        """The prompt in parts."""
        ...


@final
class SegmentRegistry:
    """Texts of an application's documents, and the `Segmenter` over them.

    Usable from several threads.  Outer whitespace of a text does not count: frameworks' templates
    trim it, and the prompt keeps it around the segment.
    """

    def __init__(self, segmenter: AutoSegmenter | None = None) -> None:
        """`segmenter`: one with other caps than the defaults."""
        self._segmenter = AutoSegmenter() if segmenter is None else segmenter

    def __len__(self) -> int:
        return len(self._segmenter)

    def __contains__(self, text: str) -> bool:
        return text.strip() in self._segmenter

    def __deepcopy__(self, memo: dict[int, Any]) -> SegmentRegistry:
        """What is known to a model is known to its copies."""
        return self

    def __reduce__(self) -> Any:
        """In another process it begins empty."""
        return SegmentRegistry, ()

    def add(self, text: str, segment_id: str | None = None) -> KnownText | None:
        """Know a text from now on; none if it is too short.

        Args:
            segment_id: that of the text without its outer whitespace.
        """
        return self._segmenter.add(text.strip(), segment_id)

    def discard(self, text: str) -> None:
        """Forget a text; one that is not known is left alone."""
        self._segmenter.discard(text.strip())

    def cut(self, prompt: str) -> Cut:
        """See `AutoSegmenter.cut`."""
        return self._segmenter.cut(prompt)


def cache_details(usage: Usage) -> tuple[int, int]:
    """Prompt tokens read from the cache, and computed for it; disjoint, within the prompt."""
    read = usage.prompt_tokens_details.cached_tokens
    written = usage.prompt_tokens_details.cache_write_tokens
    return read, min(written, usage.prompt_tokens - read)


def report_values(report: CacheReport | None, cuts: Iterable[Cut]) -> dict[str, Any]:
    """The cache report as JSON-ready values, with what was found in plain text."""
    cuts = tuple(cuts)
    values = {} if report is None else report.model_dump(mode="json")
    values["auto_segments"] = sum(cut.num_segments for cut in cuts)
    values["auto_segment_capped"] = any(cut.is_capped for cut in cuts)
    return values
