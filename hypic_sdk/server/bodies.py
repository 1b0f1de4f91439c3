"""From a body's bytes to a checked model."""

from __future__ import annotations

import asyncio
import json
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel

from hypic_sdk.errors import BodyTooLarge, DeadlineExceeded, RequestError
from hypic_sdk.server.site import site_of
from hypic_sdk.wire.parse import parse

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: web.Request) -> bytes:
    """The whole body.

    Raises:
        BodyTooLarge: with the limit.
        DeadlineExceeded: it arrives too slowly.
    """
    limit_s = site_of(request).settings.body_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            return await request.read()
    except TimeoutError:
        raise DeadlineExceeded(
            f"the body did not arrive within {limit_s:g} s", limit_s=limit_s
        ) from None
    except web.HTTPRequestEntityTooLarge as error:
        limit = request.client_max_size
        raise BodyTooLarge(
            f"a body may have {limit} bytes, this one has more", limit_bytes=limit
        ) from error


def parsed(body: bytes, model: type[Model]) -> Model:
    """Check a body.  Takes long for a long one: called on a pool thread.

    Raises:
        RequestError: no JSON, or not of that shape, with the place.
    """
    return parse(model, loaded(body))


def loaded(body: bytes) -> object:
    """JSON values.  Raises RequestError."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the body is no JSON: {error}") from None


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number in JSON")
