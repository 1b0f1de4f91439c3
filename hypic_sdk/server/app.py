"""The application: ready objects in, an `aiohttp` application out.  It owns no process."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from hypic_sdk.server.settings import ServerSettings
from hypic_sdk.server.tenants import Tenants
from hypic_sdk.server.worker_status import WorkerStatus
from hypic_sdk.service import Service
from hypic_sdk.telemetry import Telemetry


def create_app(
    open_service: Callable[[str], Service],
    worker: WorkerStatus,
    *,
    settings: ServerSettings = ServerSettings(),
    tenants: Tenants = Tenants(),
    telemetry: Telemetry | None = None,
) -> web.Application:
    """The whole server.

    Args:
        open_service: makes the service of a cache namespace; called once for each, on a thread
            (`server.services.ServiceFactory` is one).
        worker: health and books of the worker behind these services.
        tenants: who may call; none: this machine only.

    Run it with `server.serving.serving`, which cancels the handler of a caller that went away.
    """
    raise NotImplementedError
