"""What is asked and what is answered, as values.  No I/O: both clients move the bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from hypic_sdk.errors import (
    BodyTooLarge,
    CapacityError,
    ConnectionFailed,
    HypicError,
    NotAuthenticated,
    NotPermitted,
    QueueFull,
    RequestError,
    WorkerError,
    from_payload,
)
from hypic_sdk.wire.shorthand import (
    ChatOptions,
    CompletionOptions,
    SegmentRef,
    chat_request,
    checked_id,
    completion_request,
    segment_ids,
)

Model = TypeVar("Model", bound=BaseModel)

_BY_STATUS: Mapping[int, type[HypicError]] = MappingProxyType(
    {
        HTTPStatus.UNAUTHORIZED: NotAuthenticated,
        HTTPStatus.FORBIDDEN: NotPermitted,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: BodyTooLarge,
        HTTPStatus.TOO_MANY_REQUESTS: QueueFull,
        HTTPStatus.BAD_GATEWAY: WorkerError,
        HTTPStatus.SERVICE_UNAVAILABLE: CapacityError,
    }
)


@dataclass(frozen=True, slots=True)
class Call:
    """One request.  `repeatable`: done twice it is as if done once, and costs little."""

    method: str
    path: str
    body: bytes | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True


def get(path: str, **query: str | int | None) -> Call:
    """Something to read."""
    return Call("GET", path, query={name: str(q) for name, q in query.items() if q is not None})


def post(path: str, values: Any, *, repeatable: bool = True) -> Call:
    """Something to do."""
    return Call("POST", path, json.dumps(values).encode(), repeatable=repeatable)


def chat(
    messages: Iterable[Mapping[str, Any]], options: ChatOptions, *, stream: bool = False
) -> Call:
    """A chat to answer; raises as `wire.shorthand.chat_request`."""
    return _generation("/v1/chat/completions", chat_request(messages, options), stream=stream)


def completion(
    prompt: str | Iterable[Any], options: CompletionOptions, *, stream: bool = False
) -> Call:
    """A plain prompt to continue; raises as `wire.shorthand.completion_request`."""
    return _generation("/v1/completions", completion_request(prompt, options), stream=stream)


def _generation(path: str, request: BaseModel, *, stream: bool) -> Call:
    values = {**request.model_dump(exclude_unset=True), "stream": stream}
    return post(path, values, repeatable=False)


def looked_at(path: str, request: BaseModel) -> Call:
    """A prompt to explain or to tokenise."""
    return post(path, request.model_dump(exclude_unset=True))


def ids(path: str, segments: Iterable[SegmentRef]) -> Call:
    """Some segments by their ids; raises RequestError for what is no id."""
    return post(path, segment_ids(segments).model_dump())


def segment_path(segment: SegmentRef) -> str:
    """The path of one segment.  Raises RequestError for what is no id."""
    return f"/v1/segments/{checked_id(segment)}"


def parsed(model: type[Model], body: bytes, *, request_id: str | None = None) -> Model:
    """A reply.

    Raises:
        ConnectionFailed: something that is no reply of this server.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise ConnectionFailed(
            f"the reply is not what a hypic server answers: {error.errors()[0]['msg']}",
            request_id=request_id,
        ) from error


def error_of(status: int, body: bytes, *, request_id: str | None = None) -> HypicError:
    """The error that a reply tells of: the class that the server raised, by its code."""
    payload = error_payload(body)
    if payload is not None:
        error = from_payload({"request_id": request_id, **payload})
        if type(error) is not HypicError or payload.get("code") == HypicError.code:
            return error
    said = body[:200].decode("utf-8", "replace")
    fallback = RequestError if 400 <= status < 500 else HypicError
    error_class = _BY_STATUS.get(status, fallback)
    message = str(payload["message"]) if payload else f"HTTP status {status}: {said}"
    return error_class(message, request_id=request_id, status=status)


def error_payload(body: bytes | str) -> dict[str, Any] | None:
    """The payload within OpenAI's envelope; none if this is no envelope."""
    try:
        envelope = json.loads(body)
    except ValueError:
        return None
    error = envelope.get("error") if isinstance(envelope, dict) else None
    if not isinstance(error, dict) or "message" not in error:
        return None
    return error
