"""The served model and what it can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypic_sdk.errors import UnknownModel
from hypic_sdk.server.replies import reply
from hypic_sdk.server.site import desk_of
from hypic_sdk.service import Service
from hypic_sdk.wire.models import ModelAbilities, ModelList, ModelObject

if TYPE_CHECKING:
    from aiohttp import web


def _model(service: Service) -> ModelObject:
    reuse = service.facts.reuse
    return ModelObject(
        id=service.model_name,
        created=service.created_at,
        hypic=ModelAbilities(
            reuse_mode=reuse.mode.name,
            seam=str(reuse.seam),
            min_segment_tokens=reuse.min_segment_tokens,
            max_context_tokens=service.facts.max_context_tokens,
            chat=service.has_template,
        ),
    )


async def list_(request: web.Request) -> web.Response:
    """`GET /v1/models`."""
    return reply(ModelList(data=[_model((await desk_of(request)).service)]))


async def retrieve(request: web.Request) -> web.Response:
    """`GET /v1/models/{id}`."""
    service = (await desk_of(request)).service
    wanted = request.match_info["id"]
    if wanted != service.model_name:
        raise UnknownModel(f"no model {wanted!r} here, only {service.model_name!r}", model=wanted)
    return reply(_model(service))
