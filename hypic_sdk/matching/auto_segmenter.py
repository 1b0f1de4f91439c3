"""`AutoSegmenter`: finds texts that are known as segments in an ordinary prompt."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any, final

from hypic_sdk.matching.text_index import ANCHOR_CHARS, AlikeTexts, TextIndex, longest_beginning

MIN_CHARS = 64
"""Shorter texts are not worth a segment: their edges are recomputed anyway."""

MAX_TEXTS = 100_000
MAX_TEXT_CHARS = 1 << 28
MAX_PROMPT_CHARS = 1 << 20
MAX_TRIES = 10_000
"""Places of one prompt where a known text may begin; only a prompt made for it comes near it."""

_GROWTH = 8  # an index this many times the size of the new one is left as it is


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

    def content(self) -> list[dict[str, Any]]:
        """The content parts of the wire."""
        return [
            {"type": "text", "text": part} if isinstance(part, str) else part.part()
            for part in self.parts
        ]


@final
class AutoSegmenter:
    """Knows texts, and cuts prompts at them: exactly, the first, the longest there, none twice.

    Usable from several threads.  A text is known to the byte: one that is edited, or has other
    white space, is not found and stays plain text.  Over `max_texts` or `max_text_chars` the texts
    that were added longest ago are forgotten.
    """

    def __init__(
        self,
        *,
        min_chars: int = MIN_CHARS,
        max_texts: int = MAX_TEXTS,
        max_text_chars: int = MAX_TEXT_CHARS,
        max_prompt_chars: int = MAX_PROMPT_CHARS,
        max_tries: int = MAX_TRIES,
    ) -> None:
        self._min_chars = max(min_chars, ANCHOR_CHARS)
        self._max_texts = max_texts
        self._max_text_chars = max_text_chars
        self._max_prompt_chars = max_prompt_chars
        self._max_tries = max_tries
        self._ids: dict[str, str | None] = {}  # the text added last stands last
        self._num_chars = 0
        self._lock = threading.Lock()
        self._pending: set[str] = set()  # known, and in no index yet
        # falling in size; a tuple is replaced and never changed, for those that read it
        self._indexes: tuple[TextIndex, ...] = ()
        self._num_stale = 0  # texts in the indexes that are forgotten

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, text: str) -> bool:
        return text in self._ids

    def add(self, text: str, segment_id: str | None = None) -> KnownText | None:
        """Know a text from now on; none if it is too short.

        Args:
            segment_id: what a server called it; none: an id that was given before stays.
        """
        if len(text) < self._min_chars:
            return None
        with self._lock:
            if text in self._ids:
                segment_id = segment_id or self._ids.pop(text)
            else:
                self._pending.add(text)
                self._num_chars += len(text)
            self._ids[text] = segment_id
            while len(self._ids) > self._max_texts or self._num_chars > self._max_text_chars:
                self._forget(next(iter(self._ids)))
        return KnownText(text, segment_id)

    def discard(self, text: str) -> None:
        """Forget a text; one that is not known is left alone."""
        with self._lock:
            if text in self._ids:
                self._forget(text)
                # it may have been deleted for good: no index keeps it
                self._indexes, self._pending = (), set(self._ids)
                self._num_stale = 0

    def clear(self) -> None:
        """Forget every text."""
        with self._lock:
            self._ids, self._pending, self._indexes = {}, set(), ()
            self._num_chars = self._num_stale = 0

    def cut(self, prompt: str) -> Cut:
        """Cut a prompt at the known texts in it.

        A prompt over a cap stays whole; `is_capped` says so.
        """
        if not self._ids:
            return Cut((prompt,))
        if len(prompt) > self._max_prompt_chars:
            return Cut((prompt,), is_capped=True)
        parts, end, num_tries = list[str | KnownText](), 0, 0
        for start, places in groupby(self._places(prompt), key=itemgetter(0)):
            if start < end:
                continue
            num_tries += 1
            if num_tries > self._max_tries:
                return Cut((prompt,), is_capped=True)
            text = self._longest_at(prompt, start, [alike for _, alike in places])
            if text:
                parts += [prompt[end:start], KnownText(text, self._ids.get(text))]
                end = start + len(text)
        parts.append(prompt[end:])
        return Cut(tuple(part for part in parts if part) or (prompt,))

    def _places(self, prompt: str) -> Iterator[tuple[int, AlikeTexts]]:
        """Where a known text may begin, rising; a place comes once for each index."""
        found = [list(index.places(prompt)) for index in self._fresh_indexes()]
        return merge(*found, key=itemgetter(0)) if len(found) > 1 else iter(found[0])

    def _longest_at(self, prompt: str, start: int, groups: Sequence[AlikeTexts]) -> str:
        """The longest known text that stands there; empty: none does."""
        found = [
            longest_beginning(
                prompt[start : start + alike.longest_chars], alike.texts, self._ids.__contains__
            )
            for alike in groups
        ]
        return max((text or "" for text in found), key=len)

    def _fresh_indexes(self) -> tuple[TextIndex, ...]:
        """Indexes that hold every known text.

        New texts get an index of their own, joined with those that are not much larger, so each
        text is built into a few of them and a prompt is looked through a few times.
        """
        with self._lock:
            if self._num_stale > len(self._ids):
                self._indexes, self._pending, self._num_stale = (), set(self._ids), 0
            if self._pending or not self._indexes:
                texts, kept = self._pending, list(self._indexes)
                while kept and len(kept[-1].texts) <= _GROWTH * len(texts):
                    texts = texts.union(kept.pop().texts)
                known = texts.intersection(self._ids)
                self._num_stale -= len(texts) - len(known)
                self._indexes, self._pending = (*kept, TextIndex.of(known)), set()
            return self._indexes

    def _forget(self, text: str) -> None:
        del self._ids[text]
        self._num_chars -= len(text)
        if text in self._pending:
            self._pending.discard(text)
        else:
            self._num_stale += 1
