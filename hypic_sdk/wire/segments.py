"""Registered segments and warm jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, FiniteFloat

from hypic_sdk.wire import limits
from hypic_sdk.wire.parse import ReplyModel, WireModel
from hypic_sdk.wire.parts import FullText, Name, SegmentIdText, has_utf8

MetadataValue = Annotated[str, AfterValidator(has_utf8)] | int | FiniteFloat | bool | None
Metadata = Annotated[dict[Name, MetadataValue], Field(max_length=limits.MAX_METADATA)]


class NewSegmentItem(WireModel):
    """One text to register."""

    text: FullText
    external_id: Name | None = None
    title: Name | None = None
    metadata: Metadata | None = None


class RegisterRequest(WireModel):
    """`POST /v1/segments`."""

    segments: list[NewSegmentItem] = Field(min_length=1, max_length=limits.MAX_SEGMENTS_PER_CALL)
    replace_external: bool = False
    warm: Literal["none", "async", "wait"] = "none"


class SegmentIds(WireModel):
    """Some segments, by their ids: to look up, to warm, to delete."""

    segment_ids: list[SegmentIdText] = Field(min_length=1, max_length=limits.MAX_IDS_PER_CALL)


class SegmentObject(ReplyModel):
    """A registered segment.  `created` is set in the reply to a registration."""

    id: str
    object: Literal["segment"] = "segment"
    external_id: str | None
    title: str | None
    metadata: dict[str, MetadataValue]
    tokens: int
    created_at: int
    created: bool | None = None


class SegmentList(ReplyModel):
    """A page of segments, in the order of registration."""

    object: Literal["list"] = "list"
    data: list[SegmentObject]
    has_more: bool
    last_id: str | None


class SegmentUpdate(WireModel):
    """`PATCH /v1/segments/{id}`: what is left out stays as it is."""

    external_id: Name | None = None
    title: Name | None = None
    metadata: Metadata | None = None
    replace_external: bool = False


class SegmentState(ReplyModel):
    """Whether a segment is registered, and whether it is in the public pool now."""

    state: Literal["unknown", "registered", "warm"]
    tokens: int | None = None


class DeletedSegment(ReplyModel):
    """The answer to a deletion."""

    id: str
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
