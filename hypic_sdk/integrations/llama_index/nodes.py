"""Nodes as texts: what the model reads of them, and what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore

Node = TypeVar("Node", bound=BaseNode)


def node_text(node: BaseNode) -> str:
    """What the model reads of a node, without outer whitespace.

    A node's own hash changes with metadata that the model never sees; this does not.
    """
    return node.get_content(metadata_mode=MetadataMode.LLM).strip()


def marked(found: NodeWithScore, marks: Mapping[str, str]) -> NodeWithScore:
    """A copy whose node bears marks that neither a model nor an embedding reads."""
    if not marks:
        return found
    return NodeWithScore(node=_marked(found.node, marks), score=found.score)


def _marked(node: Node, marks: Mapping[str, str]) -> Node:
    """The store may hand out its own objects, so they are left as they are."""
    unseen = dict.fromkeys(marks)
    return node.model_copy(
        update={
            "metadata": {**node.metadata, **marks},
            "excluded_llm_metadata_keys": [
                *dict.fromkeys([*node.excluded_llm_metadata_keys, *unseen])
            ],
            "excluded_embed_metadata_keys": [
                *dict.fromkeys([*node.excluded_embed_metadata_keys, *unseen])
            ],
        }
    )
