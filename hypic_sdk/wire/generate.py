"""`POST /generate`, as the reference implementation has it: one text, a separator between parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from hypic_sdk.wire import limits
from hypic_sdk.wire.formats import GrammarText
from hypic_sdk.wire.not_offered import OF_GENERATE, OF_GENERATE_SAMPLING, not_offered
from hypic_sdk.wire.options import StopText
from hypic_sdk.wire.parse import ReplyModel, WireModel
from hypic_sdk.wire.parts import FullText

SEPARATOR = "<<PIC_SEP>>"
"""Only in this endpoint's `text` is it read as a border."""


def _without_nulls(values: Any) -> Any:
    if not isinstance(values, Mapping):
        return values
    return {name: value for name, value in values.items() if value is not None}


class GenerateSampling(WireModel):
    """Sampling by SGLang's names.  Left out or null, `temperature` is 0 (there it is 1).

    `json_schema` is the text of a schema.  A name that does not stand here is refused, as there.
    """

    max_new_tokens: int = Field(default=128, ge=0, le=limits.MAX_TOKENS)
    temperature: float = Field(default=0.0, ge=0.0, le=100.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=-1, ge=-1, le=limits.MAX_TOKENS)
    stop: StopText | Annotated[list[StopText], Field(max_length=limits.MAX_STOPS)] | None = None
    stop_token_ids: list[int] | None = Field(default=None, max_length=limits.MAX_STOP_TOKEN_IDS)
    ignore_eos: bool = False
    min_new_tokens: int = Field(default=0, ge=0, le=limits.MAX_TOKENS)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=100.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    json_schema: GrammarText | None = None
    regex: GrammarText | None = None
    n: Literal[1] = 1
    sampling_seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, values: Any) -> Any:
        return _without_nulls(values)

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if self.json_schema is not None and self.regex is not None:
            raise ValueError("a reply has one form, not json_schema and regex")
        return self


class GenerateRequest(WireModel):
    """One text: documents and, behind the last separator, the question.

    A text without a separator is answered, and kept as a segment besides.  Fields that nobody knows
    are ignored, as SGLang does; those of its own that would change the reply are refused.
    """

    text: FullText
    sampling_params: GenerateSampling = GenerateSampling()
    stream: bool = False

    _not_offered: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="wrap")
    @classmethod
    def _note_not_offered(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Of what is not read here, remember what would change the reply."""
        request = handler(_without_nulls(values))
        if isinstance(values, Mapping):
            sampling = values.get("sampling_params")
            request._not_offered = (*not_offered(values, OF_GENERATE), *_unknown(sampling))
        return request

    def unsupported(self) -> Iterator[str]:
        """Names of fields that would change the reply and are not offered."""
        yield from self._not_offered

    @property
    def texts(self) -> list[str]:
        """The parts; empty ones fall away."""
        return [part for part in self.text.split(SEPARATOR) if part]


def _unknown(sampling: Any) -> Iterator[str]:
    """Sampling parameters that are none, or are not offered."""
    if not isinstance(sampling, Mapping):
        return
    known = GenerateSampling.model_fields.keys() | OF_GENERATE_SAMPLING.keys()
    misspelt = (name for name, value in sampling.items() if value is not None and name not in known)
    for name in (*not_offered(sampling, OF_GENERATE_SAMPLING), *misspelt):
        yield f"sampling_params.{name}"


class MetaInfo(ReplyModel):
    """Counts of one request, and our cache report beside them."""

    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    hypic: dict[str, Any] | None = None


class GenerateReply(ReplyModel):
    """The text so far (a chunk holds all of it again), its ids, the counts."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
