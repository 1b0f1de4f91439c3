"""From JSON values to a model, with one kind of error for whatever is wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hypic_sdk.errors import RequestError, UnsupportedOption

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class WireModel(BaseModel):
    """A request: fields that it does not know are ignored, as clients send more than they need."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class StrictModel(BaseModel):
    """A model of our own options: a misspelt name is an error, not a default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ReplyModel(BaseModel):
    """A reply: built by us, read by clients that may be older."""

    model_config = ConfigDict(extra="ignore", frozen=True)


Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], values: object) -> Model:
    """Check JSON values.

    Raises:
        UnsupportedOption: a name or a value within `hypic` that there is not.
        RequestError: anything else, with the place (`details["param"]`) and the limit.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _request_error(error, tuple(model.model_fields)) from None


def _request_error(error: ValidationError, names: Sequence[str]) -> RequestError:
    found = max(error.errors(), key=_how_telling)
    place = _fields(found["loc"])
    said = str(found["msg"]).removeprefix("Value error, ")
    # a rule over several fields stands at no place: the first field that it names is blamed
    param = ".".join(place) or _first_named(names, said)
    details: dict[str, Any] = {"param": param, "num_errors": error.error_count()}
    details.update(_limits(found.get("ctx") or {}))
    message = f"{'.'.join(place)}: {said}" if place else said
    if place[:1] == ["hypic"] and found["type"] in ("literal_error", "extra_forbidden"):
        return UnsupportedOption(message, **details)
    return RequestError(message, **details)


def _first_named(names: Sequence[str], said: str) -> str:
    """The field that a text names first; empty: none."""
    return next((word for word in re.findall(r"\w+", said) if word in names), "")


def _how_telling(one: ErrorDetails) -> tuple[int, bool]:
    """Of the alternatives of a union, the one that was followed furthest says most."""
    return len(one["loc"]), not one["type"].endswith("_type")


def _fields(steps: tuple[int | str, ...]) -> list[str]:
    """A place without pydantic's names for the branches of unions."""
    fields: list[str] = []
    before: int | str = ""
    for step in steps:
        is_type = isinstance(step, str) and (step == "str" or not step.isidentifier())
        follows_branch = isinstance(before, int) or before == _BRANCH
        is_tag = step in ("text", "segment") and follows_branch
        if not is_type and not is_tag:
            fields.append(str(step))
        before = _BRANCH if is_type else step
        if is_tag:
            before = ""
    return fields


_BRANCH = "(branch)"


def _limits(context: dict[str, Any]) -> dict[str, Any]:
    """What pydantic says about the limit, as plain values."""
    names = ("max_length", "min_length", "actual_length", "ge", "gt", "le", "lt", "expected")
    return {name: context[name] for name in names if name in context}
