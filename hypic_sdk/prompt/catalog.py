"""Registered segments: their texts, their token ids, what the caller said about them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol, final

from hypic_sdk.errors import PoolExhausted, RequestError
from hypic_sdk.prompt.segment import SegmentId, segment_id, token_bytes
from hypic_sdk.prompt.tokenizer import check_text, token_ids_of

Metadata = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class RegisteredSegment:
    """A text that can be named by its id.

    The token ids are those of one tokenizer, named by `tokenizer_fingerprint`.
    """

    id: SegmentId
    text: str
    packed_ids: bytes  # little-endian int32
    tokenizer_fingerprint: str
    created_at: int  # unix seconds
    external_id: str | None = None
    title: str | None = None
    metadata: Metadata = field(default_factory=lambda: MappingProxyType({}))

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the text."""
        return len(self.packed_ids) // 4

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids, unpacked."""
        return token_ids_of(self.packed_ids)


@dataclass(frozen=True, slots=True)
class NewSegment:
    """What a caller registers."""

    text: str
    external_id: str | None = None
    title: str | None = None
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class CatalogLimits:
    """How many texts, and how many bytes of text in all and in one."""

    num_segments: int = 100_000
    total_bytes: int = 1 << 30
    segment_bytes: int = 16 << 20


@dataclass(frozen=True, slots=True)
class CatalogPage:
    """Some of the registered segments, in the order of registration."""

    segments: tuple[RegisteredSegment, ...]
    has_more: bool


class SegmentCatalog(Protocol):
    """Where registered segments are kept; calls may come from several threads."""

    def register(
        self, new: NewSegment, *, replace_external: bool = False
    ) -> tuple[RegisteredSegment, bool]:
        """Keep a text; again, it is the same segment.

        What is said anew about a known text (title, metadata, external id) replaces what was said.

        Returns:
            The segment, and whether its text is new here.
        Raises:
            RequestError: empty, too long, a lone surrogate, no token, or an external id that names
                another text (unless `replace_external`).
            PoolExhausted: as many texts or bytes as there may be.
        """
        ...

    def get(self, id_: str) -> RegisteredSegment | None:
        """The segment of that id."""
        ...

    def find_external(self, external_id: str) -> RegisteredSegment | None:
        """The segment that a caller's own id names."""
        ...

    def page(self, *, after: str | None = None, limit: int = 100) -> CatalogPage:
        """Segments registered after that id, oldest first.

        Raises:
            RequestError: no such id.
        """
        ...

    def delete(self, id_: str) -> bool:
        """Forget a segment and its text; false if there was none."""
        ...


@final
class MemoryCatalog:
    """Registered segments of this process, gone with it."""

    def __init__(
        self,
        encode: Callable[[str], tuple[int, ...]],
        tokenizer_fingerprint: str,
        *,
        limits: CatalogLimits = CatalogLimits(),
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`encode`: a caller's text to ids, by the tokenizer of that fingerprint."""
        self._encode = encode
        self._fingerprint = tokenizer_fingerprint
        self._limits = limits
        self._now_s = now_s
        self._lock = threading.Lock()
        self._segments: dict[str, RegisteredSegment] = {}  # in order of registration
        self._by_external: dict[str, SegmentId] = {}
        self._num_bytes = 0

    def register(
        self, new: NewSegment, *, replace_external: bool = False
    ) -> tuple[RegisteredSegment, bool]:
        """See `SegmentCatalog.register`."""
        num_bytes = self._check_new(new)
        id_ = segment_id(new.text)
        with self._lock:
            known = self._segments.get(id_)
        # tokenised outside the lock; a race only means that the same ids are made twice
        packed = token_bytes(self._encode(new.text)) if known is None else known.packed_ids
        if not packed:
            raise RequestError("a segment needs at least one token")
        with self._lock:
            known = self._segments.get(id_)
            self._check_external(new.external_id, id_, replace_external)
            if known is None:
                self._check_room(num_bytes)
                known = RegisteredSegment(
                    id_, new.text, packed, self._fingerprint, int(self._now_s())
                )
                self._num_bytes += num_bytes
                created = True
            else:
                created = False
            segment = _described(known, new)
            self._segments[id_] = segment
            self._name(segment, known.external_id)
        return segment, created

    def get(self, id_: str) -> RegisteredSegment | None:
        """See `SegmentCatalog.get`."""
        with self._lock:
            return self._segments.get(id_)

    def find_external(self, external_id: str) -> RegisteredSegment | None:
        """See `SegmentCatalog.find_external`."""
        with self._lock:
            return self._segments.get(self._by_external.get(external_id, ""))

    def page(self, *, after: str | None = None, limit: int = 100) -> CatalogPage:
        """See `SegmentCatalog.page`."""
        with self._lock:
            if after is not None and after not in self._segments:
                raise RequestError(f"no segment {after} to list after", after=after)
            segments: Iterable[RegisteredSegment] = list(self._segments.values())
        rest: Sequence[RegisteredSegment] = list(segments)
        if after is not None:
            ids = [segment.id for segment in rest]
            rest = rest[ids.index(SegmentId(after)) + 1 :]
        return CatalogPage(tuple(rest[:limit]), len(rest) > limit)

    def delete(self, id_: str) -> bool:
        """See `SegmentCatalog.delete`."""
        with self._lock:
            segment = self._segments.pop(id_, None)
            if segment is None:
                return False
            self._num_bytes -= len(segment.text.encode())
            if segment.external_id is not None:
                del self._by_external[segment.external_id]
            return True

    def _check_new(self, new: NewSegment) -> int:
        if not new.text:
            raise RequestError("a segment needs text")
        check_text(new.text, "a segment's text")
        num_bytes = len(new.text.encode())
        if num_bytes > self._limits.segment_bytes:
            raise RequestError(
                f"a segment's text has {num_bytes} bytes, limit is {self._limits.segment_bytes}",
                num_bytes=num_bytes,
                limit_bytes=self._limits.segment_bytes,
            )
        return num_bytes

    def _check_room(self, num_bytes: int) -> None:
        if len(self._segments) >= self._limits.num_segments:
            raise PoolExhausted(
                f"{self._limits.num_segments} segments are registered, no more may be",
                limit_segments=self._limits.num_segments,
            )
        if self._num_bytes + num_bytes > self._limits.total_bytes:
            raise PoolExhausted(
                f"registered texts would take {self._num_bytes + num_bytes} bytes, limit is "
                f"{self._limits.total_bytes}",
                needed_bytes=self._num_bytes + num_bytes,
                limit_bytes=self._limits.total_bytes,
            )

    def _check_external(self, external_id: str | None, id_: SegmentId, replace_: bool) -> None:
        if external_id is None or replace_:
            return
        named = self._by_external.get(external_id, id_)
        if named != id_:
            raise RequestError(
                f"external id {external_id!r} names {named}, whose text is another",
                external_id=external_id,
                segment_id=named,
            )

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


def _described(segment: RegisteredSegment, new: NewSegment) -> RegisteredSegment:
    """The segment with what was said anew about it."""
    return replace(
        segment,
        external_id=segment.external_id if new.external_id is None else new.external_id,
        title=segment.title if new.title is None else new.title,
        metadata=segment.metadata if new.metadata is None else MappingProxyType(dict(new.metadata)),
    )
