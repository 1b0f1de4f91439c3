"""Warm jobs: begin, read, follow, cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypic_sdk.server.bodies import parsed, read_body
from hypic_sdk.server.replies import reply
from hypic_sdk.server.site import Desk, Site, desk_of, site_of
from hypic_sdk.server.sse import EventWriter, Patient
from hypic_sdk.server.warm_board import progress
from hypic_sdk.service import WarmJob
from hypic_sdk.wire.segments import SegmentIds, WarmCreate, WarmJobList

if TYPE_CHECKING:
    from aiohttp import web


async def begin_warm(site: Site, desk: Desk, ids: SegmentIds) -> WarmJob:
    """Begin a job for registered segments.

    Raises:
        SegmentNotFound: naming all that are not registered.
        QueueFull: as many jobs run as may run.
        QuotaExceeded, PinBudgetExhausted: more than the tenant may have.
        CapacityError: the server or its engine is stopping or starting.
    """
    site.check_ready()
    with site.drain.entered(), desk.jobs.place():
        job = await site.prepare.run(desk.service.segments.warm, ids)
        desk.jobs.add(job)
    return job


async def create(request: web.Request) -> web.Response:
    """`POST /v1/segments/warm`: 202 and the job."""
    site, desk = site_of(request), await desk_of(request)
    raw = await read_body(request)
    ids = await site.prepare.run(parsed, raw, WarmCreate)
    job = await begin_warm(site, desk, ids)
    return reply(job.snapshot(), status=202)


async def list_(request: web.Request) -> web.Response:
    """`GET /v1/segments/warm`: the jobs that are readable, newest first."""
    return reply(WarmJobList(data=(await desk_of(request)).jobs.snapshots()))


async def retrieve(request: web.Request) -> web.Response:
    """`GET /v1/segments/warm/{id}`."""
    return reply((await desk_of(request)).jobs.find(request.match_info["id"]).snapshot())


async def cancel(request: web.Request) -> web.Response:
    """`POST /v1/segments/warm/{id}/cancel`: what is warm by then stays."""
    job = (await desk_of(request)).jobs.find(request.match_info["id"])
    await site_of(request).waiting.run(job.cancel)
    return reply(job.snapshot())


async def events(request: web.Request) -> web.StreamResponse:
    """`GET /v1/segments/warm/{id}/events`: the job whenever it has changed; ends with it.

    Leaving it does not end the job.
    """
    job = (await desk_of(request)).jobs.find(request.match_info["id"])
    writer = EventWriter(request)
    await writer.begin()
    silence_s = site_of(request).settings.keep_alive_s
    async with Patient(progress(job), silence_s) as snapshots:
        async for snapshot in snapshots:
            if snapshot is None:
                await writer.keep_alive()
            else:
                name = "progress" if snapshot.status == "running" else "end"
                await writer.send(snapshot.model_dump_json(), event=name)
    return await writer.end()
