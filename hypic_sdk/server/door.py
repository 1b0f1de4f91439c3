"""What every call passes: an id, who calls, from where; and on its way out the error handler."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from hypic_sdk.errors import BodyTooLarge, HypicError, NotPermitted, RequestError
from hypic_sdk.server.envelope import error_response
from hypic_sdk.server.routes.ui import is_page
from hypic_sdk.server.site import (
    ERROR_CODE,
    REQUEST_ID,
    TENANT,
    TRACE,
    Site,
    request_id_of,
    site_of,
    trace_of,
)
from hypic_sdk.service.ids import new_id

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
OPEN_PATHS = ("/health", "/health/live", "/health/ready", "/version")
_CALLERS_ID = re.compile(r"[!-~]{1,128}")
CLOSED_REQUEST = 499


@web.middleware
async def errors_and_metrics(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The one error handler: whatever was raised becomes OpenAI's envelope, counted and logged."""
    site = site_of(request)
    request_id = request[REQUEST_ID] = new_id("req")
    request[TRACE] = site.tracing.begin(request_id, request.headers)
    started_s = time.monotonic()
    status = CLOSED_REQUEST
    try:
        response = await _answer(site, request, handler)
        status = response.status
        return response
    finally:
        _note(site, request, status, time.monotonic() - started_s)


async def _answer(site: Site, request: web.Request, handler: Handler) -> web.StreamResponse:
    status = allow = None
    try:
        return await handler(request)
    except asyncio.CancelledError:
        raise
    except HypicError as error:
        failure = error
    except web.HTTPRequestEntityTooLarge:
        failure = BodyTooLarge("the body is too large", limit_bytes=request.client_max_size)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        failure, status = RequestError(f"{error.reason}: {request.path}"), error.status
        allow = error.headers.get("Allow")
    except Exception:
        logger.exception("a handler failed request=%s", request_id_of(request))
        failure = HypicError("internal error; the log tells more under this request id")
    site.telemetry.errors.labels(failure.code).inc()
    request[ERROR_CODE] = failure.code
    return error_response(
        failure,
        request_id=request_id_of(request),
        retry_after_s=site.settings.retry_after_s,
        status=status,
        allow=allow,
    )


def _note(site: Site, request: web.Request, status: int, seconds: float) -> None:
    resource = request.match_info.route.resource
    route = "unknown" if resource is None else resource.canonical
    trace_of(request).note(method=request.method, route=route, status=status)
    trace_of(request).end(request.get(ERROR_CODE))
    site.telemetry.requests.labels(route, status).inc()
    site.telemetry.request_seconds.labels(route).observe(seconds)
    logger.info(
        "answered request=%s method=%s route=%s status=%d ms=%.1f caller=%s",
        request_id_of(request),
        request.method,
        route,
        status,
        1000 * seconds,
        _callers_id(request) or "-",
    )


@web.middleware
async def door(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let a call in, or not: host, origin, key, kind of body."""
    site = site_of(request)
    if request.path in OPEN_PATHS:
        return await handler(request)
    if not site.tenants.has_keys:
        _check_from_here(request, site.settings.allowed_hosts)
    if is_page(request.path):
        return await handler(request)  # it asks for the key itself, for the calls that it makes
    request[TENANT] = site.tenants.of(request.headers.get("Authorization"))
    if request.can_read_body and request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(reason="a body is application/json")
    return await handler(request)


def _check_from_here(request: web.Request, allowed_hosts: tuple[str, ...]) -> None:
    """Without keys, a page of another site must not speak to this server, by any host name."""
    names = (*LOOPBACK_NAMES, *allowed_hosts)
    host = _host_name(f"//{request.host}")
    if host not in names:
        raise NotPermitted(f"this server does not answer to the host name {host!r}", host=host)
    origin = request.headers.get("Origin")
    if origin is not None and _host_name(origin) not in names:
        raise NotPermitted("this server answers no other site's pages", origin=origin)
    if request.headers.get("Sec-Fetch-Site") == "cross-site":
        raise NotPermitted("this server answers no other site's pages")


def _host_name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


async def tell_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Every reply bears the id, streams too; beside it the caller's own, which need not be one."""
    if REQUEST_ID in request:
        response.headers["X-Request-Id"] = request_id_of(request)
    callers_id = _callers_id(request)
    if callers_id is not None:
        response.headers["X-Client-Request-Id"] = callers_id


def _callers_id(request: web.Request) -> str | None:
    """By what name the caller knows the call, if that may stand in a header and in a log."""
    for name in ("X-Client-Request-Id", "X-Request-Id"):
        given = request.headers.get(name, "")
        if _CALLERS_ID.fullmatch(given):
            return given
    return None
