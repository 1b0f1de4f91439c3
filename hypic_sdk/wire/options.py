"""What a caller may ask for besides the prompt: sampling, streaming, our own `hypic` options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from hypic_sdk.wire import limits
from hypic_sdk.wire.parse import StrictModel, WireModel
from hypic_sdk.wire.parts import Name

StopText = Annotated[str, Field(min_length=1, max_length=limits.MAX_STOP_CHARS)]


class HypicOptions(StrictModel):
    """Options of this server, under `hypic` in a body.

    `mode`: "pic" uses segments and chains, "off" computes everything afresh and keeps nothing.
    `on_missing`: what to do with a segment that is not registered: "recompute" takes the text
    beside its id, "error" refuses it all the same.  `session_id`: turns of one conversation, which
    keep chain entries of their own.  `report`: how much the reply tells about the cache.
    """

    mode: Literal["pic", "off"] = "pic"
    on_missing: Literal["recompute", "error"] = "recompute"
    session_id: Name | None = None
    report: Literal["segments", "summary", "none"] = "segments"


class StreamOptions(WireModel):
    """With `include_usage` a stream ends with one more chunk, without choices, that tells usage.

    Without it the usage stands on the chunk with the finish reason.
    """

    include_usage: bool = False


class SamplingFields(WireModel):
    """What chat and plain completions have in common.

    Left out, `temperature`, `top_k` and `top_p` are those of the model's generation_config.json; a
    model that names none answers with the likeliest token each time (`temperature` 0).
    `max_tokens` is 256; `max_tokens` 0 prepares everything and answers nothing.
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

    # known, and without effect as long as they ask for what is done anyway
    n: int | None = None
    best_of: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: Any = None

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
        if self.n not in (None, 1):
            yield "n"
        if self.best_of not in (None, 1):
            yield "best_of"
        if self.frequency_penalty:
            yield "frequency_penalty"
        if self.presence_penalty:
            yield "presence_penalty"
        if self.logit_bias:
            yield "logit_bias"
        if self.response_format not in (None, {"type": "text"}):
            yield "response_format"
