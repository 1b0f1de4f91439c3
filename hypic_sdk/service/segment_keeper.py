"""What is kept of registered segments and for how long: pins, priorities, limits, expiry."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import final

from hypic_sdk.errors import (
    PinBudgetExhausted,
    QuotaExceeded,
    SegmentNotFound,
    WorkerLost,
)
from hypic_sdk.prompt.catalog import USUAL_PRIORITY, RegisteredSegment, SegmentCatalog
from hypic_sdk.prompt.segment import PromptPart, Role
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service import keeping
from hypic_sdk.service.token_memo import TokenMemo
from hypic_sdk.service.worker_port import WorkerPort

logger = logging.getLogger(__name__)


@final
class SegmentKeeper:
    """One namespace's wishes about its entries: the registry remembers, the engine is told.

    An engine that is started again knows nothing of them until `restore`.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        memo: TokenMemo,
        catalog: SegmentCatalog,
        worker: WorkerPort,
        *,
        namespace: str = "",
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._tokenizer = tokenizer
        self._memo = memo
        self._catalog = catalog
        self._worker = worker
        self._namespace = namespace
        self._now_s = now_s
        self._pinning = threading.Lock()  # so that two pins do not both fit where one does
        self.cached_bytes_limit: int | None = None  # none: the pools' own size
        self.pinned_bytes_limit: int | None = None  # none: what the engine lets pins take

    def part(self, segment: RegisteredSegment) -> PromptPart:
        """The segment as the engine knows it."""
        ids = segment.token_ids
        if segment.tokenizer_fingerprint != self._tokenizer.fingerprint:
            ids = self._memo.token_ids(segment.id, segment.text)
        return PromptPart(Role.INNER, ids, segment.id)

    # -- pins

    def pin(self, segments: Sequence[RegisteredSegment], ttl_s: int | None) -> None:
        """Keep the entries of these segments, those that are there and those that come.

        Raises:
            PinBudgetExhausted: with them, pins would take more than they may.
        """
        expires_at = None if ttl_s is None else int(self._now_s()) + ttl_s
        with self._pinning:
            self._check_pinned_bytes(segments)
            try:
                keeping.pin(self._worker, [self.part(one) for one in segments], self._namespace)
            except WorkerLost:
                logger.info("pins are told to the engine once it is there again")
            for segment in segments:
                self._catalog.set_pin(segment.id, is_pinned=True, expires_at=expires_at)

    def _check_pinned_bytes(self, segments: Sequence[RegisteredSegment]) -> None:
        limit = self.pinned_bytes_limit
        if limit is None:
            return
        pinned = {one.id: one for one in self._catalog.kept_specially() if one.is_pinned}
        needed = self._bytes_of([*{**pinned, **{one.id: one for one in segments}}.values()])
        if needed > limit:
            raise PinBudgetExhausted(
                f"pins of this tenant would take {needed} bytes, they may take {limit}: unpin "
                "other segments",
                needed_bytes=needed,
                limit_bytes=limit,
            )

    def _bytes_of(self, segments: Sequence[RegisteredSegment]) -> int:
        parts = [self.part(one) for one in segments]
        return sum(one.num_bytes for one in keeping.look(self._worker, parts, self._namespace))

    def unpin(self, segments: Sequence[RegisteredSegment]) -> None:
        """Let their entries be evicted again."""
        for segment in segments:
            self._catalog.set_pin(segment.id, is_pinned=False)
        self._tell_unpinned(segments)

    def _tell_unpinned(self, segments: Sequence[RegisteredSegment]) -> None:
        try:
            keeping.unpin(self._worker, [self.part(one) for one in segments], self._namespace)
        except WorkerLost:
            logger.info("no engine holds a pin")

    @property
    def pinned_bytes(self) -> int:
        """Bytes that the namespace's pinned entries take, or will."""
        return self._bytes_of([one for one in self._catalog.kept_specially() if one.is_pinned])

    # -- priorities and limits

    def tell_priorities(self, segments: Sequence[RegisteredSegment]) -> None:
        """Tell the engine how early these segments' entries are to go."""
        parts: dict[int, list[PromptPart]] = defaultdict(list)
        for segment in segments:
            parts[segment.priority].append(self.part(segment))
        try:
            for priority, some in parts.items():
                keeping.set_priority(self._worker, some, priority, self._namespace)
        except WorkerLost:
            logger.info("priorities are told to the engine once it is there again")

    @property
    def cached_bytes(self) -> int:
        """Bytes that the namespace holds in the pools."""
        return keeping.cached_bytes(self._worker, self._namespace)

    def check_cached_bytes(self, segments: Sequence[RegisteredSegment]) -> None:
        """Raises QuotaExceeded, if these segments can never all be warm under the limit."""
        limit = self.cached_bytes_limit
        if limit is None:
            return
        needed = self._bytes_of(segments)
        if needed > limit:
            raise QuotaExceeded(
                f"these segments take {needed} bytes in the cache, this tenant may have {limit}: "
                "warm fewer",
                quota="cached_bytes",
                needed_bytes=needed,
                limit_bytes=limit,
            )

    def clear(self) -> int:
        """Drop all entries and chains of the namespace; how many.  Texts stay, and wishes."""
        return keeping.clear(self._worker, self._namespace)

    def restore(self) -> None:
        """Tell an engine that knows nothing all that is wished.

        Raises:
            WorkerLost: it is gone again.
        """
        if self.cached_bytes_limit is not None:
            keeping.set_limit(self._worker, self._namespace, self.cached_bytes_limit)
        wished = self._catalog.kept_specially()
        self.tell_priorities([one for one in wished if one.priority != USUAL_PRIORITY])
        pinned = [self.part(one) for one in wished if one.is_pinned]
        try:
            keeping.pin(self._worker, pinned, self._namespace)
        except PinBudgetExhausted as error:
            # the engine was started with less memory than before
            logger.warning("the pins of %r do not fit: %s", self._namespace, error)

    # -- the end

    def forget(self, segments: Sequence[RegisteredSegment]) -> set[str]:
        """Delete segments: texts, entries, and every chain that contains one; the ids that went."""
        if not segments:
            return set()
        parts = [self.part(one) for one in segments]
        self._worker.delete(parts, self._namespace)
        gone = self._catalog.delete_many([one.id for one in segments])
        self._drop_entries(parts)
        return gone

    def _drop_entries(self, parts: Sequence[PromptPart]) -> None:
        """Once more, now that nobody finds the texts: a request may have made an entry again."""
        self._worker.delete(parts, self._namespace)
        self._memo.forget([part.segment_id for part in parts if part.segment_id is not None])

    def sweep(self) -> int:
        """Remove what is over: segments past their time, and pins; how many segments went.

        A segment that a request still reads loses its text now, and its entry after that.
        """
        lapsed = self._catalog.lapsed_pins()
        if lapsed:
            self._tell_unpinned(lapsed)
        expired = self._catalog.expired()
        if not expired:
            return 0
        parts = [self.part(one) for one in expired]
        self._worker.delete(parts, self._namespace)
        gone = self._catalog.forget_expired([one.id for one in expired])
        self._drop_entries(parts)
        logger.info("expired segments=%d namespace=%r", gone, self._namespace)
        return gone


def find_all(catalog: SegmentCatalog, ids: Sequence[str]) -> list[RegisteredSegment]:
    """The segments of these ids, each once.

    Raises:
        SegmentNotFound: naming all that are not registered.
    """
    found = {id_: catalog.get(id_) for id_ in ids}
    missing = [id_ for id_, segment in found.items() if segment is None]
    if missing:
        named = ", ".join(missing[:20]) + (f" and {len(missing) - 20} more" if missing[20:] else "")
        raise SegmentNotFound(
            f"not registered: {named}", segment_ids=missing, num_missing=len(missing)
        )
    return [segment for segment in found.values() if segment is not None]
