"""The latest requests of a tenant, without their texts; the totals of all since the start."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, final

from hypic_sdk.errors import RequestCancelled
from hypic_sdk.server.picture import picture
from hypic_sdk.service import GrowingReply, ModelFacts
from hypic_sdk.service.conversation import DOCUMENTS
from hypic_sdk.service.render import cache_report
from hypic_sdk.transport.messages import EngineReport
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.generate import GenerateRequest
from hypic_sdk.wire.parts import SegmentPart
from hypic_sdk.wire.recent import RecentRequest, RecentSegment, RecentTiming
from hypic_sdk.wire.report import SegmentUse

MAX_SEGMENTS = 256
"""Segments of one request that are remembered one by one."""

Endpoint = Literal["chat", "completions", "generate"]
Place = tuple[int, int]
"""(message, content part), or (`DOCUMENTS`, place in that list)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is remembered of a body."""

    endpoint: Endpoint
    stream: bool
    created_at: float  # unix seconds
    titles: Mapping[Place, str]


def asked_of(body: ChatRequest | CompletionRequest | GenerateRequest, created_at: float) -> Asked:
    """What is remembered of a body; the titles are the caller's own."""
    titles: dict[Place, str] = {}
    endpoint: Endpoint = "generate"
    if isinstance(body, ChatRequest):
        endpoint = "chat"
        for index, document in enumerate(body.documents):
            _note_title(titles, (DOCUMENTS, index), document.title)
        for index, message in enumerate(body.messages):
            _note_parts(titles, index, message.content)
    elif isinstance(body, CompletionRequest):
        endpoint = "completions"
        _note_parts(titles, 0, body.prompt)
    return Asked(endpoint, body.stream, created_at, titles)


def _note_parts(titles: dict[Place, str], message: int, content: Any) -> None:
    if isinstance(content, list):
        for index, part in enumerate(content):
            if isinstance(part, SegmentPart):
                _note_title(titles, (message, index), part.title)


def _note_title(titles: dict[Place, str], place: Place, title: str | None) -> None:
    if title is not None and len(titles) < MAX_SEGMENTS:
        titles[place] = title


@dataclass(frozen=True, slots=True)
class Totals:
    """Requests that are over, and the prompt tokens of those that were to reuse what there is."""

    num_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def with_one(self, report: EngineReport | None) -> Totals:
        """One request more; none: it was to reuse nothing, or did not get so far."""
        return Totals(
            self.num_requests + 1,
            self.prompt_tokens + (0 if report is None else report.prompt_tokens),
            self.cached_tokens + (0 if report is None else report.cached_tokens),
        )


@final
@dataclass(slots=True)
class RecentRequests:
    """One tenant's requests as they end; used on the event loop only."""

    facts: ModelFacts
    num_kept: int
    totals: Totals = field(default_factory=Totals)
    _kept: deque[RecentRequest] = field(init=False)

    def __post_init__(self) -> None:
        self._kept = deque(maxlen=self.num_kept)

    def newest(self, limit: int) -> list[RecentRequest]:
        """So many of the latest, newest first."""
        return list(islice(reversed(self._kept), limit))

    def note(
        self, asked: Asked, reply: GrowingReply, *, error_code: str | None, total_ms: float
    ) -> None:
        """A request is over, well or not.  `error_code`: how it failed, if it did."""
        report, reuse = reply.report, reply.prepared.message.reuse
        self.totals = self.totals.with_one(report if reuse else None)
        told: dict[str, Any] = {"timing_ms": RecentTiming(total=total_ms)}
        if report is not None:
            told = self._told(report, asked.titles, total_ms)
        self._kept.append(
            RecentRequest(
                id=reply.prepared.request_id,
                endpoint=asked.endpoint,
                stream=asked.stream,
                mode="pic" if reuse else "off",
                created_at=asked.created_at,
                status=_status(reply, error_code),
                error_code=error_code,
                finish_reason=reply.finish_reason,
                completion_tokens=reply.num_tokens,
                **told,
            )
        )

    def _told(
        self, report: EngineReport, titles: Mapping[Place, str], total_ms: float
    ) -> dict[str, Any]:
        """What a report says, its first segments one by one."""
        few = replace(report, segments=report.segments[:MAX_SEGMENTS])
        cost = cache_report(few, "segments")
        assert cost is not None, "a report of that level is told"
        return {
            "exactness": cost.exactness,
            "prompt_tokens": cost.prompt_tokens,
            "cached_tokens": cost.cached_tokens,
            "seam_tokens": cost.seam_tokens,
            "timing_ms": RecentTiming(**cost.timing_ms.model_dump(), total=total_ms),
            "num_segments": len(report.segments),
            "segments": tuple(_segment(one, titles) for one in cost.segments or ()),
            "picture": picture(report, few.segments, self._tail_tokens),
        }

    def _tail_tokens(self, num_tokens: int) -> int:
        return self.facts.reuse.seam_widths(num_tokens, self.facts.conv_width).tail_tokens


def _status(reply: GrowingReply, error_code: str | None) -> Literal["ok", "failed", "cancelled"]:
    if error_code not in (None, RequestCancelled.code):
        return "failed"
    is_whole = all(one.finish_reason is not None for one in reply.replies)
    return "ok" if is_whole and error_code is None else "cancelled"


def _segment(use: SegmentUse, titles: Mapping[Place, str]) -> RecentSegment:
    place = use.part or (DOCUMENTS, use.document or 0)
    return RecentSegment(**use.model_dump(), title=titles.get(place))


def named(requests: list[RecentRequest], titles: Mapping[str, str]) -> list[RecentRequest]:
    """The same requests; segments that came without a title have that of their id."""
    return [
        one.model_copy(
            update={
                "segments": tuple(
                    segment.model_copy(update={"title": titles.get(segment.segment_id)})
                    if segment.title is None
                    else segment
                    for segment in one.segments
                )
            }
        )
        for one in requests
    ]
