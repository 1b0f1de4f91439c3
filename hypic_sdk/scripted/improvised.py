"""What is said where no rule holds: a tool that the user speaks of is called, its answer told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypic_sdk.scripted.instance import InstanceMaker
from hypic_sdk.scripted.rules import Answer, Call, Scene

Tool = Mapping[str, Any]

_WORD = re.compile(r"[^\W_]{4,}")


def improvise(scene: Scene, tools: Sequence[Tool]) -> Answer | None:
    """The answer to a tool's result, or to a user who speaks of a tool; none without either."""
    if scene.last == "tool":
        return Answer(content=f"The answer is: {scene.tool_result}")
    calls = tuple(named_calls(scene.user, tools)) or tuple(likely_calls(scene.user, tools))
    return Answer(tool_calls=calls) if calls else None


def named_calls(text: str, tools: Sequence[Tool]) -> Iterator[Call]:
    """A call for each time that a tool's name stands with brackets behind it, else for each name.

    In order of the text: `add(1, 2) and add(3, 4)` are two calls.
    """
    found = [
        (match.start(), tool, match.group("inside"))
        for tool in tools
        for match in re.finditer(rf"(?<!\w){re.escape(tool['name'])}(?!\w)"
                                 r"(?:\((?P<inside>[^()]*)\))?", text)
    ]  # fmt: skip
    with_arguments = [one for one in found if one[2] is not None]
    seen: set[str] = set()
    for _, tool, inside in sorted(with_arguments or found, key=lambda one: one[0]):
        if inside is None and tool["name"] in seen:
            continue
        seen.add(tool["name"])
        yield Call(tool["name"], arguments_of(tool, text, inside))


def likely_calls(text: str, tools: Sequence[Tool]) -> Iterator[Call]:
    """A call of the tool whose name and description share most words with the text, if any."""
    said = _words(text)
    scores = [len(said & _words(f"{tool['name']} {tool.get('description', '')}")) for tool in tools]
    best = max(scores, default=0)
    if best:
        tool = tools[scores.index(best)]
        yield Call(tool["name"], arguments_of(tool, text))


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def arguments_of(tool: Tool, text: str, inside: str | None = None) -> dict[str, Any]:
    """Arguments from what stood in the brackets, else from the whole text."""
    schema = tool.get("parameters") or {}
    properties = list(schema.get("properties") or {})
    values = _values(inside)
    if values is not None:
        given = dict(zip(properties, values, strict=False))
        if set(schema.get("required") or ()) <= set(given):
            return given
    made = InstanceMaker(schema, text).make()
    return made if isinstance(made, dict) else {}


def _values(inside: str | None) -> list[Any] | None:
    """`3, "a"` as values; none if it is nothing of the kind."""
    if inside is None:
        return None
    bare = [part.partition("=")[2] or part for part in inside.split(",")]
    try:
        loaded = json.loads(f"[{','.join(bare)}]".replace("'", '"')) if inside.strip() else []
    except ValueError:
        return None
    return loaded if isinstance(loaded, list) else None
