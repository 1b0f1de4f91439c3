"""`SegmentRegister`: the texts of a collection of nodes, registered and warm on the server."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, final

from llama_index.core.schema import BaseNode, TransformComponent
from llama_index.core.storage.docstore.types import BaseDocumentStore

from hypic_sdk.errors import DeadlineExceeded
from hypic_sdk.integrations.llama_index.llm import Hypic
from hypic_sdk.integrations.llama_index.nodes import learn, node_text
from hypic_sdk.wire.limits import MAX_IDS_PER_CALL, MAX_PAGE, MAX_SEGMENTS_PER_CALL
from hypic_sdk.wire.segments import WarmJobObject

COLLECTION = "llama_index_collection"
TEXT_HASH = "text_sha256"

_CALL_IDS = MAX_IDS_PER_CALL
_CANCEL_POLL_S = 1.0  # how long a warm job may be silent before a cancel is seen

Nodes = BaseDocumentStore | Iterable[BaseNode]


@final
@dataclass(frozen=True, slots=True)
class SyncReport:
    """How far a `sync` has come, or how it ended.

    `num_warm` counts segments in the pool (also those that were there before), `num_not_kept` those
    too short for it; `computed_tokens` is what warming cost.
    """

    num_texts: int
    num_registered: int = 0
    num_created: int = 0  # of the registered, those that the server did not know
    num_warm: int = 0
    num_not_kept: int = 0
    num_failed: int = 0
    computed_tokens: int = 0
    reused_tokens: int = 0
    is_cancelled: bool = False


ProgressListener = Callable[[SyncReport], None]


class SegmentRegister(TransformComponent):
    """Registers nodes as segments: in an ingestion pipeline, or by `sync`.

    In a pipeline it stands behind the splitter, and nodes pass through as they are.  Pipelines
    remember what they have transformed: after the server lost its texts, or to warm what was
    evicted, call `sync`.  Nodes that went away stay registered until `prune`.

    `collection` names the nodes that belong together; `prune` looks at no others.  A text in two
    collections belongs to the one that said it last.  `warm` is what a pipeline does besides.
    """

    llm: Hypic
    collection: str = "default"
    warm: Literal["none", "async", "wait"] = "async"

    @classmethod
    def class_name(cls) -> str:
        """The name in serialised forms."""
        return "SegmentRegister"

    def __reduce__(self) -> Any:
        """As of `Hypic`: another process connects anew, or can not."""
        return _again, (type(self), self.llm, self.collection, self.warm)

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Register nodes.  Raises HypicError: the server does not take them."""
        items = self._items(self._texts(nodes))
        if items:
            self.llm.calls().segments.create_many(items, warm=self.warm)
        return nodes

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Register nodes; see `__call__`."""
        calls = self.llm.async_calls()
        if calls is None:
            return await asyncio.to_thread(self, nodes, **kwargs)
        items = self._items(self._texts(nodes))
        if items:
            await calls.segments.create_many(items, warm=self.warm)
        return nodes

    def sync(
        self,
        nodes: Nodes,
        *,
        warm: bool = True,
        on_progress: ProgressListener | None = None,
        cancel: threading.Event | None = None,
    ) -> SyncReport:
        """Have all of these nodes registered, and warm; what is so already costs no compute.

        Args:
            nodes: a document store, or nodes.
            warm: also put them into the server's pool, and wait for that.
            on_progress: called on this thread whenever something has changed, and at the end.
            cancel: set it, from any thread, to stop; what is done by then stays.
        Raises:
            HypicError: the server does not take them.
        """
        running = _Sync(self.llm.calls().segments, on_progress, cancel or threading.Event())
        texts = self._texts(_nodes(nodes))
        return running.run(texts, self._items(texts), warm)

    async def async_sync(
        self, nodes: Nodes, *, warm: bool = True, on_progress: ProgressListener | None = None
    ) -> SyncReport:
        """`sync` on a thread of its own; cancelling the task stops it."""
        cancel = threading.Event()
        try:
            return await asyncio.to_thread(
                self.sync, nodes, warm=warm, on_progress=on_progress, cancel=cancel
            )
        finally:
            cancel.set()

    def prune(self, keep: Nodes) -> int:
        """Delete the segments of this collection that none of these nodes has.

        Returns:
            How many were deleted.
        """
        kept = {_hash(text) for text in self._texts(_nodes(keep))}
        segments = self.llm.calls().segments
        stale = [
            one.id
            for one in _registered(segments)
            if one.metadata.get(COLLECTION) == self.collection
            and one.metadata.get(TEXT_HASH) not in kept
        ]
        _delete(segments, stale)
        return len(stale)

    def _texts(self, nodes: Iterable[BaseNode]) -> list[str]:
        return learn(self.llm.registry, map(node_text, nodes))

    def _items(self, texts: Iterable[str]) -> list[dict[str, Any]]:
        return [
            {"text": text, "metadata": {COLLECTION: self.collection, TEXT_HASH: _hash(text)}}
            for text in texts
        ]


def _again(kind: type[SegmentRegister], llm: Hypic, collection: str, warm: Any) -> SegmentRegister:
    return kind(llm=llm, collection=collection, warm=warm)


def _nodes(nodes: Nodes) -> Iterable[BaseNode]:
    return nodes.docs.values() if isinstance(nodes, BaseDocumentStore) else nodes


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _registered(segments: Any) -> Iterator[Any]:
    """Every segment of the server, page by page."""
    after = None
    while True:
        page = segments.list(after=after, limit=MAX_PAGE)
        yield from page.data
        if not page.has_more:
            return
        after = page.last_id


def _delete(segments: Any, ids: Sequence[str]) -> None:
    delete_many = getattr(segments, "delete_many", None)
    if delete_many is None:  # in this process one by one costs nothing more
        for id_ in ids:
            segments.delete(id_)
        return
    for at in range(0, len(ids), _CALL_IDS):
        delete_many(ids[at : at + _CALL_IDS])


@final
class _Sync:
    """One run of `sync`."""

    def __init__(
        self, segments: Any, on_progress: ProgressListener | None, cancel: threading.Event
    ) -> None:
        self._segments = segments
        self._on_progress = on_progress
        self._cancel = cancel
        self._report = SyncReport(0)

    def run(self, texts: Sequence[str], items: Sequence[dict[str, Any]], warm: bool) -> SyncReport:
        self._report = SyncReport(len(texts))
        ids = self._register(iter(items))
        for at in range(0, len(ids) if warm else 0, _CALL_IDS):
            if not self._cancel.is_set():
                self._warm(ids[at : at + _CALL_IDS])
        if self._cancel.is_set():
            self._tell(is_cancelled=True)
        return self._report

    def _tell(self, **changes: Any) -> None:
        self._report = replace(self._report, **changes)
        if self._on_progress is not None:
            self._on_progress(self._report)

    def _register(self, items: Iterator[dict[str, Any]]) -> list[str]:
        ids: list[str] = []
        while not self._cancel.is_set() and (batch := list(islice(items, MAX_SEGMENTS_PER_CALL))):
            made = self._segments.create_many(batch)
            ids.extend(one.id for one in made)
            num_created = self._report.num_created + sum(bool(one.created) for one in made)
            self._tell(num_registered=len(ids), num_created=num_created)
        return ids

    def _warm(self, ids: list[str]) -> None:
        before, job = self._report, self._segments.warm.create(ids)

        def told(now: WarmJobObject) -> None:
            if self._cancel.is_set() and now.status == "running":
                job.cancel()
            self._tell(
                **{name: getattr(before, name) + num for name, num in _progress(now).items()}
            )

        while True:
            try:
                job.wait(_CANCEL_POLL_S, told)
                return
            except DeadlineExceeded:
                if self._cancel.is_set():
                    job.cancel()


def _progress(job: WarmJobObject) -> dict[str, int]:
    counts = job.counts
    return {
        "num_warm": counts.done + counts.already_warm,
        "num_not_kept": counts.not_kept,
        "num_failed": counts.failed,
        "computed_tokens": job.tokens.computed,
        "reused_tokens": job.tokens.reused,
    }
