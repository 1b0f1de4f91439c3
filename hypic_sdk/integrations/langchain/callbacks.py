"""`HypicCallbackHandler`: whatever a retriever finds is known, with no other change to an app."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import ToolMessage

from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.served import Served


@final
class HypicCallbackHandler(BaseCallbackHandler):
    """Notes the documents that retrievers and tools hand over, so that `ChatHypic` finds them.

    Pass it with the call: `config={"callbacks": [HypicCallbackHandler(chat)]}`.  Nothing is sent to
    a server here.
    """

    # in the caller's own turn: the prompt is made right afterwards
    run_inline = True

    def __init__(self, chat: Served) -> None:
        """`chat`: the model that is to find them."""
        # core would only log what goes wrong in a handler, at each call
        if not isinstance(chat, Served):
            raise TypeError(f"a ChatHypic or HypicLLM is wanted, got {type(chat).__name__}")
        self.registry = chat.registry

    def on_retriever_end(
        self,
        documents: Sequence[Document],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """Note what a retriever found."""
        for document in documents:
            self.registry.add(document.page_content)

    def on_tool_end(
        self, output: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """Note the documents that a tool hands over beside its text."""
        learn_artifact(self.registry, output)


def learn_artifact(registry: SegmentRegistry, message: Any) -> None:
    """Know the documents on a tool message's artifact."""
    artifact = message.artifact if isinstance(message, ToolMessage) else None
    for document in artifact if isinstance(artifact, list | tuple) else ():
        if isinstance(document, Document):
            registry.add(document.page_content)
