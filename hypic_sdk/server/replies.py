"""Models as whole replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from pydantic import BaseModel


def reply(model: BaseModel, status: int = 200) -> web.Response:
    """A model as the whole body."""
    return web.Response(
        text=model.model_dump_json(), content_type="application/json", status=status
    )
