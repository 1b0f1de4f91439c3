"""LangChain: `ChatHypic`, and documents that become segments while the prompt stays as it is."""

from __future__ import annotations

try:
    import langchain_core  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        "hypic_sdk.integrations.langchain needs langchain-core: pip install 'hypic-sdk[langchain]'"
    ) from error

from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.langchain.chain import create_segment_documents_chain
from hypic_sdk.integrations.langchain.chat_model import ChatHypic
from hypic_sdk.integrations.langchain.retriever import HypicSegmentRetriever

__all__ = [
    "ChatHypic",
    "HypicSegmentRetriever",
    "SegmentRegistry",
    "create_segment_documents_chain",
]
