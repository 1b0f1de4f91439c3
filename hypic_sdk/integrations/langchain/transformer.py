"""`HypicSegmentTransformer`: documents registered and warmed when they are taken in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from langchain_core.documents import BaseDocumentTransformer, Document

from hypic_sdk.integrations.langchain.chat_model import ChatHypic
from hypic_sdk.integrations.langchain.registering import (
    OnProgress,
    Warm,
    aregister_documents,
    register_documents,
)


@final
@dataclass(frozen=True, slots=True)
class HypicSegmentTransformer(BaseDocumentTransformer):
    """Registers documents and hands them on with their ids, as `HypicSegmentRetriever` does.

    A second time it costs nothing: what is warm stays warm.  `on_progress` is called with the warm
    job whenever it has changed; it needs `warm="wait"` and a call that waits.
    """

    chat: ChatHypic
    warm: Warm = "wait"
    on_progress: OnProgress | None = None

    def transform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        """Copies of the documents that bear the id of their segment."""
        del kwargs  # core hands on whatever a pipeline was given
        return register_documents(
            self.chat, documents, warm=self.warm, on_progress=self.on_progress
        )

    async def atransform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        """The same on an event loop; progress is not told."""
        del kwargs
        return await aregister_documents(self.chat, documents, warm=self.warm)
