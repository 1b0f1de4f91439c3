"""Documents registered as segments, and told by their metadata which ones they are."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import partial

from langchain_core.documents import Document
from langchain_core.runnables.config import run_in_executor

from hypic_sdk.errors import HypicError, RequestCancelled
from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.registering import Registered, Warm, aregister, learn, note, register
from hypic_sdk.integrations.served import Served
from hypic_sdk.integrations.syncing import ProgressListener, Sync


def register_documents(
    served: Served, documents: Sequence[Document], *, warm: Warm
) -> list[Document]:
    """Copies of the documents that bear the id of their segment, or why they have none.

    Args:
        warm: also put them into the public pool: in the background, before this returns, not now.
    """
    return stamped(documents, register(served, texts_of(documents), warm=warm))


async def aregister_documents(
    served: Served, documents: Sequence[Document], *, warm: Warm
) -> list[Document]:
    """The same on an event loop."""
    if served.async_calls() is None:
        return await run_in_executor(
            None, partial(register_documents, served, documents, warm=warm)
        )
    return stamped(documents, await aregister(served, texts_of(documents), warm=warm))


def take_in(
    served: Served,
    documents: Sequence[Document],
    *,
    warm: Warm,
    on_progress: ProgressListener | None = None,
    cancel: threading.Event | None = None,
) -> Registered:
    """Register documents, in any number.

    Args:
        on_progress: called whenever something has changed; with "wait" also while they are warmed.
        cancel: set it, from any thread, to stop; what is done by then stays.
    Raises:
        RequestCancelled: it was stopped.
        HypicError: they can not be registered.
    """
    texts = learn(served.registry, texts_of(documents))
    if not texts:
        return Registered({})
    segments = served.calls().segments
    report, made = Sync(segments, on_progress, cancel).run(texts, warm=warm == "wait")
    ids = note(served.registry, texts[: len(made)], made)
    if report.is_cancelled:
        raise RequestCancelled(
            f"stopped with {report.num_warm} of {report.num_texts} texts warm",
            num_warm=report.num_warm,
            num_texts=report.num_texts,
        )
    if warm == "async":
        segments.warm.create(made)
    return Registered(ids)


def take_in_documents(
    served: Served,
    documents: Sequence[Document],
    *,
    warm: Warm,
    on_progress: ProgressListener | None,
    cancel: threading.Event | None,
) -> list[Document]:
    """`take_in`, but errors of the server stand in the metadata, as those of a retriever do."""
    try:
        told = take_in(served, documents, warm=warm, on_progress=on_progress, cancel=cancel)
    except RequestCancelled:
        raise
    except HypicError as error:
        told = Registered.failed(error)
    return stamped(documents, told)


def know(registry: SegmentRegistry, documents: Iterable[Document]) -> None:
    """Know documents from now on."""
    learn(registry, texts_of(documents))


def texts_of(documents: Iterable[Document]) -> list[str]:
    """What may become segments of documents."""
    return [document.page_content for document in documents]


def stamped(documents: Iterable[Document], told: Registered) -> list[Document]:
    """Copies with their marks: the caller's store may hand out its own objects."""
    return [
        one.model_copy(update={"metadata": {**one.metadata, **told.marks(one.page_content)}})
        for one in documents
    ]
