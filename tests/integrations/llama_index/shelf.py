"""Retrievers for tests: they find what they are given, in the order of the next query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode


def nodes(*texts: str, **metadata: Any) -> list[TextNode]:
    return [TextNode(text=text, metadata={**metadata}) for text in texts]


class Shelf(BaseRetriever):
    """Finds its nodes; each query takes the next order of them, the last one for ever."""

    def __init__(self, *orders: Sequence[TextNode]) -> None:
        self.orders = list(orders)
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        order = self.orders.pop(0) if len(self.orders) > 1 else self.orders[0]
        return [NodeWithScore(node=node, score=1.0 / place) for place, node in enumerate(order, 1)]
