"""`HypicSegmentTransformer`: documents registered and warmed when they are taken in."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.runnables.config import run_in_executor

from hypic_sdk.integrations.langchain.chat_model import ChatHypic
from hypic_sdk.integrations.langchain.registering import take_in_documents
from hypic_sdk.integrations.registering import Warm
from hypic_sdk.integrations.syncing import ProgressListener


@final
@dataclass(frozen=True, slots=True)
class HypicSegmentTransformer(BaseDocumentTransformer):
    """Registers documents and hands them on with their ids, as `HypicSegmentRetriever` does.

    A second time it costs nothing: what is warm stays warm.

    Args:
        on_progress: called with a `SyncReport` whenever something has changed, and at the end.
        cancel: set it, from any thread, to stop with RequestCancelled; what is done stays.
    """

    chat: ChatHypic
    warm: Warm = "wait"
    on_progress: ProgressListener | None = None
    cancel: threading.Event | None = None

    def transform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        """Copies of the documents that bear the id of their segment."""
        del kwargs  # core hands on whatever a pipeline was given
        return take_in_documents(
            self.chat,
            documents,
            warm=self.warm,
            on_progress=self.on_progress,
            cancel=self.cancel,
        )

    async def atransform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        """The same on a thread."""
        return await run_in_executor(None, partial(self.transform_documents, documents, **kwargs))
