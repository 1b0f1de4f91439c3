"""What every adapter shares, whatever its framework: known texts, and prompts cut at them."""

from __future__ import annotations

import threading
from bisect import bisect, bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, final

from hypic_sdk.wire.report import CacheReport, Usage

ANCHOR_CHARS = 32
"""By its first characters a text is looked for; with the rest it is compared."""

MIN_CHARS = 64
"""Shorter texts are not worth a segment: their edges are recomputed anyway."""

MAX_TEXTS = 100_000
MAX_PROMPT_CHARS = 1 << 20
MAX_TRIES = 10_000
"""Places of one prompt where a known text may begin; only a prompt made for it comes near it."""


@dataclass(frozen=True, slots=True)
class KnownText:
    """A registered text found in a prompt.  Without an id the text alone names the segment."""

    text: str
    segment_id: str | None = None

    def part(self) -> dict[str, Any]:
        """The content part of the wire; the text rides along, so a lost entry heals itself."""
        named = {} if self.segment_id is None else {"segment_id": self.segment_id}
        return {"type": "segment", **named, "text": self.text}


@dataclass(frozen=True, slots=True)
class Cut:
    """A prompt in parts whose texts join to it.  `is_capped`: too much work, so left whole."""

    parts: tuple[str | KnownText, ...]
    is_capped: bool = False

    @property
    def num_segments(self) -> int:
        """How many known texts were found."""
        return sum(isinstance(part, KnownText) for part in self.parts)


class Segmenter(Protocol):
    """Cuts a prompt at known texts."""

    def cut(self, prompt: str) -> Cut:
        """The prompt in parts."""
        ...


@final
class SegmentRegistry:
    """Exact texts that are known as segments, and the `Segmenter` over them.

    Usable from several threads.  Outer whitespace of a text does not count: templates trim it, and
    the prompt keeps it around the segment.  Over `max_texts` the oldest are forgotten.
    """

    def __init__(
        self,
        *,
        min_chars: int = MIN_CHARS,
        max_texts: int = MAX_TEXTS,
        max_prompt_chars: int = MAX_PROMPT_CHARS,
        max_tries: int = MAX_TRIES,
    ) -> None:
        self._min_chars = max(min_chars, ANCHOR_CHARS)
        self._max_texts = max_texts
        self._max_prompt_chars = max_prompt_chars
        self._max_tries = max_tries
        self._ids: dict[str, str | None] = {}
        # texts that begin alike, sorted; a tuple is replaced and never changed, for readers
        self._by_anchor: dict[str, tuple[str, ...]] = {}
        self._longest = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, text: str) -> bool:
        return text.strip() in self._ids

    def add(self, text: str, segment_id: str | None = None) -> KnownText | None:
        """Know a text from now on; none if it is too short."""
        text = text.strip()
        if len(text) < self._min_chars:
            return None
        with self._lock:
            if text in self._ids:
                segment_id = segment_id or self._ids.pop(text)
            else:
                alike = self._by_anchor.get(text[:ANCHOR_CHARS], ())
                place = bisect(alike, text)
                self._by_anchor[text[:ANCHOR_CHARS]] = (*alike[:place], text, *alike[place:])
            self._longest = max(self._longest, len(text))
            # at the end of the dict: it is the one used last
            self._ids.pop(text, None)
            self._ids[text] = segment_id
            while len(self._ids) > self._max_texts:
                self._forget(next(iter(self._ids)))
        return KnownText(text, segment_id)

    def discard(self, text: str) -> None:
        """Forget a text; one that is not known is left alone."""
        with self._lock:
            self._forget(text.strip())

    def _forget(self, text: str) -> None:
        if text not in self._ids:
            return
        del self._ids[text]
        anchor = text[:ANCHOR_CHARS]
        rest = tuple(one for one in self._by_anchor.get(anchor, ()) if one != text)
        if rest:
            self._by_anchor[anchor] = rest
        else:
            self._by_anchor.pop(anchor, None)

    def cut(self, prompt: str) -> Cut:
        """Cut a prompt at the known texts in it: the first, the longest there, then on behind it.

        A prompt over a cap stays whole; `is_capped` says so.
        """
        if not self._ids:
            return Cut((prompt,))
        if len(prompt) > self._max_prompt_chars:
            return Cut((prompt,), is_capped=True)
        by_anchor, parts, end, tries = self._by_anchor, list[str | KnownText](), 0, 0
        starts = range(len(prompt) - ANCHOR_CHARS + 1)
        for start in [at for at in starts if prompt[at : at + ANCHOR_CHARS] in by_anchor]:
            if start < end:
                continue
            alike = by_anchor.get(prompt[start : start + ANCHOR_CHARS], ())
            tries += 1
            if tries > self._max_tries:
                return Cut((prompt,), is_capped=True)
            text = _longest_beginning(prompt[start : start + self._longest], alike)
            if text is not None:
                parts += [prompt[end:start], KnownText(text, self._ids.get(text))]
                end = start + len(text)
        parts.append(prompt[end:])
        return Cut(tuple(part for part in parts if part) or (prompt,))


def _longest_beginning(prompt: str, texts: Sequence[str]) -> str | None:
    """The longest of sorted texts with which a prompt begins.

    What sorts between such a text and the prompt begins with that text too.  So the last one that
    is not behind the prompt is it; or else it is no longer than what the two have in common.
    """
    while texts:
        place = bisect(texts, prompt)
        if place == 0:
            return None
        last = texts[place - 1]
        if prompt.startswith(last):
            return last
        prompt, texts = prompt[: _num_common(prompt, last)], texts[: place - 1]
    return None


def _num_common(one: str, other: str) -> int:
    """How many first characters two texts have in common."""
    lengths = range(1, min(len(one), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: not one.startswith(other[:length]))


def register(
    registry: SegmentRegistry, texts: Iterable[str], segments: Iterable[Any]
) -> Mapping[str, str]:
    """Note the ids that a server gave to texts; ids by text."""
    ids = {text: segment.id for text, segment in zip(texts, segments, strict=True)}
    for text, segment_id in ids.items():
        registry.add(text, segment_id)
    return MappingProxyType(ids)


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
