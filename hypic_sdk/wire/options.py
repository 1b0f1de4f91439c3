"""What a caller may ask for besides the prompt: sampling, streaming, our own `hypic` options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)

from hypic_sdk.wire import limits
from hypic_sdk.wire.formats import (
    GrammarText,
    ResponseFormat,
    Schema,
    StructuredOutputs,
    json_text,
)
from hypic_sdk.wire.not_offered import OF_ALL, Neutral, not_offered
from hypic_sdk.wire.parse import StrictModel, WireModel
from hypic_sdk.wire.parts import FullText, Name


def _as_key(token_id: object) -> object:
    """JSON has keys of text alone; a caller in Python may have numbers, as `json.dumps` takes."""
    return str(token_id) if type(token_id) is int else token_id


TokenIdText = Annotated[str, BeforeValidator(_as_key), Field(pattern=r"^[0-9]{1,8}$")]
Bias = Annotated[float, Field(ge=-100.0, le=100.0)]
StopText = Annotated[str, Field(min_length=1, max_length=limits.MAX_STOP_CHARS)]


class HypicOptions(StrictModel):
    """Options of this server, under `hypic` in a body.

    `mode`: "pic" uses segments and chains, "off" computes everything afresh and keeps nothing.
    `on_missing`: what to do with a segment that is not registered: "recompute" takes the text
    beside its id, "error" refuses it all the same.  `session_id`: turns of one conversation, which
    keep chain entries of their own.  `report`: how much the reply tells about the cache.
    `auto_segment`: "exact" finds registered texts in plain ones (but in what a model said) and
    makes them segments.
    """

    mode: Literal["pic", "off"] = "pic"
    on_missing: Literal["recompute", "error"] = "recompute"
    session_id: Name | None = None
    report: Literal["segments", "summary", "none"] = "segments"
    auto_segment: Literal["off", "exact"] = "off"


class StreamOptions(WireModel):
    """With `include_usage` a stream ends with one more chunk, without choices, that tells usage.

    Without it the usage stands on the chunk with the finish reason.
    """

    include_usage: bool = False


class SamplingFields(WireModel):
    """What chat and plain completions have in common.

    Left out, `temperature`, `top_k` and `top_p` are those of the model's generation_config.json; a
    model that names none answers with the likeliest token each time (`temperature` 0).
    `max_tokens` is 256 unless that file says otherwise; with 0 everything is prepared and nothing
    answered.  `n` replies come from one prepared prompt.  `prompt_logprobs` computes the whole
    prompt, as `hypic.mode` "off".
    """

    model: Name | None = None
    max_tokens: int | None = Field(default=None, ge=0, le=limits.MAX_TOKENS)
    temperature: float | None = Field(default=None, ge=0.0, le=100.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    top_k: int | None = Field(default=None, ge=-1, le=limits.MAX_TOKENS)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: StopText | Annotated[list[StopText], Field(max_length=limits.MAX_STOPS)] | None = None
    stop_token_ids: list[int] = Field(default=[], max_length=limits.MAX_STOP_TOKEN_IDS)
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    hypic: HypicOptions = HypicOptions()

    n: int | None = Field(default=None, ge=1, le=limits.MAX_REPLIES)
    min_tokens: int | None = Field(default=None, ge=0, le=limits.MAX_TOKENS)
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    frequency_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    presence_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    repetition_penalty: float | None = Field(default=None, gt=0.0, le=100.0)
    logit_bias: dict[TokenIdText, Bias] | None = Field(
        default=None, max_length=limits.MAX_LOGIT_BIASES
    )
    prompt_logprobs: int | None = Field(default=None, ge=0, le=limits.MAX_TOP_LOGPROBS)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | GrammarText | None = None
    guided_regex: GrammarText | None = None
    guided_choice: list[FullText] | None = Field(
        default=None, min_length=1, max_length=limits.MAX_CHOICES
    )
    guided_grammar: GrammarText | None = None

    # known, and without effect as long as it asks for what is done anyway
    best_of: int | None = None

    not_offered_fields: ClassVar[tuple[Neutral, ...]] = (OF_ALL,)
    _not_offered: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="wrap")
    @classmethod
    def _note_not_offered(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Of the fields that are not read here, remember those that would change the answer."""
        request = handler(values)
        if isinstance(values, Mapping):
            request._not_offered = tuple(not_offered(values, *cls.not_offered_fields))
        return request

    @model_validator(mode="after")
    def _has_one_format(self) -> Self:
        if len(self.formats) > 1:
            raise ValueError(f"a reply has one form, not {' and '.join(self.formats)}")
        schema = self.response_format and self.response_format.json_schema
        given = (schema.schema_ if schema else None, self.structured_outputs, self.guided_json)
        for one in given:
            value = one.json_ if isinstance(one, StructuredOutputs) else one
            if value is not None:
                json_text(value, "the schema")
        return self

    @property
    def formats(self) -> list[str]:
        """Names of the fields that hold the reply to a form."""
        names = ("structured_outputs", "guided_json", "guided_regex", "guided_choice",
                 "guided_grammar")  # fmt: skip
        found = [name for name in names if getattr(self, name) is not None]
        asked = self.response_format
        return found if asked is None or asked.type == "text" else ["response_format", *found]

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of its own for the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def unsupported(self) -> Iterator[str]:
        """Names of options that would change the answer and are not offered."""
        if self.best_of not in (None, 1):
            yield "best_of"
        yield from self._not_offered
