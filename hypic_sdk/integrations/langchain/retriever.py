"""`HypicSegmentRetriever`: any retriever, its documents registered and warmed on the way."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig

from hypic_sdk.integrations.langchain.chat_model import ChatHypic
from hypic_sdk.integrations.langchain.registering import aregister_documents, register_documents
from hypic_sdk.integrations.registering import Warm


class HypicSegmentRetriever(BaseRetriever):
    """Hands on what `retriever` finds, known to `chat` as segments.

    `warm`: whether the documents are also put into the server's pool: in the background while the
    prompt is made ("async"), before they are handed on ("wait"), or by the request that first asks
    of them ("none").  Documents bear the id in `metadata["hypic_segment_id"]`.  If the server can
    not register them they are handed on all the same, with the error's code in
    `metadata["hypic_error"]`: the prompt carries their text.

    `k`, here or in a call: hand on so many at most; the wrapped retriever is asked for it too.
    """

    retriever: Runnable[str, list[Document]]
    chat: ChatHypic
    warm: Warm = "async"
    k: int | None = None

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        config = RunnableConfig(callbacks=run_manager.get_child())
        limit = self.k if k is None else k
        documents = self.retriever.invoke(query, config, **self._asked(limit, kwargs))
        return register_documents(self.chat, documents[:limit], warm=self.warm)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        config = RunnableConfig(callbacks=run_manager.get_child())
        limit = self.k if k is None else k
        documents = await self.retriever.ainvoke(query, config, **self._asked(limit, kwargs))
        return await aregister_documents(self.chat, documents[:limit], warm=self.warm)

    def _asked(self, limit: int | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """A retriever of core's drops arguments it does not know; another runnable may not."""
        if limit is None or not isinstance(self.retriever, BaseRetriever):
            return kwargs
        return {**kwargs, "k": limit}
