"""What a service tells of its model, as `GET /v1/models` does."""

from __future__ import annotations

from typing import final

from hypic_sdk.errors import UnknownModel
from hypic_sdk.service.service import Service
from hypic_sdk.wire.models import ModelAbilities, ModelList, ModelObject


@final
class AboutModels:
    """The models of a service: there is one."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def list(self) -> ModelList:
        """The models that are served."""
        return ModelList(data=[self._model()])

    def retrieve(self, model: str) -> ModelObject:
        """One model.  Raises UnknownModel."""
        there = self._service.model_name
        if model != there:
            raise UnknownModel(f"no model {model!r} here, only {there!r}", model=model)
        return self._model()

    def _model(self) -> ModelObject:
        service, reuse = self._service, self._service.facts.reuse
        return ModelObject(
            id=service.model_name,
            created=service.created_at,
            hypic=ModelAbilities(
                reuse_mode=reuse.mode.name,
                seam=str(reuse.seam),
                min_segment_tokens=reuse.min_segment_tokens,
                max_context_tokens=service.facts.max_context_tokens,
                chat=service.has_template,
                tools=service.shows_tools,
            ),
        )
