"""Documents registered as segments, and told by their metadata which ones they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from langchain_core.documents import Document
from langchain_core.runnables.config import run_in_executor

from hypic_sdk.errors import HypicError, SegmentNotFound
from hypic_sdk.integrations.contract import SegmentRegistry, register
from hypic_sdk.integrations.langchain.served import Served
from hypic_sdk.wire.segments import WarmJobObject

SEGMENT_ID = "hypic_segment_id"
ERROR = "hypic_error"
_CALL_IDS = 1000  # segments that are forgotten in one call

Warm = Literal["none", "async", "wait"]
OnProgress = Callable[[WarmJobObject], None]


def register_documents(
    served: Served,
    documents: Sequence[Document],
    *,
    warm: Warm,
    on_progress: OnProgress | None = None,
) -> list[Document]:
    """Copies of the documents that bear the id of their segment, or why they have none.

    Args:
        warm: also put them into the public pool: in the background, before this returns, not now.
        on_progress: with "wait", called with the warm job whenever it has changed.
    """
    try:
        ids = registered_ids(served, documents, warm=warm, on_progress=on_progress)
    except HypicError as error:
        return failed(documents, error)
    return with_ids(documents, ids)


async def aregister_documents(
    served: Served, documents: Sequence[Document], *, warm: Warm
) -> list[Document]:
    """The same on an event loop."""
    calls = served.async_calls()
    if calls is None:
        return await run_in_executor(None, lambda: register_documents(served, documents, warm=warm))
    texts = known_texts(served.registry, documents)
    try:
        segments = await calls.segments.create_many(texts, warm=warm) if texts else ()
    except HypicError as error:
        return failed(documents, error)
    return with_ids(documents, register(served.registry, texts, segments))


def registered_ids(
    served: Served, documents: Sequence[Document], *, warm: Warm, on_progress: OnProgress | None
) -> Mapping[str, str]:
    """Segment ids by text, of those that are long enough for one.

    Raises:
        HypicError: they can not be registered.
    """
    texts = known_texts(served.registry, documents)
    if not texts:
        return {}
    segments = served.calls().segments
    if warm == "wait" and on_progress is not None:
        made = segments.create_many(texts)
        segments.warm.create(made).wait(on_progress=on_progress)
    else:
        made = segments.create_many(texts, warm=warm)
    return register(served.registry, texts, made)


def forget_segments(served: Served, ids: Sequence[str]) -> None:
    """Have segments forgotten; those that are unknown are left alone."""
    segments = served.calls().segments
    delete_many = getattr(segments, "delete_many", None)
    if delete_many is not None:
        for at in range(0, len(ids), _CALL_IDS):
            delete_many(ids[at : at + _CALL_IDS])
        return
    for one in ids:
        with suppress(SegmentNotFound):
            segments.delete(one)


def known_texts(registry: SegmentRegistry, documents: Iterable[Document]) -> list[str]:
    """What is long enough to be a segment, each once; known by its text from now on."""
    known = [registry.add(document.page_content) for document in documents]
    return list(dict.fromkeys(one.text for one in known if one is not None))


def with_ids(documents: Iterable[Document], ids: Mapping[str, str]) -> list[Document]:
    """The documents, those with a segment stamped with its id."""
    return [
        _stamped(one, {SEGMENT_ID: ids[text]} if (text := one.page_content.strip()) in ids else {})
        for one in documents
    ]


def failed(documents: Iterable[Document], error: HypicError) -> list[Document]:
    """The documents, stamped with what went wrong: their texts serve all the same."""
    return [_stamped(one, {ERROR: error.code}) for one in documents]


def _stamped(document: Document, marks: dict[str, str]) -> Document:
    """A copy: the caller's store may hand out its own objects."""
    return document.model_copy(update={"metadata": {**document.metadata, **marks}})
