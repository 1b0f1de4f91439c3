"""A small instance of a JSON schema, with numbers and quoted texts of what the user said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, final

_FORMATS: Mapping[str, str] = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "a@example.org",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.org/",
    "ipv4": "127.0.0.1",
}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_QUOTED = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'(?!\w)")
_MAX_DEPTH = 16
_MAX_ITEMS = 64


@final
class InstanceMaker:
    """Makes one instance; what the text offers is used up from left to right."""

    def __init__(self, root: Mapping[str, Any], text: str = "") -> None:
        """
        Args:
            root: the schema, in which `$ref` points.
            text: where numbers and texts are looked for.
        """
        self._root = root
        self._text = text
        self._numbers = [float(one) for one in _NUMBER.findall(text)]
        self._quoted = [one or other for one, other in _QUOTED.findall(text)]

    def make(self) -> Any:
        """An instance of the whole schema, as far as it is understood."""
        return self.value(self._root)

    def value(self, schema: Any, depth: int = 0) -> Any:
        """An instance of a part of it."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return "text" if schema is True else None
        if "$ref" in schema:
            return self.value(self._target(schema["$ref"]), depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return next((one for one in schema["enum"] if str(one) in self._text),
                        schema["enum"][0])  # fmt: skip
        for name in ("anyOf", "oneOf"):
            if schema.get(name):
                return self.value(schema[name][0], depth + 1)
        if schema.get("allOf"):
            merged: dict[str, Any] = {}
            for one in schema["allOf"]:
                merged |= self._target(one["$ref"]) if "$ref" in one else one
            return self.value({**merged, **{k: v for k, v in schema.items() if k != "allOf"}},
                              depth + 1)  # fmt: skip
        return self._typed(schema, depth)

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = kind[0] if kind else "null"
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer" | "number":
                return self._number(schema, whole=kind == "integer")
            case "boolean":
                return True
            case "null":
                return None
        return self._string(schema)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        required = schema.get("required") or []
        names = [*(name for name in properties if name in required),
                 *(name for name in required if name not in properties)]  # fmt: skip
        return {name: self.value(properties.get(name, True), depth + 1) for name in names}

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        fixed = schema.get("prefixItems") or []
        made = [self.value(one, depth + 1) for one in fixed]
        least = min(max(schema.get("minItems", 0), min(1, schema.get("maxItems", 1))), _MAX_ITEMS)
        while len(made) < least:
            made.append(self.value(schema.get("items", True), depth + 1))
        return made

    def _number(self, schema: Mapping[str, Any], *, whole: bool) -> float | int:
        value = self._numbers.pop(0) if self._numbers else 0.0
        step = 1 if whole else 0.5
        value = max(value, schema.get("minimum", value), schema.get("exclusiveMinimum",
                    value - step) + step)  # fmt: skip
        value = min(value, schema.get("maximum", value), schema.get("exclusiveMaximum",
                    value + step) - step)  # fmt: skip
        multiple = schema.get("multipleOf")
        if multiple:
            value = -(-value // multiple) * multiple
        return int(value) if whole or value == int(value) else value

    def _string(self, schema: Mapping[str, Any]) -> str:
        found = _FORMATS.get(schema.get("format", ""))
        if found is not None:
            return found
        text = self._quoted.pop(0) if self._quoted else self._text.strip() or "text"
        least = schema.get("minLength", 0)
        return text.ljust(least, ".")[: schema.get("maxLength", max(least, len(text)))]

    def _target(self, reference: Any) -> Any:
        target: Any = self._root
        for step in str(reference).removeprefix("#").strip("/").split("/"):
            if step:
                target = target.get(step) if isinstance(target, Mapping) else None
        return target
