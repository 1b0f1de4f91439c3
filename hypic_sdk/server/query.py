"""Queries of listings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypic_sdk.prompt.catalog import Metadata
from hypic_sdk.server.bodies import loaded
from hypic_sdk.wire.limits import MAX_PAGE
from hypic_sdk.wire.parse import parse
from hypic_sdk.wire.segment_shorthand import checked_limit
from hypic_sdk.wire.segments import SegmentQuery

if TYPE_CHECKING:
    from aiohttp import web


def page_query(request: web.Request) -> tuple[str | None, int]:
    """`after` and `limit`.

    Raises:
        RequestError: a limit that is no number, or out of bounds.
    """
    return request.query.get("after"), limit_query(request, usual=100, most=MAX_PAGE)


def limit_query(request: web.Request, *, usual: int, most: int) -> int:
    """`limit`: 1 to `most`; left out, it is `usual`, or `most` if that is less.

    Raises:
        RequestError: it is no number, or out of bounds.
    """
    text = request.query.get("limit", str(min(usual, most)))
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    return checked_limit(limit, most)


def said_query(request: web.Request) -> Metadata | None:
    """`metadata`: a JSON object that metadata must say.

    Raises:
        RequestError: something else.
    """
    text = request.query.get("metadata")
    if text is None:
        return None
    return parse(SegmentQuery, {"metadata": loaded(text.encode("utf-8", "replace"))}).metadata
