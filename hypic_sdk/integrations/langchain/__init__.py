"""LangChain: `ChatHypic`, and documents that become segments while the prompt stays as it is."""

from __future__ import annotations

from typing import Any

try:
    import langchain_core  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        "hypic_sdk.integrations.langchain needs langchain-core: pip install 'hypic-sdk[langchain]'"
    ) from error

from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.langchain.callbacks import HypicCallbackHandler
from hypic_sdk.integrations.langchain.chain import create_segment_documents_chain
from hypic_sdk.integrations.langchain.chat_model import ChatHypic
from hypic_sdk.integrations.langchain.document_index import HypicSegmentIndex
from hypic_sdk.integrations.langchain.llm import HypicLLM
from hypic_sdk.integrations.langchain.placeholder import SegmentsPlaceholder
from hypic_sdk.integrations.langchain.retriever import HypicSegmentRetriever
from hypic_sdk.integrations.langchain.transformer import HypicSegmentTransformer
from hypic_sdk.integrations.syncing import SyncReport

__all__ = [
    "ChatHypic",
    "HypicCallbackHandler",
    "HypicLLM",
    "HypicSegmentIndex",
    "HypicSegmentRetriever",
    "HypicSegmentTransformer",
    "SegmentRegistry",
    "SegmentsPlaceholder",
    "SyncReport",
    "create_segment_documents_chain",
]


def __getattr__(name: str) -> Any:
    # agents need more than core, so `HypicSegmentMiddleware` is loaded for those who ask for it
    if name != "HypicSegmentMiddleware":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hypic_sdk.integrations.langchain.middleware import HypicSegmentMiddleware

    return HypicSegmentMiddleware
