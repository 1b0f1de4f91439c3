"""Texts of an application registered as segments, and what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Self, final

from hypic_sdk.errors import HypicError
from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.served import Served
from hypic_sdk.wire.limits import MAX_IDS_PER_CALL

SEGMENT_ID = "hypic_segment_id"
ERROR = "hypic_error"

Warm = Literal["none", "async", "wait"]


@final
@dataclass(frozen=True, slots=True)
class Registered:
    """Ids by text, or the code of the error that kept texts from being registered."""

    ids: Mapping[str, str]
    error: str | None = None

    @classmethod
    def failed(cls, error: HypicError) -> Self:
        """None of them; prompts carry their texts, so they serve all the same."""
        return cls(MappingProxyType({}), error.code)

    def marks(self, text: str) -> dict[str, str]:
        """What the metadata of a document with this text are told."""
        if self.error is not None:
            return {ERROR: self.error}
        segment_id = self.ids.get(text.strip())
        return {} if segment_id is None else {SEGMENT_ID: segment_id}


def learn(registry: SegmentRegistry, texts: Iterable[str]) -> list[str]:
    """Know texts from now on; those that are long enough to be segments, each once."""
    known = [registry.add(text) for text in texts]
    return list(dict.fromkeys(one.text for one in known if one is not None))


def note(
    registry: SegmentRegistry, texts: Iterable[str], segments: Iterable[Any]
) -> Mapping[str, str]:
    """Note the ids that a server gave to texts; ids by text."""
    ids = {text: segment.id for text, segment in zip(texts, segments, strict=True)}
    for text, segment_id in ids.items():
        registry.add(text, segment_id)
    return MappingProxyType(ids)


def register(served: Served, texts: Iterable[str], *, warm: Warm) -> Registered:
    """Register texts that are long enough; an error is told, not raised.

    Args:
        warm: also put them into the public pool: in the background, before this returns, not now.
    """
    known = learn(served.registry, texts)
    try:
        segments = served.calls().segments.create_many(known, warm=warm) if known else ()
    except HypicError as error:
        return Registered.failed(error)
    return Registered(note(served.registry, known, segments))


async def aregister(served: Served, texts: Iterable[str], *, warm: Warm) -> Registered:
    """The same on an event loop; `served` has a client for it."""
    known = learn(served.registry, texts)
    calls = served.async_calls()
    assert calls is not None, "without one the caller takes a thread"
    try:
        segments = await calls.segments.create_many(known, warm=warm) if known else ()
    except HypicError as error:
        return Registered.failed(error)
    return Registered(note(served.registry, known, segments))


def forget(served: Served, ids: Sequence[str]) -> None:
    """Have segments forgotten, in any number; unknown ones are left alone."""
    for at in range(0, len(ids), MAX_IDS_PER_CALL):
        served.calls().segments.delete_many(ids[at : at + MAX_IDS_PER_CALL])
