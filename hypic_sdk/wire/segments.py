"""Registered segments and warm jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, FiniteFloat, RootModel, Strict, model_validator

from hypic_sdk.wire import limits
from hypic_sdk.wire.parse import ReplyModel, StrictModel, WireModel
from hypic_sdk.wire.parts import FullText, Name, SegmentIdText, has_utf8

MetadataValue = (
    Annotated[str, AfterValidator(has_utf8)]
    | Annotated[int, Field(ge=-(2**63), lt=2**63)]
    | FiniteFloat
    | bool
    | None
)


def _within_cap(metadata: dict[str, MetadataValue]) -> dict[str, MetadataValue]:
    size = len(json.dumps(metadata, ensure_ascii=False))
    if size > limits.MAX_METADATA_CHARS:
        raise ValueError(
            f"metadata have {size} characters of JSON, limit is {limits.MAX_METADATA_CHARS}"
        )
    return metadata


Metadata = Annotated[
    dict[Name, MetadataValue], Field(max_length=limits.MAX_METADATA), AfterValidator(_within_cap)
]

_UNIT_S: Mapping[str, int] = MappingProxyType({"s": 1, "m": 60, "h": 3600, "d": 86_400})


def _seconds(duration: int | str) -> int:
    seconds = duration
    if isinstance(seconds, str):
        seconds = int(seconds[:-1]) * _UNIT_S[seconds[-1]]
    if not 1 <= seconds <= limits.MAX_TTL_S:
        raise ValueError(f"a time to live is 1 to {limits.MAX_TTL_S} seconds, not {seconds}")
    return seconds


Duration = Annotated[
    Annotated[int, Strict()] | Annotated[str, Field(pattern=r"^[0-9]{1,10}[smhd]$")],
    AfterValidator(_seconds),
]
"""Seconds, or a text like `30m`, `12h` or `7d`."""


class Retention(WireModel):
    """How early a segment's entry goes when room is needed: those of lower priority first."""

    priority: int = Field(default=50, ge=0, le=99)


class PinTerm(WireModel):
    """A pin: the segment's entry is not evicted; without `ttl` until it is unpinned."""

    ttl: Duration | None = None


Pin = PinTerm | Annotated[bool, Strict()]
"""`true` is a pin without an end, as `{}` is; `false` unpins."""


class NewSegmentItem(WireModel):
    """One text to register.

    `ttl`: how long from now; then its text, its entry and every chain that contains it go.
    `pin`: one that does not fit is told as a failure, its text is registered all the same.
    """

    text: FullText
    external_id: Name | None = None
    title: Name | None = None
    metadata: Metadata | None = None
    ttl: Duration | Literal["never"] | None = None
    retention: Retention | None = None
    pin: Pin | None = None


class RegisterRequest(WireModel):
    """`POST /v1/segments`."""

    segments: list[NewSegmentItem] = Field(min_length=1, max_length=limits.MAX_SEGMENTS_PER_CALL)
    replace_external: bool = False
    warm: Literal["none", "async", "wait"] = "none"


class SegmentIds(WireModel):
    """Some segments, by their ids: to look up."""

    segment_ids: list[SegmentIdText] = Field(min_length=1, max_length=limits.MAX_IDS_PER_CALL)


class WarmCreate(SegmentIds):
    """`POST /v1/segments/warm`.

    `background` yields to requests: it is done when nobody else wants the engine, and a little
    beside them.  `pin` keeps the entries once they are there.
    """

    priority: Literal["background", "normal"] = "normal"
    pin: Pin | None = None


class SegmentQuery(WireModel):
    """The query of a list: segments whose metadata say all of this."""

    metadata: Metadata


class SegmentSelection(WireModel):
    """Some segments, in one of three ways: to delete.

    `metadata`: all that say this, names and values.
    """

    segment_ids: list[SegmentIdText] | None = Field(
        default=None, min_length=1, max_length=limits.MAX_IDS_PER_CALL
    )
    external_ids: list[Name] | None = Field(
        default=None, min_length=1, max_length=limits.MAX_IDS_PER_CALL
    )
    metadata: Metadata | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        given = (self.segment_ids, self.external_ids, self.metadata)
        if sum(one is not None for one in given) != 1:
            raise ValueError("give one of segment_ids, external_ids and metadata")
        return self


class SegmentObject(ReplyModel):
    """A registered segment.  `created` is set in the reply to a registration."""

    id: str
    object: Literal["segment"] = "segment"
    external_id: str | None
    title: str | None
    metadata: dict[str, MetadataValue]
    tokens: int
    created_at: int
    expires_at: int | None = None
    retention: Retention = Retention()
    pinned: bool = False
    pin_expires_at: int | None = None
    created: bool | None = None


class SegmentList(ReplyModel):
    """A page of segments, in the order of registration."""

    object: Literal["list"] = "list"
    data: list[SegmentObject]
    has_more: bool
    last_id: str | None


class SegmentUpdate(StrictModel):
    """`PATCH /v1/segments/{id}`: what is left out stays as it is; a text can not be changed."""

    external_id: Name | None = None
    title: Name | None = None
    metadata: Metadata | None = None
    ttl: Duration | Literal["never"] | None = None
    retention: Retention | None = None
    pin: Pin | None = None
    replace_external: bool = False


class SegmentState(ReplyModel):
    """What there is of a segment: whether it is registered, and its entry in the public pool."""

    state: Literal["unknown", "registered", "warming", "warm", "evicted", "not_kept"]
    tokens: int | None = None
    tier: Literal["gpu", "host", "disk"] | None = None  # where a warm one lies
    bytes: int | None = None  # that its entry takes, or would take
    pinned: bool = False


class SegmentStates(RootModel[dict[str, SegmentState]]):
    """The answer to a lookup: one state for each id."""


class DeletedSegment(ReplyModel):
    """The answer to a deletion.  `id` is none for an external id that names nothing."""

    id: str | None
    external_id: str | None = None
    object: Literal["segment.deleted"] = "segment.deleted"
    deleted: bool


class DeletedSegments(ReplyModel):
    """The answer to the deletion of several; those that were unknown are not `deleted`."""

    object: Literal["list"] = "list"
    data: list[DeletedSegment]


class WarmCounts(ReplyModel):
    """Segments of a warm job by what became of them; `not_kept` are too short to be kept."""

    total: int
    done: int = 0
    already_warm: int = 0
    not_kept: int = 0
    failed: int = 0
    cancelled: int = 0


class WarmTokens(ReplyModel):
    """Tokens of a warm job's segments."""

    total: int
    computed: int = 0
    reused: int = 0


class WarmFailure(ReplyModel):
    """Why one segment of a warm job (or, without an id, the job) failed."""

    segment_id: str | None
    code: str
    message: str


class WarmJobObject(ReplyModel):
    """A warm job as it stands."""

    id: str
    object: Literal["warm_job"] = "warm_job"
    status: Literal["running", "succeeded", "failed", "cancelled"]
    priority: Literal["background", "normal"] = "normal"
    created_at: int
    counts: WarmCounts
    tokens: WarmTokens
    cold_ms: float = 0.0
    eta_s: float | None = None  # of a running one, once it has done something
    errors: tuple[WarmFailure, ...] = ()


class WarmJobList(ReplyModel):
    """Warm jobs that are readable, newest first."""

    object: Literal["list"] = "list"
    data: list[WarmJobObject]


class RegisterFailure(ReplyModel):
    """Why one text of a registration was not taken: an error's payload, and its place."""

    object: Literal["error"] = "error"
    index: int
    code: str
    message: str
    details: Mapping[str, Any]


class RegisterReply(ReplyModel):
    """The answer to a registration.

    `data` holds the segments in order, without those that failed; `errors` tells of these.
    """

    object: Literal["list"] = "list"
    data: list[SegmentObject]
    errors: tuple[RegisterFailure, ...] = ()
    job: WarmJobObject | None = None
