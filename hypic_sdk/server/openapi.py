"""`GET /openapi.json`: the endpoints written down for machines."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from hypic_sdk.server.routes.table import Route
from hypic_sdk.version import __version__

_REFS = "#/components/schemas/{model}"
_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "code", "message", "param", "details", "request_id"],
            "properties": {
                "type": {"type": "string"},
                "code": {"type": "string"},
                "message": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "details": {"type": "object"},
                "request_id": {"type": "string"},
            },
        }
    },
}


def document(routes: Sequence[Route]) -> str:
    """The OpenAPI 3.1 document as JSON."""
    wanted: list[Any] = []
    for route in routes:
        wanted += [(route.body, "validation")] if route.body else []
        wanted += [(one, "serialization") for one in (route.reply, route.event) if one]
    refs, definitions = models_json_schema(list(dict.fromkeys(wanted)), ref_template=_REFS)
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, refs)
    return json.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "hypic_sdk", "version": __version__},
            "paths": paths,
            "components": {
                "schemas": {**definitions.get("$defs", {}), "Error": _ERROR_SCHEMA},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
            # a server without keys asks for none
            "security": [{"key": []}, {}],
        }
    )


def _operation(route: Route, refs: Any) -> dict[str, Any]:
    said = re.sub(r"\s+", " ", inspect.getdoc(route.handler) or "")
    replies: dict[str, Any] = {
        str(route.status): {"description": "as asked"},
        "default": _json("an error in OpenAI's envelope", {"$ref": "#/components/schemas/Error"}),
    }
    if route.reply is not None:
        replies[str(route.status)] = _json("as asked", refs[route.reply, "serialization"])
    if route.partly_status is not None:
        reply = refs[route.reply, "serialization"]
        replies[str(route.partly_status)] = _json("as asked, with what failed", reply)
    if route.event is not None:
        content = replies[str(route.status)].setdefault("content", {})
        # 3.1 has no word for what stands in the data of each event
        content["text/event-stream"] = {"x-event-data": refs[route.event, "serialization"]}
    operation: dict[str, Any] = {"summary": said, "responses": replies}
    if route.body is not None:
        body = _json("", refs[route.body, "validation"])
        operation["requestBody"] = {"required": True, "content": body["content"]}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += [
        {"name": one.name, "in": "query", "description": one.description,
         "schema": {"type": one.type}}
        for one in route.query
    ]  # fmt: skip
    if parameters:
        operation["parameters"] = parameters
    return operation


def _json(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
