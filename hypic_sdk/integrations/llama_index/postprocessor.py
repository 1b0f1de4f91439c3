"""`SegmentWarmPostprocessor`: retrieved nodes, registered and warmed while the prompt is made."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from hypic_sdk.integrations.llama_index.llm import Hypic
from hypic_sdk.integrations.llama_index.nodes import marked, node_text
from hypic_sdk.integrations.registering import Registered, Warm, aregister, register


class SegmentWarmPostprocessor(BaseNodePostprocessor):
    """Hands on all nodes, known to `llm` as segments; it stands last in the chain.

    `warm`: whether they are also put into the server's pool: in the background while the prompt is
    made ("async"), before they are handed on ("wait"), or by the request that first asks of them
    ("none").  Nodes bear the id in `metadata["hypic_segment_id"]`, which no model reads.  If the
    server can not register them they are handed on all the same, with the error's code in
    `metadata["hypic_error"]`: the prompt carries their text.
    """

    llm: Hypic
    warm: Warm = "async"

    @classmethod
    def class_name(cls) -> str:
        """The name in serialised forms."""
        return "SegmentWarmPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return _told(nodes, register(self.llm, _texts(nodes), warm=self.warm))

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if self.llm.async_calls() is None:
            return await asyncio.to_thread(self._postprocess_nodes, nodes, query_bundle)
        return _told(nodes, await aregister(self.llm, _texts(nodes), warm=self.warm))


def _texts(nodes: Sequence[NodeWithScore]) -> list[str]:
    return [node_text(one.node) for one in nodes]


def _told(nodes: Sequence[NodeWithScore], told: Registered) -> list[NodeWithScore]:
    return [marked(one, told.marks(node_text(one.node))) for one in nodes]
