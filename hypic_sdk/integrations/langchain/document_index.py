"""`HypicSegmentIndex`: a vector store and the server's segments, kept alike by one call."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.indexing import DeleteResponse, DocumentIndex, UpsertResponse
from langchain_core.vectorstores import VectorStore
from pydantic import PrivateAttr

from hypic_sdk.integrations.langchain.chat_model import ChatHypic
from hypic_sdk.integrations.langchain.errors import core_errors
from hypic_sdk.integrations.langchain.registering import know, take_in
from hypic_sdk.integrations.registering import Warm, forget
from hypic_sdk.integrations.syncing import ProgressListener
from hypic_sdk.prompt.segment import segment_id


class HypicSegmentIndex(DocumentIndex):
    """What is put into `store` is registered and warmed; what is deleted there is forgotten.

    For `langchain_core.indexing.index(documents, record_manager, HypicSegmentIndex(...))`: with
    `cleanup="incremental"` the segments of edited documents go with the documents.  `store` is the
    application's own vector store, which keeps texts and ids.  As a retriever it searches there.

    A text that several documents have is forgotten with the last of them, as far as they came
    through this object; if it is forgotten too early, that costs a hit and no answer.

    `on_progress` is called with a `SyncReport` of each batch that core hands over.  Set `cancel`,
    from any thread, to stop with RequestCancelled: the batches before are in, and the next run
    goes on from there.
    """

    store: VectorStore
    chat: ChatHypic
    warm: Warm = "wait"
    on_progress: ProgressListener | None = None
    cancel: threading.Event | None = None
    k: int = 4

    # texts that came through this object, and the ids of the documents that have them
    _owners: dict[str, set[str]] = PrivateAttr(default_factory=dict)

    def upsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """Put documents into the store, and their texts before the server.

        Raises:
            HypicError: the server can not register them, or it was stopped; then the store is
                left as it was.
        """
        named = [one if one.id else one.model_copy(update={"id": _new_id()}) for one in items]
        documents = {str(one.id): one for one in named}  # of two with one id the last
        with core_errors():
            take_in(
                self.chat,
                [*documents.values()],
                warm=self.warm,
                on_progress=self.on_progress,
                cancel=self.cancel,
            )
        replaced = self.get([*documents])
        self.store.add_documents([*documents.values()], ids=[*documents], **kwargs)
        self._disown(replaced, kept={one.page_content.strip() for one in documents.values()})
        for id_, one in documents.items():
            self._owners.setdefault(one.page_content.strip(), set()).add(id_)
        return UpsertResponse(succeeded=[str(one.id) for one in named], failed=[])

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """Delete documents from the store, and forget the texts that no other document has.

        Raises:
            ValueError: no ids were given.
        """
        if ids is None:
            raise ValueError("name the ids of the documents to delete")
        found = self.get(ids)
        gone = [str(one.id) for one in found]
        if gone:
            self.store.delete(gone, **kwargs)
        self._disown(found, kept=set())
        return DeleteResponse(num_deleted=len(gone), succeeded=gone, num_failed=0, failed=[])

    def get(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """The documents that are there of these."""
        return self.store.get_by_ids(list(ids), **kwargs)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        found = self.store.similarity_search(query, **{"k": self.k, **kwargs})
        # the store may hold documents that came before this process
        know(self.chat.registry, found)
        return found

    def _disown(self, documents: Iterable[Document], *, kept: set[str]) -> None:
        """These documents no longer have their texts; forget those that nobody has."""
        stale = []
        for document in documents:
            text = document.page_content.strip()
            owners = self._owners.get(text, set())
            owners.discard(str(document.id))
            if not owners:
                self._owners.pop(text, None)
                if text not in kept and text:
                    stale.append(text)
        for text in stale:
            self.chat.registry.discard(text)
        with core_errors():
            forget(self.chat, [segment_id(text) for text in stale])


def _new_id() -> str:
    return str(uuid.uuid4())
