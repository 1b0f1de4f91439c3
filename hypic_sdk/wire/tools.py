"""Tools that a model may call, and which of them it has to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hypic_sdk.wire.parse import WireModel
from hypic_sdk.wire.parts import Text

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,128}$")]


class _Shown(BaseModel):
    """What the chat template shows as it is, fields of the caller's own too."""

    model_config = ConfigDict(extra="allow", frozen=True)


class ToolFunction(_Shown):
    """A function: its name, what it is for, and a JSON schema of its parameters."""

    name: ToolName
    description: Text | None = None
    parameters: dict[str, Any] | None = None


class Tool(_Shown):
    """A tool; there are only functions."""

    type: Literal["function"] = "function"
    function: ToolFunction

    def shown(self) -> dict[str, Any]:
        """As the template shows it: what the caller wrote, the type first."""
        return {"type": self.type, **self.model_dump(exclude_unset=True)}


class NamedFunction(WireModel):
    """A function by its name."""

    name: ToolName


class NamedTool(WireModel):
    """The one tool that has to be called."""

    type: Literal["function"] = "function"
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool
