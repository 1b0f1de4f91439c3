"""What a reply tells about tokens and the cache; a number that is zero is written."""

from __future__ import annotations

from typing import Literal

from hypic_sdk.wire.parse import ReplyModel


class PromptTokensDetails(ReplyModel):
    """`cached_tokens` are the sum of the two kinds below: prompt tokens that were not computed."""

    cached_tokens: int = 0
    prefix_cached_tokens: int = 0  # covered by a chain entry
    segment_cached_tokens: int = 0  # interiors of segments that were hits
    seam_tokens: int = 0  # recomputed in place at the edges of segments
    cache_write_tokens: int = 0  # of segments computed by this request and kept


class Usage(ReplyModel):
    """Tokens of one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()


class SegmentUse(ReplyModel):
    """What became of one segment of a request.

    `part` is (message, content part) as the caller wrote them; of a top-level document it is none
    and `document` is its place in that list.
    """

    segment_id: str
    part: tuple[int, int] | None = None
    document: int | None = None
    status: Literal["hit", "prefix", "cold", "live", "trailing"]
    miss_reason: str | None = None
    tier: str | None = None
    start: int  # global position of its first token
    tokens: int
    reused_tokens: int
    seam_tokens: int
    cold_ms: float


class Timing(ReplyModel):
    """Milliseconds from the arrival at the engine."""

    queue: float
    cold: float
    ttft: float


class CacheReport(ReplyModel):
    """What one request's prompt cost.

    `exactness`: "exact" is equal to a full recompute by construction; "composed" has a cached
    interior after other tokens.  `live_tokens` went through the model, seams among them.
    `degraded`: "auto_segment_capped" if a text was too long to look for segments in it,
    "reuse_switched_off" if live checks had switched reuse off.
    """

    exactness: Literal["exact", "composed"]
    prompt_tokens: int
    cached_tokens: int
    prefix_tokens: int
    segment_tokens: int
    live_tokens: int
    seam_tokens: int
    cold_tokens: int
    segments: tuple[SegmentUse, ...] | None  # none: the request asked for a summary only
    degraded: str | None = None  # none: everything asked for was done
    timing_ms: Timing
