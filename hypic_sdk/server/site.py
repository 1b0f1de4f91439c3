"""What handlers share: one site, and a desk for each tenant."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from aiohttp import web

from hypic_sdk.errors import CapacityError, QueueFull
from hypic_sdk.prompt.catalog import CatalogLimits
from hypic_sdk.server.drain import Drain
from hypic_sdk.server.quota import Quota
from hypic_sdk.server.recent import RecentRequests
from hypic_sdk.server.settings import ServerSettings
from hypic_sdk.server.tenants import Tenant, Tenants
from hypic_sdk.server.tracing import Trace, Tracing
from hypic_sdk.server.warm_board import WarmBoard
from hypic_sdk.server.work_pool import WorkPool
from hypic_sdk.server.worker_status import WorkerStatus
from hypic_sdk.service import Service
from hypic_sdk.telemetry import Telemetry
from hypic_sdk.wire.recent import CacheSample
from hypic_sdk.wire.shadow import ShadowStats

OpenService = Callable[[str, CatalogLimits], Service]


@final
class Desk:
    """One tenant's service, warm jobs, quota, and what happened lately."""

    def __init__(self, service: Service, quota: Quota, settings: ServerSettings) -> None:
        self.service = service
        self.quota = quota
        self.jobs = WarmBoard(max_running=quota.warm_jobs, keep_s=settings.keep_jobs_s)
        self.recent = RecentRequests(service.facts, settings.keep_requests)
        self.history: deque[CacheSample] = deque(maxlen=settings.keep_samples)
        self.generation = 0  # of the store that knows this tenant's wishes
        self.num_in_flight = 0
        service.segments.keeper.cached_bytes_limit = quota.cached_bytes
        service.segments.keeper.pinned_bytes_limit = quota.pinned_bytes
        self._cancels: dict[str, Callable[[], None]] = {}

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Have one more request under way inside of the block.

        Raises:
            QueueFull: the tenant has as many as it may have.
        """
        if self.num_in_flight >= self.quota.in_flight:
            raise QueueFull(
                f"{self.num_in_flight} requests are in flight, no more may be",
                quota="in_flight",
                limit=self.quota.in_flight,
            )
        self.num_in_flight += 1
        try:
            yield
        finally:
            self.num_in_flight -= 1

    @contextmanager
    def cancelled_by(self, request_id: str, cancel: Callable[[], None]) -> Iterator[None]:
        """`cancel(request_id)` inside of the block calls `cancel`."""
        self._cancels[request_id] = cancel
        try:
            yield
        finally:
            del self._cancels[request_id]

    def cancel(self, request_id: str) -> bool:
        """End a request of this tenant; false if there is none of that id."""
        cancel = self._cancels.get(request_id)
        if cancel is None:
            return False
        cancel()
        return True


@dataclass(slots=True)
class Site:
    """Everything of one application; made when it starts, on its loop."""

    open_service: OpenService
    worker: WorkerStatus
    settings: ServerSettings
    tenants: Tenants
    telemetry: Telemetry
    tracing: Tracing
    drain: Drain
    prepare: WorkPool
    waiting: WorkPool
    desks: dict[str, asyncio.Task[Desk]]
    shadow: ShadowStats | None = None  # as of the last look; none: nothing is checked

    async def desk(self, tenant: Tenant) -> Desk:
        """The tenant's desk, set up at its first call."""
        task = self.desks.get(tenant.namespace)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.ensure_future(self._open(tenant))
            self.desks[tenant.namespace] = task
        # a caller that goes away must not take the desk from the others that wait for it
        return await asyncio.shield(task)

    async def _open(self, tenant: Tenant) -> Desk:
        quota = tenant.quota or self.settings.quota
        service = await self.waiting.run(self.open_service, tenant.namespace, quota.of_texts)
        return Desk(service, quota, self.settings)

    def check_ready(self) -> None:
        """Raises CapacityError: the engine is not there yet, or is being started again."""
        if not self.worker.is_ready():
            raise CapacityError("the engine is starting")


SITE = web.AppKey("hypic_site", Site)
REQUEST_ID = web.RequestKey("hypic_request_id", str)
TENANT = web.RequestKey("hypic_tenant", Tenant)
TRACE = web.RequestKey("hypic_trace", Trace)
ERROR_CODE = web.RequestKey("hypic_error_code", str)


def site_of(request: web.Request) -> Site:
    """The site of a call."""
    return request.app[SITE]


def request_id_of(request: web.Request) -> str:
    """The id of a call, by which logs know it."""
    return request[REQUEST_ID]


def trace_of(request: web.Request) -> Trace:
    """What a call is traced by."""
    return request[TRACE]


async def desk_of(request: web.Request) -> Desk:
    """The desk of the call's tenant."""
    return await site_of(request).desk(request[TENANT])
