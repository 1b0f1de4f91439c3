"""Registered segments of this process."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import final

from hypic_sdk.errors import RequestError
from hypic_sdk.prompt.catalog import (
    CatalogLimits,
    CatalogPage,
    CatalogUsage,
    Metadata,
    NewSegment,
    PastPlaces,
    RegisteredSegment,
    check_external,
    ends_at,
    says,
)
from hypic_sdk.prompt.segment import SegmentId, segment_id, token_bytes


@final
class MemoryCatalog:
    """Registered segments of this process, gone with it."""

    def __init__(
        self,
        encode: Callable[[str], tuple[int, ...]],
        tokenizer_fingerprint: str,
        *,
        limits: CatalogLimits | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`encode`: a caller's text to ids, by the tokenizer of that fingerprint."""
        self._encode = encode
        self._fingerprint = tokenizer_fingerprint
        self._limits = limits or CatalogLimits()
        self._now_s = now_s
        self._lock = threading.Lock()
        self._segments: dict[str, RegisteredSegment] = {}  # in order of registration
        self._gone: dict[str, RegisteredSegment] = {}  # whose time is over
        self._ends: list[tuple[int, str]] = []  # a heap of times at which one may be over
        self._numbers: dict[str, int] = {}  # order of registration, also of those that are gone
        self._next_number = itertools.count()
        self._past = PastPlaces()
        self._by_external: dict[str, SegmentId] = {}
        self._num_bytes = 0

    def register(
        self, new: NewSegment, *, replace_external: bool = False
    ) -> tuple[RegisteredSegment, bool]:
        """See `SegmentCatalog.register`."""
        num_bytes = self._limits.bytes_of(new)
        id_ = segment_id(new.text)
        known = self.get(id_)
        # tokenised outside the lock; a race only means that the same ids are made twice
        packed = token_bytes(self._encode(new.text)) if known is None else known.packed_ids
        if not packed:
            raise RequestError("a segment needs at least one token")
        with self._lock:
            now_s = self._retire()
            known = self._segments.get(id_)
            named = self._by_external.get(new.external_id or "")
            check_external(new.external_id, id_, named, replace_external=replace_external)
            created = known is None
            if known is None:
                held = CatalogUsage(len(self._segments), self._num_bytes)
                self._limits.check_room(held, num_bytes)
                known = RegisteredSegment(id_, new.text, packed, self._fingerprint, int(now_s))
                self._num_bytes += num_bytes
                self._gone.pop(id_, None)
                self._numbers[id_] = next(self._next_number)
                self._past.forget(id_)
            segment = _described(known, new, now_s)
            self._segments[id_] = segment
            self._name(segment, known.external_id)
            if segment.expires_at is not None:
                heapq.heappush(self._ends, (segment.expires_at, id_))
        return segment, created

    def _retire(self) -> float:
        """Set aside what is over by now, which is given back; to be called under the lock."""
        now_s = self._now_s()
        while self._ends and self._ends[0][0] <= now_s:
            ends_at, id_ = heapq.heappop(self._ends)
            segment = self._segments.get(id_)
            if segment is not None and segment.expires_at == ends_at:
                self._drop(id_)
                self._gone[id_] = segment
        return now_s

    def _drop(self, id_: str) -> None:
        segment = self._segments.pop(id_)
        self._num_bytes -= len(segment.text.encode())
        if segment.external_id is not None:
            del self._by_external[segment.external_id]

    def get(self, id_: str) -> RegisteredSegment | None:
        """See `SegmentCatalog.get`."""
        with self._lock:
            now_s = self._retire()
            segment = self._segments.get(id_)
        return None if segment is None else segment.as_of(now_s)

    def find_external(self, external_id: str) -> RegisteredSegment | None:
        """See `SegmentCatalog.find_external`."""
        with self._lock:
            id_ = self._by_external.get(external_id, "")
        return self.get(id_)

    def page(
        self, *, after: str | None = None, limit: int = 100, says: Metadata | None = None
    ) -> CatalogPage:
        """See `SegmentCatalog.page`."""
        with self._lock:
            now_s = self._retire()
            number = -1 if after is None else self._numbers.get(after, self._past.number(after))
            if number is None:
                raise RequestError(f"no segment {after} to list after", after=after)
            rest = [one for one in self._segments.values() if self._numbers[one.id] > number]
        wanted = [one.as_of(now_s) for one in rest if _says(one, says)]
        return CatalogPage(tuple(wanted[:limit]), len(wanted) > limit)

    def delete(self, id_: str) -> bool:
        """See `SegmentCatalog.delete`."""
        with self._lock:
            self._retire()
            if id_ not in self._segments:
                return False
            self._drop(id_)
            self._past.note(id_, self._numbers.pop(id_))
            return True

    def delete_many(self, ids: Iterable[str]) -> set[str]:
        """See `SegmentCatalog.delete_many`."""
        return {id_ for id_ in ids if self.delete(id_)}

    def set_pin(
        self, id_: str, *, is_pinned: bool, expires_at: int | None = None
    ) -> RegisteredSegment | None:
        """See `SegmentCatalog.set_pin`."""
        with self._lock:
            self._retire()
            segment = self._segments.get(id_)
            if segment is None:
                return None
            pinned = replace(segment, is_pinned=is_pinned, pin_expires_at=expires_at)
            self._segments[id_] = pinned
            return pinned

    def usage(self) -> CatalogUsage:
        """See `SegmentCatalog.usage`."""
        with self._lock:
            self._retire()
            return CatalogUsage(len(self._segments), self._num_bytes)

    def expired(self) -> tuple[RegisteredSegment, ...]:
        """See `SegmentCatalog.expired`."""
        with self._lock:
            self._retire()
            return tuple(self._gone.values())

    def forget_expired(self, ids: Iterable[str]) -> int:
        """See `SegmentCatalog.forget_expired`."""
        with self._lock:
            self._retire()
            gone = [id_ for id_ in ids if self._gone.pop(id_, None) is not None]
            for id_ in gone:
                self._past.note(id_, self._numbers.pop(id_))
            return len(gone)

    def lapsed_pins(self) -> tuple[RegisteredSegment, ...]:
        """See `SegmentCatalog.lapsed_pins`."""
        with self._lock:
            now_s = self._retire()
            held = [one for one in self._segments.values() if one.is_pinned]
            lapsed = [one.as_of(now_s) for one in held if not one.as_of(now_s).is_pinned]
            self._segments.update({one.id: one for one in lapsed})
        return tuple(lapsed)

    def kept_specially(self) -> tuple[RegisteredSegment, ...]:
        """See `SegmentCatalog.kept_specially`."""
        with self._lock:
            now_s = self._retire()
            found = [one.as_of(now_s) for one in self._segments.values()]
        return tuple(one for one in found if one.is_kept_specially)

    def _name(self, segment: RegisteredSegment, old_external_id: str | None) -> None:
        """Point the external id at this segment, and at no other."""
        if old_external_id is not None and old_external_id != segment.external_id:
            del self._by_external[old_external_id]
        if segment.external_id is None:
            return
        other = self._by_external.get(segment.external_id)
        if other is not None and other != segment.id:
            self._segments[other] = replace(self._segments[other], external_id=None)
        self._by_external[segment.external_id] = segment.id


def _says(segment: RegisteredSegment, wanted: Metadata | None) -> bool:
    return wanted is None or says(segment.metadata, wanted)


def _described(segment: RegisteredSegment, new: NewSegment, now_s: float) -> RegisteredSegment:
    """The segment with what was said anew about it."""
    return replace(
        segment,
        external_id=segment.external_id if new.external_id is None else new.external_id,
        title=segment.title if new.title is None else new.title,
        metadata=segment.metadata if new.metadata is None else MappingProxyType(dict(new.metadata)),
        expires_at=ends_at(new, now_s, segment.expires_at),
        priority=segment.priority if new.priority is None else new.priority,
    )
