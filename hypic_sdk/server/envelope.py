"""Errors in OpenAI's envelope."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from hypic_sdk.errors import HypicError, WorkerLost

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_WAIT = (429, 503)


def envelope(error: HypicError, *, request_id: str, status: int | None = None) -> dict[str, Any]:
    """The body of an error reply, also of an error within a stream."""
    status = error.http_status if status is None else status
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {
        "error": {
            "type": _TYPES.get(status, kind),
            "code": error.code,
            "message": error.message,
            "param": error.details.get("param"),
            "details": error.details,
            "request_id": error.request_id or request_id,
        }
    }


def dumped(values: Any) -> str:
    """JSON; a detail that has no form of its own in JSON is told as its text."""
    return json.dumps(values, default=str)


def error_response(
    error: HypicError,
    *,
    request_id: str,
    retry_after_s: int,
    status: int | None = None,
    allow: str | None = None,
) -> web.Response:
    """The reply to a call that failed."""
    status = error.http_status if status is None else status
    headers = {"X-Should-Retry": "true" if error.retryable else "false"}
    if allow is not None:
        headers["Allow"] = allow
    if status in _WAIT or isinstance(error, WorkerLost):  # another engine is being started
        headers["Retry-After"] = str(retry_after_s)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(
        status=status,
        text=dumped(envelope(error, request_id=request_id, status=status)),
        content_type="application/json",
        headers=headers,
        # 499 is not among the numbers that http knows
        reason="Client Closed Request" if status == 499 else None,
    )
