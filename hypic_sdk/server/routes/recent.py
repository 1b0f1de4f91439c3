"""What happened lately: the caller's own requests, and the pools over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypic_sdk.server.query import limit_query
from hypic_sdk.server.recent import named
from hypic_sdk.server.replies import reply
from hypic_sdk.server.site import Desk, desk_of, site_of
from hypic_sdk.wire.recent import CacheHistory, RecentRequest, RecentRequestList

if TYPE_CHECKING:
    from aiohttp import web

USUAL_LIMIT = 20


async def requests(request: web.Request) -> web.Response:
    """`GET /v1/requests/recent`: the caller's latest requests, newest first, without their texts.

    Kept in memory, a bounded number; gone with the server.
    """
    site, desk = site_of(request), await desk_of(request)
    limit = limit_query(request, usual=USUAL_LIMIT, most=site.settings.keep_requests)
    latest = desk.recent.newest(limit)
    return reply(RecentRequestList(data=await site.waiting.run(_titled, desk, latest)))


def _titled(desk: Desk, latest: list[RecentRequest]) -> list[RecentRequest]:
    ids = {one.segment_id for request in latest for one in request.segments if one.title is None}
    return named(latest, desk.service.segments.titles(ids))


async def history(request: web.Request) -> web.Response:
    """`GET /v1/cache/history`: the books of the store over the last while, oldest first.

    Token counts are the caller's own.
    """
    site, desk = site_of(request), await desk_of(request)
    return reply(CacheHistory(interval_s=site.settings.sample_s, data=list(desk.history)))
