"""What callers say of segments, as wire requests; clients, served or offline, share these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hypic_sdk.errors import RequestError, from_payload
from hypic_sdk.wire.limits import MAX_PAGE
from hypic_sdk.wire.parse import parse
from hypic_sdk.wire.segments import (
    MetadataValue,
    RegisterRequest,
    SegmentSelection,
    SegmentUpdate,
    WarmCreate,
    WarmJobObject,
)
from hypic_sdk.wire.shorthand import SegmentRef, checked_list, id_of


def segment_items(texts: Iterable[str | Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Texts to register, one by one.  Raises RequestError for what is no list of such."""
    return map(segment_item, checked_list(texts, "texts"))


def segment_item(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """One text to register: a string, or what is said of it, with its `priority` as on the wire.

    Raises:
        RequestError: neither a string nor a mapping.
    """
    if isinstance(given, str):
        return {"text": given}
    one: object = given
    if not isinstance(one, Mapping):
        raise RequestError(
            f"what is registered is a text or its fields, got {type(one).__name__}: {one!r:.80}",
            param="texts",
        )
    item = dict(given)
    priority = item.pop("priority", None)
    return _said({**item, **({} if priority is None else {"retention": {"priority": priority}})})


def register_request(
    items: Sequence[Mapping[str, Any]], *, replace_external: bool
) -> RegisterRequest:
    """Texts to register.  Raises RequestError for what can not stand there."""
    values = {"segments": [*items], "replace_external": replace_external}
    return parse(RegisterRequest, values)


def segment_update(given: Mapping[str, Any]) -> SegmentUpdate:
    """What to say of a segment; what is nothing stays as it is.  Raises RequestError."""
    return parse(SegmentUpdate, segment_item(given))


def selection(
    segments: Iterable[SegmentRef] | None,
    external_ids: Iterable[str] | None,
    metadata: Mapping[str, MetadataValue] | None,
) -> SegmentSelection:
    """Segments named in one of three ways.  Raises RequestError: in none, or in several."""
    values = {
        "segment_ids": None if segments is None else [id_of(one) for one in segments],
        "external_ids": None if external_ids is None else [*external_ids],
        "metadata": metadata,
    }
    return parse(SegmentSelection, _said(values))


def warm_request(segments: Iterable[SegmentRef], *, priority: str) -> WarmCreate:
    """Segments to put into the public pool.  Raises RequestError."""
    values = {"segment_ids": [id_of(one) for one in segments], "priority": priority}
    return parse(WarmCreate, values)


def raise_failure(job: WarmJobObject) -> None:
    """Raise what kept a segment of an ended job from being warm, if anything did."""
    if job.status != "succeeded" or job.errors:
        first = job.errors[0] if job.errors else None
        code = "request_cancelled" if first is None else first.code
        message = f"the warm job was {job.status}" if first is None else first.message
        details = {} if first is None else {"segment_id": first.segment_id}
        raise from_payload({"code": code, "message": message, "details": details})


def _said(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the caller gave; nothing stands for leaving as it is."""
    return {name: value for name, value in values.items() if value is not None}


def checked_limit(limit: int, most: int = MAX_PAGE) -> int:
    """How many a page may have.  Raises RequestError: less than one, or more than `most`."""
    if not 1 <= limit <= most:
        raise RequestError(f"limit is a number from 1 to {most}", param="limit", limit=most)
    return limit
