"""`SegmentWarmPostprocessor`: retrieved nodes, registered and warmed while the prompt is made."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from hypic_sdk.errors import HypicError
from hypic_sdk.integrations.contract import register
from hypic_sdk.integrations.llama_index.llm import Hypic
from hypic_sdk.integrations.llama_index.nodes import ERROR, SEGMENT_ID, learn, marked, node_text


class SegmentWarmPostprocessor(BaseNodePostprocessor):
    """Hands on all nodes, known to `llm` as segments; it stands last in the chain.

    `warm`: whether they are also put into the server's pool: in the background while the prompt is
    made ("async"), before they are handed on ("wait"), or by the request that first asks of them
    ("none").  Nodes bear the id in `metadata["hypic_segment_id"]`, which no model reads.  If the
    server can not register them they are handed on all the same, with the error's code in
    `metadata["hypic_error"]`: the prompt carries their text.
    """

    llm: Hypic
    warm: Literal["none", "async", "wait"] = "async"

    @classmethod
    def class_name(cls) -> str:
        """The name in serialised forms."""
        return "SegmentWarmPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        texts = self._texts(nodes)
        try:
            create_many = self.llm.calls().segments.create_many
            segments = create_many(texts, warm=self.warm) if texts else ()
        except HypicError as error:
            return [marked(one, {ERROR: error.code}) for one in nodes]
        return self._with_ids(nodes, texts, segments)

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        calls = self.llm.async_calls()
        if calls is None:
            return await asyncio.to_thread(self._postprocess_nodes, nodes, query_bundle)
        texts = self._texts(nodes)
        try:
            segments = await calls.segments.create_many(texts, warm=self.warm) if texts else ()
        except HypicError as error:
            return [marked(one, {ERROR: error.code}) for one in nodes]
        return self._with_ids(nodes, texts, segments)

    def _texts(self, nodes: Sequence[NodeWithScore]) -> list[str]:
        return learn(self.llm.registry, [node_text(one.node) for one in nodes])

    def _with_ids(
        self, nodes: Sequence[NodeWithScore], texts: Sequence[str], segments: Sequence[Any]
    ) -> list[NodeWithScore]:
        ids = register(self.llm.registry, texts, segments)
        found = [(one, ids.get(node_text(one.node))) for one in nodes]
        return [marked(one, {SEGMENT_ID: id_} if id_ else {}) for one, id_ in found]
