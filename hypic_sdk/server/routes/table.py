"""Every endpoint on one line: what `app.py` routes and `openapi.py` writes down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from pydantic import BaseModel

from hypic_sdk.server.routes import (
    cache,
    generation,
    health,
    models,
    prompts,
    recent,
    segments,
    ui,
    warm,
)
from hypic_sdk.wire.cache_stats import CacheStats, ClearedCache
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.explain import Explanation
from hypic_sdk.wire.generate import GenerateReply, GenerateRequest
from hypic_sdk.wire.limits import MAX_PAGE
from hypic_sdk.wire.models import ModelList, ModelObject, TokenizeReply
from hypic_sdk.wire.recent import CacheHistory, RecentRequestList
from hypic_sdk.wire.replies import (
    CancelledRequest,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
)
from hypic_sdk.wire.segments import (
    DeletedSegment,
    DeletedSegments,
    RegisterReply,
    RegisterRequest,
    SegmentIds,
    SegmentList,
    SegmentObject,
    SegmentSelection,
    SegmentStates,
    SegmentUpdate,
    WarmCreate,
    WarmJobList,
    WarmJobObject,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Model = type[BaseModel]


@dataclass(frozen=True, slots=True)
class QueryField:
    """One field of a query; all may be left out."""

    name: str
    description: str
    type: str = "string"


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint; `body` and `reply` are its models where it has one of its own.

    `event`: what each says where it may answer with server-sent events.
    """

    method: str
    path: str
    handler: Handler
    body: Model | None = None
    reply: Model | None = None
    status: int = 200
    partly_status: int | None = None  # of the same reply, where a part of the call failed
    event: Model | None = None
    query: tuple[QueryField, ...] = ()


_LIST_QUERY = (
    QueryField("after", "the id of the segment to go on behind"),
    QueryField("limit", f"1 to {MAX_PAGE}, usually 100", "integer"),
    QueryField("metadata", "a JSON object: only segments whose metadata say all of it"),
    QueryField("external_id", "only the segment of that name; the others are left out of account"),
)

_RECENT_QUERY = (QueryField("limit", "how many, usually 20; the server keeps so many", "integer"),)

ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/chat/completions",
        generation.chat,
        ChatRequest,
        ChatCompletion,
        event=ChatCompletionChunk,
    ),
    Route(
        "POST",
        "/v1/completions",
        generation.completions,
        CompletionRequest,
        Completion,
        event=Completion,
    ),
    Route(
        "POST",
        "/generate",
        generation.generate,
        GenerateRequest,
        GenerateReply,
        event=GenerateReply,
    ),
    Route("DELETE", "/v1/requests/{id}", generation.cancel, None, CancelledRequest),
    Route(
        "GET", "/v1/requests/recent", recent.requests, None, RecentRequestList, query=_RECENT_QUERY
    ),
    Route("POST", "/v1/prompts/explain", prompts.explain, ChatRequest, Explanation),
    Route("POST", "/v1/tokenize", prompts.tokenize, ChatRequest, TokenizeReply),
    Route("GET", "/v1/models", models.list_, None, ModelList),
    Route("GET", "/v1/models/{id}", models.retrieve, None, ModelObject),
    Route("POST", "/v1/segments/warm", warm.create, WarmCreate, WarmJobObject, 202),
    Route("GET", "/v1/segments/warm", warm.list_, None, WarmJobList),
    Route("GET", "/v1/segments/warm/{id}", warm.retrieve, None, WarmJobObject),
    Route("GET", "/v1/segments/warm/{id}/events", warm.events, event=WarmJobObject),
    Route("POST", "/v1/segments/warm/{id}/cancel", warm.cancel, None, WarmJobObject),
    Route("POST", "/v1/segments/lookup", segments.lookup, SegmentIds, SegmentStates),
    Route("POST", "/v1/segments/delete", segments.delete_many, SegmentSelection, DeletedSegments),
    Route(
        "POST",
        "/v1/segments",
        segments.create,
        RegisterRequest,
        RegisterReply,
        partly_status=207,
    ),
    Route("GET", "/v1/segments", segments.list_, None, SegmentList, query=_LIST_QUERY),
    Route("GET", "/v1/segments/{id}", segments.retrieve, None, SegmentObject),
    Route("PATCH", "/v1/segments/{id}", segments.update, SegmentUpdate, SegmentObject),
    Route("DELETE", "/v1/segments/{id}", segments.delete, None, DeletedSegment),
    Route("GET", "/v1/cache/stats", cache.stats, None, CacheStats),
    Route("GET", "/v1/cache/history", recent.history, None, CacheHistory),
    Route("POST", "/v1/cache/clear", cache.clear, None, ClearedCache),
    Route("GET", "/health", health.ready),
    Route("GET", "/health/live", health.live),
    Route("GET", "/health/ready", health.ready),
    Route("GET", "/version", health.version),
    Route("GET", "/metrics", health.metrics),
    Route("GET", "/ui", ui.page),
    Route("GET", "/ui/{name}", ui.file),
)
