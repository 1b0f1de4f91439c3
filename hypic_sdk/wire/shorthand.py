"""Python values to wire requests: what clients, served or offline, let their callers write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, cast

from hypic_sdk.errors import ConfigError, RequestError
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.parse import parse
from hypic_sdk.wire.parts import SEGMENT_ID_PATTERN
from hypic_sdk.wire.segments import SegmentIds, SegmentObject

SegmentRef = str | SegmentObject
"""A segment id, or the object that registering gave."""


class SamplingOptions(TypedDict, total=False):
    """What chat and plain completions may be asked for, by the names of the wire."""

    model: str
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    n: int
    min_tokens: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[str, float] | Mapping[int, float]
    prompt_logprobs: int
    response_format: Mapping[str, Any]
    structured_outputs: Mapping[str, Any]
    stream_options: Mapping[str, Any]
    hypic: Mapping[str, Any]


class ChatOptions(SamplingOptions, total=False):
    """What a chat may be asked for besides."""

    documents: Iterable[str | SegmentObject | Mapping[str, Any]]
    documents_numbering: Literal["off", "brackets"]
    max_completion_tokens: int
    logprobs: bool
    top_logprobs: int
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    reasoning_effort: str
    chat_template_kwargs: Mapping[str, Any]


class CompletionOptions(SamplingOptions, total=False):
    """What a plain completion may be asked for besides."""

    logprobs: int
    echo: bool


def chat_request(messages: Iterable[Mapping[str, Any]], options: ChatOptions) -> ChatRequest:
    """The request of a chat.

    Raises:
        TypeError: an option that does not exist.
        RequestError: a value that is wrong.
    """
    fields: dict[str, Any] = dict(options)
    _check_names(fields, ChatOptions)
    if fields.get("documents") is None:
        fields.pop("documents", None)
    else:
        documents = checked_list(fields["documents"], "documents")
        fields["documents"] = [_document(one) for one in documents]
    several = checked_list(messages, "messages")
    return parse(ChatRequest, {**fields, "messages": [_message(one) for one in several]})


def completion_request(
    prompt: str | Iterable[Any], options: CompletionOptions
) -> CompletionRequest:
    """The request of a plain prompt: a text, or its parts in order; raises as `chat_request`."""
    fields: dict[str, Any] = dict(options)
    _check_names(fields, CompletionOptions)
    parts = (
        prompt
        if isinstance(prompt, str)
        else [_part(one) for one in checked_list(prompt, "prompt")]
    )
    return parse(CompletionRequest, {**fields, "prompt": parts})


def either_request(
    messages: Iterable[Mapping[str, Any]] | None,
    prompt: str | Iterable[Any] | None,
    options: ChatOptions,
) -> ChatRequest | CompletionRequest:
    """The request of a chat or of a plain prompt, whichever is given; raises as these do."""
    if (messages is None) == (prompt is None):
        raise TypeError("give either messages or prompt")
    if messages is not None:
        return chat_request(messages, options)
    assert prompt is not None, "one of the two is given"
    # a name that plain prompts do not have is refused by name
    return completion_request(prompt, cast("CompletionOptions", options))


def _check_names(fields: Mapping[str, Any], known: type[Any]) -> None:
    """A keyword argument that does not exist is a bug of the caller, told as Python does."""
    unknown = sorted(fields.keys() - known.__optional_keys__)
    if unknown:
        raise TypeError(f"unexpected keyword arguments: {', '.join(unknown)}")


def checked_list(values: Any, name: str) -> Iterable[Any]:
    """What was given as several; a single text or mapping is no list of its letters or keys.

    Raises:
        RequestError: it is none, by this name.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise RequestError(
            f"{name} is a list, got {type(values).__name__}: {values!r:.80}", param=name
        )
    return values


def _message(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message  # told by its place in the list when it is parsed
    content = message.get("content")
    if content is None or isinstance(content, str):
        return dict(message)
    return {**message, "content": [_part(part) for part in checked_list(content, "content")]}


def _part(part: Any) -> Any:
    """A content part as the wire has it; in a list, a string is a text."""
    if isinstance(part, SegmentObject):
        return {"type": "segment", "segment_id": part.id}
    return {"type": "text", "text": _text(part)} if isinstance(part, str) else part


def _text(text: str) -> str:
    """A string that stands for a text.

    Other calls take a segment's id as a string.  Here it would be a text that says nothing, or, in
    an application that passes on what others write, anybody's way to any segment.
    """
    if re.fullmatch(SEGMENT_ID_PATTERN, text):
        raise RequestError(
            f'{text} is the id of a segment, not a text: write {{"segment_id": ...}} (in a list of '
            'content parts with "type": "segment"), or give the object that registering gave'
        )
    return text


def _document(document: Any) -> Any:
    if isinstance(document, SegmentObject):
        return {"segment_id": document.id}
    if isinstance(document, str):
        return {"text": _text(document)}
    # what is neither is told by its place in the list when it is parsed
    return dict(document) if isinstance(document, Mapping) else document


def id_of(segment: SegmentRef) -> str:
    """The id of a segment."""
    return segment.id if isinstance(segment, SegmentObject) else segment


def checked_id(segment: SegmentRef) -> str:
    """The id of a segment.  Raises RequestError for what is no id."""
    [id_] = segment_ids([segment]).segment_ids
    return id_


def checked_timeout(timeout_s: float) -> float:
    """Raises ConfigError: no time that a call could take."""
    given: object = timeout_s
    if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
        raise ConfigError(f"timeout_s is a positive number of seconds, not {given!r}")
    return timeout_s


def segment_ids(segments: Iterable[SegmentRef]) -> SegmentIds:
    """Some segments by their ids.  Raises RequestError for what is no id."""
    return parse(SegmentIds, {"segment_ids": [id_of(segment) for segment in segments]})
