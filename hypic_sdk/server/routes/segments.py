"""Registered segments: create, read, update, delete, look up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypic_sdk.server.bodies import parsed, read_body
from hypic_sdk.server.query import page_query, said_query
from hypic_sdk.server.replies import reply
from hypic_sdk.server.routes.warm import begin_warm
from hypic_sdk.server.site import Desk, desk_of, site_of
from hypic_sdk.server.warm_board import ended
from hypic_sdk.service.segment_service import SegmentService
from hypic_sdk.wire.segments import (
    RegisterReply,
    RegisterRequest,
    SegmentIds,
    SegmentList,
    SegmentObject,
    SegmentSelection,
    SegmentStates,
    SegmentUpdate,
)

if TYPE_CHECKING:
    from aiohttp import web


async def create(request: web.Request) -> web.Response:
    """`POST /v1/segments`: 207 if some texts were not taken."""
    site, desk = site_of(request), await desk_of(request)
    raw = await read_body(request)
    body, registered = await site.prepare.run(_register, desk.service.segments, raw)
    if registered.data and body.warm != "none":
        registered = await _warm(request, desk, registered, wait=body.warm == "wait")
    return reply(registered, status=207 if registered.errors else 200)


def _register(service: SegmentService, raw: bytes) -> tuple[RegisterRequest, RegisterReply]:
    body = parsed(raw, RegisterRequest)
    return body, service.register_each(body)


async def _warm(
    request: web.Request, desk: Desk, registered: RegisterReply, *, wait: bool
) -> RegisterReply:
    ids = SegmentIds(segment_ids=[segment.id for segment in registered.data])
    job = await begin_warm(site_of(request), desk, ids)
    told = await ended(job) if wait else job.snapshot()
    return registered.model_copy(update={"job": told})


async def list_(request: web.Request) -> web.Response:
    """`GET /v1/segments?after=&limit=&metadata={...}` or `?external_id=`."""
    site, desk = site_of(request), await desk_of(request)
    external_id = request.query.get("external_id")
    if external_id is not None:
        return reply(await site.waiting.run(_by_external, desk.service.segments, external_id))
    (after, limit), says = page_query(request), said_query(request)
    return reply(
        await site.waiting.run(
            desk.service.segments.list_segments, after=after, limit=limit, says=says
        )
    )


def _by_external(service: SegmentService, external_id: str) -> SegmentList:
    segment: SegmentObject = service.find_external(external_id)
    return SegmentList(data=[segment], has_more=False, last_id=segment.id)


async def retrieve(request: web.Request) -> web.Response:
    """`GET /v1/segments/{id}`."""
    site, desk = site_of(request), await desk_of(request)
    return reply(await site.waiting.run(desk.service.segments.retrieve, request.match_info["id"]))


async def update(request: web.Request) -> web.Response:
    """`PATCH /v1/segments/{id}`: title, metadata, external id, ttl, retention, pin."""
    site, desk = site_of(request), await desk_of(request)
    raw, id_ = await read_body(request), request.match_info["id"]
    return reply(
        await site.prepare.run(
            lambda: desk.service.segments.update(id_, parsed(raw, SegmentUpdate))
        )
    )


async def delete(request: web.Request) -> web.Response:
    """`DELETE /v1/segments/{id}`: its text, its entry, every chain that contains it."""
    site, desk = site_of(request), await desk_of(request)
    return reply(await site.waiting.run(desk.service.segments.delete, request.match_info["id"]))


async def delete_many(request: web.Request) -> web.Response:
    """`POST /v1/segments/delete`: by ids, external ids, or what metadata say."""
    site, desk = site_of(request), await desk_of(request)
    raw = await read_body(request)
    return reply(
        await site.waiting.run(
            lambda: desk.service.segments.delete_many(parsed(raw, SegmentSelection))
        )
    )


async def lookup(request: web.Request) -> web.Response:
    """`POST /v1/segments/lookup`: an object with one entry for each id."""
    site, desk = site_of(request), await desk_of(request)
    raw = await read_body(request)
    states = await site.waiting.run(lambda: desk.service.segments.lookup(parsed(raw, SegmentIds)))
    return reply(SegmentStates(states))
