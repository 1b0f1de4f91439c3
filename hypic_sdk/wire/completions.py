"""A plain completion: a prompt without a chat template."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from hypic_sdk.wire import limits
from hypic_sdk.wire.not_offered import OF_ALL, OF_COMPLETIONS, Neutral
from hypic_sdk.wire.options import SamplingFields
from hypic_sdk.wire.parts import ContentPart, Text

PromptParts = Annotated[list[Text | ContentPart], Field(min_length=1, max_length=limits.MAX_PARTS)]


class CompletionRequest(SamplingFields):
    """`POST /v1/completions`.

    A prompt is a text, or the parts of one: texts and segments in order, nothing put between them.
    A list of several bare strings is refused: OpenAI reads it as several prompts.
    """

    prompt: Text | PromptParts
    logprobs: int | None = Field(default=None, ge=0, le=limits.MAX_TOP_LOGPROBS)
    echo: bool = False

    not_offered_fields: ClassVar[tuple[Neutral, ...]] = (OF_ALL, OF_COMPLETIONS)

    @model_validator(mode="after")
    def _is_one_prompt(self) -> Self:
        bare = isinstance(self.prompt, list) and all(isinstance(one, str) for one in self.prompt)
        if bare and len(self.prompt) > 1:
            raise ValueError(
                "a list of strings would be several prompts; write the parts of one as "
                '{"type": "text", "text": ...}'
            )
        return self

    @property
    def token_limit(self) -> int | None:
        """How many tokens the reply may have."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives to each token are told; none: no log-probabilities at all."""
        return self.logprobs
