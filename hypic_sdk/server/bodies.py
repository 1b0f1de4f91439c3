"""From a body's bytes to a checked model."""

from __future__ import annotations

import asyncio
import json
import zlib
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel

from hypic_sdk.errors import BodyTooLarge, DeadlineExceeded, RequestError
from hypic_sdk.server.site import site_of
from hypic_sdk.wire.parse import parse

Model = TypeVar("Model", bound=BaseModel)

_ENCODINGS = ("gzip", "x-gzip", "deflate", "identity")


async def read_body(request: web.Request) -> bytes:
    """The whole body.

    Raises:
        BodyTooLarge: with the limit.
        DeadlineExceeded: it arrives too slowly.
        RequestError: it is not in the encoding that it names, or in one that is not read here.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower() or "identity"
    raw = await _read(request)
    if encoding == "identity":
        return raw
    return await asyncio.to_thread(_decoded, raw, encoding, request.client_max_size)


async def _read(request: web.Request) -> bytes:
    limit_s = site_of(request).settings.body_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            return await request.read()
    except TimeoutError:
        raise DeadlineExceeded(
            f"the body did not arrive within {limit_s:g} s", limit_s=limit_s
        ) from None
    except web.HTTPRequestEntityTooLarge as error:
        raise _too_large(request.client_max_size) from error
    except web.RequestPayloadError as error:
        raise RequestError(f"the body can not be read: {error}") from error


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"a body may have {limit} bytes, this one has more", limit_bytes=limit)


def _decoded(raw: bytes, encoding: str, limit: int) -> bytes:
    """A packed body unpacked, within the limit of those that are not packed."""
    if encoding not in _ENCODINGS:
        raise RequestError(
            f"a body in the encoding {encoding!r} is not read here: {', '.join(_ENCODINGS)}",
            param="Content-Encoding",
        )
    window = zlib.MAX_WBITS | 16 if encoding in ("gzip", "x-gzip") else zlib.MAX_WBITS
    if window == zlib.MAX_WBITS and raw[:1] and raw[0] & 0x0F != 8:
        window = -window  # some call it `deflate` without the frame that belongs to it
    unpacker = zlib.decompressobj(window)
    try:
        body = unpacker.decompress(raw, limit + 1)
    except zlib.error as error:
        raise RequestError(
            f"the body is not {encoding}, as its Content-Encoding says: {error}",
            param="Content-Encoding",
        ) from None
    if len(body) > limit:
        raise _too_large(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise RequestError(
            f"the body is not one whole {encoding} stream, as its Content-Encoding says",
            param="Content-Encoding",
        )
    return body


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
