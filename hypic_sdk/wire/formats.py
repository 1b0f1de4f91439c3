"""Forms that a reply can be held to: JSON, a schema, an expression, a choice, a grammar."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from hypic_sdk.wire import limits
from hypic_sdk.wire.parse import StrictModel, WireModel
from hypic_sdk.wire.parts import FullText, Name, has_utf8

GrammarText = Annotated[FullText, Field(max_length=limits.MAX_GRAMMAR_CHARS)]
Schema = dict[str, Any] | bool


class JsonSchemaFormat(WireModel):
    """A schema with a name.  It is kept to whether `strict` is set or not."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    name: Name
    description: str | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(WireModel):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if self.type == "json_schema" and (
            self.json_schema is None or self.json_schema.schema_ is None
        ):
            raise ValueError("json_schema needs json_schema.schema")
        return self


class StructuredOutputs(StrictModel):
    """vLLM's `structured_outputs`: exactly one of its fields.

    `json` is a schema, as an object or as its text.  `grammar` is written in Lark, with the
    extensions of llguidance.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    json_: Schema | GrammarText | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: GrammarText | None = None
    choice: list[FullText] | None = Field(default=None, min_length=1, max_length=limits.MAX_CHOICES)
    grammar: GrammarText | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        given = [one for one in (self.json_, self.json_object or None, self.regex, self.choice,
                                 self.grammar) if one is not None]  # fmt: skip
        if len(given) != 1:
            raise ValueError("exactly one of json, json_object, regex, choice and grammar")
        return self


def json_text(schema: Schema | str, what: str) -> str:
    """A schema as JSON text.  Raises ValueError for one that is too large or has no UTF-8."""
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    has_utf8(text)
    if len(text) > limits.MAX_GRAMMAR_CHARS:
        raise ValueError(
            f"{what} has {len(text)} characters of JSON, limit is {limits.MAX_GRAMMAR_CHARS}"
        )
    return text
