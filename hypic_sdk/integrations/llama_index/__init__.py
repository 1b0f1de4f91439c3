"""LlamaIndex: `Hypic`, and documents that become segments while the prompt stays as it is."""

from __future__ import annotations

try:
    import llama_index.core  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        "hypic_sdk.integrations.llama_index needs llama-index-core: "
        "pip install 'hypic-sdk[llama-index]'"
    ) from error

from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.llama_index.llm import Hypic
from hypic_sdk.integrations.llama_index.postprocessor import SegmentWarmPostprocessor
from hypic_sdk.integrations.llama_index.query_engine import SegmentQueryEngine
from hypic_sdk.integrations.llama_index.register import SegmentRegister
from hypic_sdk.integrations.llama_index.synthesizer import SegmentSynthesizer
from hypic_sdk.integrations.syncing import SyncReport

__all__ = [
    "Hypic",
    "SegmentQueryEngine",
    "SegmentRegister",
    "SegmentRegistry",
    "SegmentSynthesizer",
    "SegmentWarmPostprocessor",
    "SyncReport",
]
