"""Calls of tools as models write them: `<tool_call>` with JSON, or with a tag a parameter, inside.

Written for prompts' templates that show calls in one of the two forms; read in either, whatever the
template shows, since models mix them up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_MAX_HOPS = 16  # through `$ref` before a schema counts as without a type


class ToolFormat(Enum):
    """How a template shows a call."""

    JSON = "json"  # {"name": ..., "arguments": {...}}, as Hermes and Qwen2.5 have it
    TAGS = "tags"  # <function=name><parameter=key>value</parameter></function>, as Qwen3.5 has it


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of a tool; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of the call that was begun last."""

    text: str


@dataclass(frozen=True, slots=True)
class SaidCall:
    """A call that a reply has made.

    `arguments` is the text of a JSON object; of a call that was broken off it is less than that.
    """

    name: str
    arguments: str


def calls_of(said: Iterable[object]) -> list[SaidCall]:
    """The calls, put together from what was said of them; everything else is passed over."""
    calls: list[SaidCall] = []
    for one in said:
        if isinstance(one, CallBegun):
            calls.append(SaidCall(one.name, ""))
        elif isinstance(one, CallArguments):
            calls[-1] = SaidCall(calls[-1].name, calls[-1].arguments + one.text)
    return calls


def tool_format(template_source: str) -> ToolFormat:
    """The form in which a chat template shows calls; JSON if it shows none."""
    return ToolFormat.TAGS if "<function=" in template_source else ToolFormat.JSON


def write_call(form: ToolFormat, name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model would write it, tags included."""
    if form is ToolFormat.JSON:
        call = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
        return f"{OPEN}\n{call}\n{CLOSE}"
    parameters = "".join(
        f"<parameter={key}>\n{_as_text(value)}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"{OPEN}\n<function={name}>\n{parameters}</function>\n{CLOSE}"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parse_call(body: str) -> SaidCall | None:
    """The call whose JSON this is, in whatever order; none if it is no call."""
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        # some models put the text of the object there
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, dict) or not is_name(call["name"]):
        return None
    return SaidCall(call["name"], as_json(arguments))


def is_name(name: str) -> bool:
    """Whether a tool may be called so: it says something, and any UTF-8 can carry it."""
    return bool(name) and name.isprintable()


def as_json(value: Any) -> str:
    """JSON that UTF-8 can carry; escapes only where it has to."""
    written = json.dumps(value, ensure_ascii=False)
    try:
        written.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value)
    return written


def parameters_of(tools: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The schema of a tool's parameters; empty if there is none of that name, or it says none."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            found = function.get("parameters")
            return found if isinstance(found, Mapping) else {}
    return {}


def types_of(schema: Mapping[str, Any], key: str) -> frozenset[str]:
    """The JSON types that a parameter may have; empty if the schema does not say."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return frozenset()
    return _types(properties.get(key), schema, _MAX_HOPS)


def _types(schema: Any, root: Mapping[str, Any], hops: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or hops <= 0:
        return frozenset()
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for step in reference[2:].split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        return _types(target, root, hops - 1)
    given = schema.get("type")
    if isinstance(given, str):
        return frozenset((given,))
    if isinstance(given, list):
        return frozenset(one for one in given if isinstance(one, str))
    if isinstance(schema.get("enum"), list) or "const" in schema:
        values = schema.get("enum") or [schema.get("const")]
        return frozenset(map(_type_of, values))
    choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or []
    if not isinstance(choices, list):
        return frozenset()
    return frozenset().union(*(_types(one, root, hops - 1) for one in choices))


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    names = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"))
    for kind, name in names:
        if isinstance(value, kind):
            return name
    return "array" if isinstance(value, list) else "object"


def is_text(types: frozenset[str]) -> bool:
    """Whether a parameter in tags is its text, whatever that looks like."""
    return not types or types == {"string"}


def value_of(text: str, types: frozenset[str]) -> Any:
    """A parameter's value: what its types want, and a text where it is none of these."""
    if is_text(types):
        return text
    try:
        loaded = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text
    kind = _type_of(loaded)
    is_wanted = kind in types or (kind == "integer" and "number" in types)
    return loaded if is_wanted or "string" not in types else text


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
