"""The cache as a whole: what is in it, and emptying it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypic_sdk.server.replies import reply
from hypic_sdk.server.site import Desk, Site, desk_of, site_of
from hypic_sdk.wire.cache_stats import Amount, CacheStats, ClearedCache, TenantStats

if TYPE_CHECKING:
    from aiohttp import web


async def stats(request: web.Request) -> web.Response:
    """`GET /v1/cache/stats`: the books of the store, and what the caller's tenant has of it."""
    site, desk = site_of(request), await desk_of(request)
    return reply(await site.waiting.run(_stats, site, desk))


def _stats(site: Site, desk: Desk) -> CacheStats:
    books = CacheStats.model_validate(site.worker.usage())
    segments, keeper, quota = desk.service.segments, desk.service.segments.keeper, desk.quota
    texts = segments.usage()
    tenant = TenantStats(
        num_segments=Amount(used=texts.num_segments, limit=quota.num_segments),
        text_bytes=Amount(used=texts.num_bytes, limit=quota.text_bytes),
        cached_bytes=Amount(used=keeper.cached_bytes, limit=quota.cached_bytes),
        pinned_bytes=Amount(used=keeper.pinned_bytes, limit=quota.pinned_bytes),
        warm_jobs=Amount(used=desk.jobs.num_running, limit=quota.warm_jobs),
        in_flight=Amount(used=desk.num_in_flight, limit=quota.in_flight),
    )
    return books.model_copy(update={"tenant": tenant})


async def clear(request: web.Request) -> web.Response:
    """`POST /v1/cache/clear`: drop the tenant's own entries and chains; registered texts stay."""
    site, desk = site_of(request), await desk_of(request)
    removed = await site.waiting.run(desk.service.segments.keeper.clear)
    return reply(ClearedCache(removed=removed))
