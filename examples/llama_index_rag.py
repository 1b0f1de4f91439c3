"""Documents through a LlamaIndex query engine: the prompt is the framework's, documents segments.

    python examples/llama_index_rag.py

No server: the demo model answers in this process (`Hypic(base_url=...)` asks a server instead).
First the documents are registered and warmed, with progress; a second time that costs nothing.
Then two answers, each with one JSON line about what its prompt cost.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from llama_index.core import ChatPromptTemplate
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

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


class Shelf(BaseRetriever):
    """Finds the nodes that have the most words of the question, the best first."""

    def __init__(self, nodes: list[TextNode]) -> None:
        self._nodes = nodes
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        words = set(query_bundle.query_str.lower().rstrip("?").split())
        found = [
            NodeWithScore(node=node, score=len(words & set(node.text.lower().split())))
            for node in self._nodes
        ]
        return sorted(found, key=lambda one: -one.get_score())[:3]


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
        engine = SegmentQueryEngine.from_args(Shelf(nodes), llm=llm, text_qa_template=PROMPT)
        for question in QUESTIONS:
            sys.stdout.write(f"{engine.query(question)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
