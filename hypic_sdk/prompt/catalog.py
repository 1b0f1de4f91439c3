"""Registered segments: their texts, their token ids, what the caller said about them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol, final

from hypic_sdk.errors import ExternalIdConflict, QuotaExceeded, RequestError
from hypic_sdk.prompt.segment import SegmentId
from hypic_sdk.prompt.tokenizer import check_text, token_ids_of

MetadataValue = str | int | float | bool | None
Metadata = Mapping[str, MetadataValue]

NEVER = 0
"""A time to live that never ends."""

USUAL_PRIORITY = 50


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
    expires_at: int | None = None  # unix seconds; from then on nobody finds it
    priority: int = USUAL_PRIORITY  # 0 to 99: entries of lower ones are evicted first
    is_pinned: bool = False  # its entry is not evicted
    pin_expires_at: int | None = None

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the text."""
        return len(self.packed_ids) // 4

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids, unpacked."""
        return token_ids_of(self.packed_ids)

    @property
    def is_kept_specially(self) -> bool:
        """Whether an engine has to be told of it."""
        return self.is_pinned or self.priority != USUAL_PRIORITY

    def as_of(self, now_s: float) -> RegisteredSegment:
        """The segment without a pin whose time is over."""
        if self.pin_expires_at is None or self.pin_expires_at > now_s:
            return self
        return replace(self, is_pinned=False, pin_expires_at=None)


@dataclass(frozen=True, slots=True)
class NewSegment:
    """What a caller registers; none leaves what was said before."""

    text: str
    external_id: str | None = None
    title: str | None = None
    metadata: Metadata | None = None
    ttl_s: int | None = None  # from now on; `NEVER`: without an end
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class CatalogLimits:
    """How many texts, and how many bytes of text in all and in one."""

    num_segments: int = 100_000
    total_bytes: int = 1 << 30
    segment_bytes: int = 16 << 20

    def bytes_of(self, new: NewSegment) -> int:
        """Bytes of a text that may be registered.

        Raises:
            RequestError: empty, too long, or with a lone surrogate.
        """
        if not new.text:
            raise RequestError("a segment needs text")
        check_text(new.text, "a segment's text")
        num_bytes = len(new.text.encode())
        if num_bytes > self.segment_bytes:
            raise RequestError(
                f"a segment's text has {num_bytes} bytes, limit is {self.segment_bytes}",
                num_bytes=num_bytes,
                limit_bytes=self.segment_bytes,
            )
        return num_bytes

    def check_room(self, held: CatalogUsage, num_bytes: int) -> None:
        """Raises QuotaExceeded, if one more text of so many bytes is too much."""
        if held.num_segments >= self.num_segments:
            raise QuotaExceeded(
                f"{held.num_segments} segments are registered, no more may be: delete some",
                quota="num_segments",
                num_segments=held.num_segments,
                limit_segments=self.num_segments,
            )
        needed = held.num_bytes + num_bytes
        if needed > self.total_bytes:
            raise QuotaExceeded(
                f"registered texts would take {needed} bytes, limit is {self.total_bytes}: delete "
                "some",
                quota="text_bytes",
                needed_bytes=needed,
                limit_bytes=self.total_bytes,
            )


@dataclass(frozen=True, slots=True)
class CatalogUsage:
    """What is registered."""

    num_segments: int = 0
    num_bytes: int = 0  # of text


@dataclass(frozen=True, slots=True)
class CatalogPage:
    """Some of the registered segments, in the order of registration."""

    segments: tuple[RegisteredSegment, ...]
    has_more: bool


@final
class PastPlaces:
    """Where deleted segments stood in the order of registration: whoever pages goes on behind one.

    In memory only, so that nothing of a deleted text is kept; the oldest go first.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._numbers: OrderedDict[str, int] = OrderedDict()

    def note(self, id_: str, number: int) -> None:
        """It was deleted."""
        self._numbers[id_] = number
        if len(self._numbers) > self._limit:
            self._numbers.popitem(last=False)

    def forget(self, id_: str) -> None:
        """It was registered anew, and stands elsewhere."""
        self._numbers.pop(id_, None)

    def number(self, id_: str) -> int | None:
        """The place that it had; none: nobody knows."""
        return self._numbers.get(id_)


def says(metadata: Metadata, wanted: Metadata) -> bool:
    """Whether all that is wanted is said: names, and values of the same kind that are equal."""
    return all(name in metadata and _same(metadata[name], wanted[name]) for name in wanted)


def _same(one: MetadataValue, other: MetadataValue) -> bool:
    # 1 is 1.0, but true is not 1
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def check_external(
    external_id: str | None, id_: SegmentId, named: SegmentId | None, *, replace_external: bool
) -> None:
    """Raises ExternalIdConflict, if the external id names another segment and is not to move."""
    if external_id is None or replace_external or named in (None, id_):
        return
    raise ExternalIdConflict(
        f"external id {external_id!r} names {named}, whose text is another: `replace_external` "
        "moves it",
        external_id=external_id,
        segment_id=named,
    )


def ends_at(new: NewSegment, now_s: float, known: int | None) -> int | None:
    """When a segment is over by what is said about it now; whole seconds, the last not in full."""
    if new.ttl_s is None:
        return known
    return None if new.ttl_s == NEVER else int(now_s) + new.ttl_s


class SegmentCatalog(Protocol):
    """Where registered segments are kept; calls may come from several threads.

    A segment whose time is over is found by no call but `expired`, and counts for nothing.
    """

    def register(
        self, new: NewSegment, *, replace_external: bool = False
    ) -> tuple[RegisteredSegment, bool]:
        """Keep a text; again, it is the same segment.

        What is said anew about a known text (title, metadata, external id, time to live, priority)
        replaces what was said.

        Returns:
            The segment, and whether its text is new here.
        Raises:
            RequestError: empty, too long, a lone surrogate, no token.
            ExternalIdConflict: an external id that names another text (unless `replace_external`).
            QuotaExceeded: as many texts or bytes as there may be.
        """
        ...

    def get(self, id_: str) -> RegisteredSegment | None:
        """The segment of that id."""
        ...

    def find_external(self, external_id: str) -> RegisteredSegment | None:
        """The segment that a caller's own id names."""
        ...

    def page(
        self, *, after: str | None = None, limit: int = 100, says: Metadata | None = None
    ) -> CatalogPage:
        """Segments registered after that id, oldest first; those whose metadata say all of `says`.

        An id that was the last of a page names its place also when it is deleted meanwhile.

        Raises:
            RequestError: no such id.
        """
        ...

    def delete(self, id_: str) -> bool:
        """Forget a segment and its text; false if there was none."""
        ...

    def delete_many(self, ids: Iterable[str]) -> set[str]:
        """Forget segments and their texts; the ids of those that there were."""
        ...

    def set_pin(
        self, id_: str, *, is_pinned: bool, expires_at: int | None = None
    ) -> RegisteredSegment | None:
        """Note whether a segment's entry is to be kept, and until when; none: no such segment."""
        ...

    def usage(self) -> CatalogUsage:
        """How much is registered."""
        ...

    def expired(self) -> tuple[RegisteredSegment, ...]:
        """Segments whose time is over, and whose texts are still there."""
        ...

    def forget_expired(self, ids: Iterable[str]) -> int:
        """Drop their texts, unless they were registered anew meanwhile; how many went."""
        ...

    def lapsed_pins(self) -> tuple[RegisteredSegment, ...]:
        """Segments whose pin's time is over; told once, each is unpinned from now on."""
        ...

    def kept_specially(self) -> tuple[RegisteredSegment, ...]:
        """Segments that are pinned or of another priority than usual."""
        ...
