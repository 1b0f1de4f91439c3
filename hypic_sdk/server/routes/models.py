"""The served model and what it can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypic_sdk.server.replies import reply
from hypic_sdk.server.site import desk_of
from hypic_sdk.service.about import AboutModels

if TYPE_CHECKING:
    from aiohttp import web


async def list_(request: web.Request) -> web.Response:
    """`GET /v1/models`."""
    return reply(AboutModels((await desk_of(request)).service).list())


async def retrieve(request: web.Request) -> web.Response:
    """`GET /v1/models/{id}`."""
    models = AboutModels((await desk_of(request)).service)
    return reply(models.retrieve(request.match_info["id"]))
