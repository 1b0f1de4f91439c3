"""Registered texts found inside the plain texts of a request (`auto_segment: "exact"`)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

from hypic_sdk.errors import RequestError
from hypic_sdk.matching import AutoSegmenter, Cut, KnownText
from hypic_sdk.prompt.catalog import RegisteredSegment, SegmentCatalog
from hypic_sdk.prompt.pieces import CallerText, Message
from hypic_sdk.prompt.segment import SegmentId
from hypic_sdk.service.token_memo import TokenMemo

_PAGE = 1000

logger = logging.getLogger(__name__)


@final
class CatalogSegmenter:
    """Cuts a tenant's prompts at that tenant's registered texts.

    It reads the catalog when it is asked, from where it last stopped, so whoever registers or
    deletes need not know of it.  What a model said itself is left alone.
    """

    def __init__(
        self,
        catalog: SegmentCatalog,
        tokenizer_fingerprint: str,
        memo: TokenMemo,
        segmenter: AutoSegmenter | None = None,
    ) -> None:
        self._catalog = catalog
        self._fingerprint = tokenizer_fingerprint
        self._memo = memo
        self._segmenter = AutoSegmenter() if segmenter is None else segmenter
        self._lock = threading.Lock()
        self._last: RegisteredSegment | None = None  # that was read

    def messages(self, messages: Sequence[Message]) -> tuple[tuple[Message, ...], bool]:
        """The messages with segments in them, and whether a text was too long to be looked through.

        Places stay those of the caller: all parts of one text have its message and content index.
        """
        self._learn()
        cuts: list[Cut] = []
        cut = tuple(
            message
            if message.role == "assistant"
            else replace(message, content=tuple(self._pieces(message.content, cuts)))
            for message in messages
        )
        return cut, _is_capped(cuts)

    def texts(self, texts: Sequence[CallerText]) -> tuple[tuple[CallerText, ...], bool]:
        """The same of the parts of a plain prompt."""
        self._learn()
        cuts: list[Cut] = []
        return tuple(self._pieces(texts, cuts)), _is_capped(cuts)

    def _learn(self) -> None:
        with self._lock:
            self._check_place()
            has_more = True
            while has_more:
                after = None if self._last is None else self._last.id
                try:
                    page = self._catalog.page(after=after, limit=_PAGE)
                except RequestError:
                    # where it stopped was deleted just now
                    self._begin_anew()
                    continue
                for segment in page.segments:
                    self._segmenter.add(segment.text, segment.id)
                    self._last = segment
                has_more = page.has_more

    def _check_place(self) -> None:
        """Begin anew if where it stopped is gone, or was registered again and stands elsewhere."""
        if self._last is None:
            return
        known = self._catalog.get(self._last.id)
        if known is None or known.created_at != self._last.created_at:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._segmenter.clear()
        self._last = None

    def _pieces(self, texts: Sequence[CallerText], cuts: list[Cut]) -> Iterator[CallerText]:
        for text in texts:
            if text.segment_id is not None or text.token_ids is not None:
                yield text
                continue
            cut = self._cut(text.text)
            cuts.append(cut)
            for part in cut.parts:
                yield self._piece(text, part)

    def _cut(self, text: str) -> Cut:
        """The cut at texts that are registered still."""
        while True:
            cut = self._segmenter.cut(text)
            found = [part for part in cut.parts if isinstance(part, KnownText)]
            gone = [one for one in found if self._catalog.get(one.segment_id or "") is None]
            if not gone:
                return cut
            for one in gone:
                self._segmenter.discard(one.text)

    def _piece(self, text: CallerText, part: str | KnownText) -> CallerText:
        if isinstance(part, str):
            return replace(text, text=part)
        assert part.segment_id is not None, "what the catalog gave has an id"
        id_ = SegmentId(part.segment_id)
        known = self._catalog.get(id_)
        if known is not None and known.tokenizer_fingerprint == self._fingerprint:
            token_ids = known.token_ids
        else:
            token_ids = self._memo.token_ids(id_, part.text)
        return replace(text, text=part.text, segment_id=id_, token_ids=token_ids)


def _is_capped(cuts: Sequence[Cut]) -> bool:
    is_capped = any(cut.is_capped for cut in cuts)
    if is_capped:
        logger.warning("a text was too long to look for registered segments in it")
    return is_capped
