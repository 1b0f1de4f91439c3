"""The application: ready objects in, an `aiohttp` application out.  It owns no process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from hypic_sdk.server.door import door, errors_and_metrics, tell_request_id
from hypic_sdk.server.drain import Drain
from hypic_sdk.server.openapi import document
from hypic_sdk.server.routes.table import ROUTES, Handler
from hypic_sdk.server.sampler import Sampler
from hypic_sdk.server.settings import ServerSettings
from hypic_sdk.server.site import SITE, OpenService, Site
from hypic_sdk.server.tenants import Tenants
from hypic_sdk.server.tracing import Tracing, find_tracing
from hypic_sdk.server.upkeep import Upkeep
from hypic_sdk.server.work_pool import WorkPool
from hypic_sdk.server.worker_status import WorkerStatus
from hypic_sdk.telemetry import Telemetry


def create_app(
    open_service: OpenService,
    worker: WorkerStatus,
    *,
    settings: ServerSettings | None = None,
    tenants: Tenants | None = None,
    telemetry: Telemetry | None = None,
    tracing: Tracing | None = None,
) -> web.Application:
    """The whole server.

    Args:
        open_service: makes the service of a cache namespace, with limits for its texts; called
            once for each, on a thread (`server.services.ServiceFactory` is one).
        worker: health and books of the worker behind these services.
        tenants: who may call; none: this machine only.
        tracing: where spans go; none: OpenTelemetry's, if it is installed.

    Run it with `server.serving.serving`, which cancels the handler of a caller that went away.
    """
    settings = settings or ServerSettings()
    app = web.Application(
        middlewares=[errors_and_metrics, door], client_max_size=settings.max_body_bytes
    )
    app[SITE] = Site(
        open_service=open_service,
        worker=worker,
        settings=settings,
        tenants=tenants or Tenants(),
        telemetry=telemetry or Telemetry(),
        tracing=tracing or find_tracing(),
        drain=Drain(),
        prepare=WorkPool(
            "prepare", num_threads=settings.prepare_threads, max_waiting=settings.max_waiting
        ),
        waiting=WorkPool(
            "waiting", num_threads=settings.worker_threads, max_waiting=settings.max_waiting
        ),
        desks={},
    )
    for route in ROUTES:
        app.router.add_route(route.method, route.path, route.handler)
    app.router.add_get("/openapi.json", _openapi(document(ROUTES)))
    app.on_response_prepare.append(tell_request_id)
    app.cleanup_ctx.append(_pools)
    return app


def _openapi(text: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type="application/json")

    return handler


async def _pools(app: web.Application) -> AsyncIterator[None]:
    site = app[SITE]
    tasks = {asyncio.ensure_future(one.run()) for one in (Upkeep(site), Sampler(site))}
    yield
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    site.prepare.close()
    site.waiting.close()
