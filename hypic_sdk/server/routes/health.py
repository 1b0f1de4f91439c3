"""Whether it lives, whether it is ready, what it has counted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aiohttp import web

from hypic_sdk.errors import HypicError
from hypic_sdk.server.site import Site, site_of
from hypic_sdk.server.worker_status import SeveralWorkers
from hypic_sdk.version import __version__


async def live(request: web.Request) -> web.Response:
    """`GET /health/live`: the event loop runs."""
    return web.json_response({"status": "ok"})


async def ready(request: web.Request) -> web.Response:
    """`GET /health/ready`: 503 while the engine starts and while the server stops.

    Of several workers each is told; one that takes requests makes the server ready.  `shadow` is
    what live checks found, as of the last look; reuse that is switched off leaves it ready.
    """
    site = site_of(request)
    if site.drain.has_begun:
        state = "stopping"
    else:
        state = "ready" if site.worker.is_ready() else "starting"
    body: dict[str, Any] = {"status": state}
    if isinstance(site.worker, SeveralWorkers):
        facts = site.worker.worker_facts()
        body["workers"] = {place: one.state for place, one in facts.items()}
    if site.shadow is not None:
        body["shadow"] = site.shadow.model_dump()
    if state == "ready":
        return web.json_response(body)
    headers = {"Retry-After": str(site.settings.retry_after_s)}
    return web.json_response(body, status=503, headers=headers)


async def version(request: web.Request) -> web.Response:
    """`GET /version`: of this program."""
    return web.json_response({"version": __version__})


async def metrics(request: web.Request) -> web.Response:
    """`GET /metrics`, in Prometheus' text format.  The pools are left out while nobody answers."""
    site = site_of(request)
    text = await site.waiting.run(_metrics_text, site)
    return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4"})


def _metrics_text(site: Site) -> bytes:
    if isinstance(site.worker, SeveralWorkers):
        facts = site.worker.worker_facts()
        site.telemetry.note_workers({place: asdict(one) for place, one in facts.items()})
    try:
        site.telemetry.note_usage(site.worker.usage())
    except HypicError:
        site.telemetry.errors.labels("usage_unknown").inc()
    return site.telemetry.text()
