"""`HypicSegmentRetriever`: any retriever, its documents registered and warmed on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import run_in_executor

from hypic_sdk.errors import HypicError
from hypic_sdk.integrations.contract import register
from hypic_sdk.integrations.langchain.chat_model import ChatHypic

SEGMENT_ID = "hypic_segment_id"
ERROR = "hypic_error"


class HypicSegmentRetriever(BaseRetriever):
    """Hands on what `retriever` finds, known to `chat` as segments.

    `warm`: whether the documents are also put into the server's pool: in the background while the
    prompt is made ("async"), before they are handed on ("wait"), or by the request that first asks
    of them ("none").  Documents bear the id in `metadata["hypic_segment_id"]`.  If the server can
    not register them they are handed on all the same, with the error's code in
    `metadata["hypic_error"]`: the prompt carries their text.
    """

    retriever: Runnable[str, list[Document]]
    chat: ChatHypic
    warm: Literal["none", "async", "wait"] = "async"

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        config = RunnableConfig(callbacks=run_manager.get_child())
        return self._registered(self.retriever.invoke(query, config, **kwargs))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        config = RunnableConfig(callbacks=run_manager.get_child())
        documents = await self.retriever.ainvoke(query, config, **kwargs)
        calls, texts = self.chat.async_calls(), _texts(self.chat, documents)
        if calls is None:
            return await run_in_executor(None, self._registered, documents)
        try:
            segments = await calls.segments.create_many(texts, warm=self.warm) if texts else ()
        except HypicError as error:
            return [_stamped(one, {ERROR: error.code}) for one in documents]
        return self._with_ids(documents, texts, segments)

    def _registered(self, documents: Sequence[Document]) -> list[Document]:
        texts = _texts(self.chat, documents)
        try:
            create_many = self.chat.calls().segments.create_many
            segments = create_many(texts, warm=self.warm) if texts else ()
        except HypicError as error:
            return [_stamped(one, {ERROR: error.code}) for one in documents]
        return self._with_ids(documents, texts, segments)

    def _with_ids(
        self, documents: Sequence[Document], texts: Sequence[str], segments: Sequence[Any]
    ) -> list[Document]:
        ids = register(self.chat.registry, texts, segments)
        return [
            _stamped(
                one, {SEGMENT_ID: ids[text]} if (text := one.page_content.strip()) in ids else {}
            )
            for one in documents
        ]


def _texts(chat: ChatHypic, documents: Sequence[Document]) -> list[str]:
    """What is long enough to be a segment, each once; known by its text from now on."""
    known = [chat.registry.add(document.page_content) for document in documents]
    return list(dict.fromkeys(one.text for one in known if one is not None))


def _stamped(document: Document, marks: dict[str, str]) -> Document:
    """A copy: the caller's store may hand out its own objects."""
    return document.model_copy(update={"metadata": {**document.metadata, **marks}})
