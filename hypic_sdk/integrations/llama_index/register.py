"""`SegmentRegister`: the texts of a collection of nodes, registered and warm on the server."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from llama_index.core.schema import BaseNode, TransformComponent
from llama_index.core.storage.docstore.types import BaseDocumentStore

from hypic_sdk.integrations.llama_index.llm import Hypic
from hypic_sdk.integrations.llama_index.nodes import node_text
from hypic_sdk.integrations.registering import Warm, forget, learn
from hypic_sdk.integrations.syncing import ProgressListener, Sync, SyncReport
from hypic_sdk.wire.limits import MAX_PAGE

COLLECTION = "llama_index_collection"
TEXT_HASH = "text_sha256"

Nodes = BaseDocumentStore | Iterable[BaseNode]


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
    warm: Warm = "async"

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
        items = self._items(self._texts(_nodes(nodes)))
        report, _ = Sync(self.llm.calls().segments, on_progress, cancel).run(items, warm=warm)
        return report

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
        forget(self.llm, stale)
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
