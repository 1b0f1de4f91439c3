"""`GET /v1/requests/recent` and `GET /v1/cache/history`: what happened lately."""

from __future__ import annotations

from typing import Literal

from hypic_sdk.wire.cache_stats import PoolBytes
from hypic_sdk.wire.parse import ReplyModel
from hypic_sdk.wire.report import SegmentUse


class Stretch(ReplyModel):
    """Some tokens of a prompt behind each other that had one fate.

    `kind`: "reused" was taken from an entry or a chain, "seam" computed again at a segment's edge,
    "computed" went through the model.  "untold": behind the last segment that is remembered.
    `segment` is a place in the request's `segments`.
    """

    kind: Literal["reused", "seam", "computed", "untold"]
    start: int
    tokens: int
    segment: int | None = None


class RecentSegment(SegmentUse):
    """What became of one segment, and how its owner calls it."""

    title: str | None = None


class RecentTiming(ReplyModel):
    """Milliseconds: `total` from the hand-over to the engine to the end, others as in a report."""

    queue: float | None = None  # none: the prompt was not processed to its end
    cold: float | None = None
    ttft: float | None = None
    total: float


class RecentRequest(ReplyModel):
    """One request that is over, without its texts.

    `status`: "cancelled" is one that its caller ended or went away from.  Counts of tokens
    are those of a cache report, zero where the prompt was not processed to its end.  `segments` are
    the first of `num_segments`; `picture` is the prompt from its first token to its last.
    """

    object: Literal["request.recent"] = "request.recent"
    id: str
    endpoint: Literal["chat", "completions", "generate"]
    stream: bool
    mode: Literal["pic", "off"]
    created_at: float  # unix seconds
    status: Literal["ok", "failed", "cancelled"]
    error_code: str | None = None
    finish_reason: str | None = None
    exactness: Literal["exact", "composed"] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seam_tokens: int = 0
    completion_tokens: int = 0
    timing_ms: RecentTiming
    num_segments: int = 0
    segments: tuple[RecentSegment, ...] = ()
    picture: tuple[Stretch, ...] = ()


class RecentRequestList(ReplyModel):
    """The caller's latest requests, newest first."""

    object: Literal["list"] = "list"
    data: list[RecentRequest]


class CacheSample(ReplyModel):
    """The books of the store at one moment, and the caller's requests until then.

    The last three count from the server's start, so differences of two samples are what happened
    between them: `cached_tokens` of `prompt_tokens` is the hit rate.  Requests with `mode` "off"
    are among `num_requests` only.
    """

    at: float  # unix seconds
    state_rows: PoolBytes
    transition_rows: PoolBytes
    kv_slots: PoolBytes
    num_segments: int
    num_chains: int
    num_evicted: int
    num_requests: int
    prompt_tokens: int
    cached_tokens: int


class CacheHistory(ReplyModel):
    """Samples, oldest first; there are none of a time at which the engine was not there."""

    object: Literal["cache.history"] = "cache.history"
    interval_s: float
    data: list[CacheSample]
