"""Position-independent caching of documents for hybrid-attention language models.

The public names, each found in its owning module at first use (PEP 562): whoever only builds ids,
catches errors or talks to a server never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hypic_sdk.version import __version__

if TYPE_CHECKING:
    from hypic_sdk.client import AsyncHypic, Hypic, Prompt, Segment
    from hypic_sdk.config import (
        Determinism,
        EngineConfig,
        ReuseConfig,
        ReuseMode,
        SchedulerConfig,
        SeamRule,
        SeamWidths,
        ShadowConfig,
        StoreConfig,
    )
    from hypic_sdk.errors import (
        BodyTooLarge,
        CapacityError,
        ConfigError,
        ConnectionFailed,
        DeadlineExceeded,
        EmptyPrompt,
        ExternalIdConflict,
        HypicError,
        InvalidGrammar,
        JobNotFound,
        ModelFileError,
        NotAuthenticated,
        NotPermitted,
        NumericsError,
        PinBudgetExhausted,
        PoolExhausted,
        PromptTooLong,
        QueueFull,
        QuotaExceeded,
        RequestCancelled,
        RequestError,
        RequestRejected,
        RequestTimeout,
        SegmentNotFound,
        SegmentsMissing,
        SegmentTextMismatch,
        TransferFailed,
        UnknownModel,
        UnsupportedError,
        UnsupportedOption,
        WorkerError,
        WorkerLost,
    )
    from hypic_sdk.matching import AutoSegmenter
    from hypic_sdk.offline import LocalHypic
    from hypic_sdk.prompt.segment import segment_id

_OWNERS = {
    "AsyncHypic": "hypic_sdk.client",
    "AutoSegmenter": "hypic_sdk.matching",
    "BodyTooLarge": "hypic_sdk.errors",
    "CapacityError": "hypic_sdk.errors",
    "ConfigError": "hypic_sdk.errors",
    "ConnectionFailed": "hypic_sdk.errors",
    "DeadlineExceeded": "hypic_sdk.errors",
    "Determinism": "hypic_sdk.config",
    "EmptyPrompt": "hypic_sdk.errors",
    "EngineConfig": "hypic_sdk.config",
    "ExternalIdConflict": "hypic_sdk.errors",
    "Hypic": "hypic_sdk.client",
    "HypicError": "hypic_sdk.errors",
    "InvalidGrammar": "hypic_sdk.errors",
    "JobNotFound": "hypic_sdk.errors",
    "LocalHypic": "hypic_sdk.offline",
    "ModelFileError": "hypic_sdk.errors",
    "NotAuthenticated": "hypic_sdk.errors",
    "NotPermitted": "hypic_sdk.errors",
    "NumericsError": "hypic_sdk.errors",
    "PinBudgetExhausted": "hypic_sdk.errors",
    "PoolExhausted": "hypic_sdk.errors",
    "Prompt": "hypic_sdk.client",
    "PromptTooLong": "hypic_sdk.errors",
    "QueueFull": "hypic_sdk.errors",
    "QuotaExceeded": "hypic_sdk.errors",
    "RequestCancelled": "hypic_sdk.errors",
    "RequestError": "hypic_sdk.errors",
    "RequestRejected": "hypic_sdk.errors",
    "RequestTimeout": "hypic_sdk.errors",
    "ReuseConfig": "hypic_sdk.config",
    "ReuseMode": "hypic_sdk.config",
    "SchedulerConfig": "hypic_sdk.config",
    "SeamRule": "hypic_sdk.config",
    "SeamWidths": "hypic_sdk.config",
    "Segment": "hypic_sdk.client",
    "SegmentNotFound": "hypic_sdk.errors",
    "SegmentTextMismatch": "hypic_sdk.errors",
    "SegmentsMissing": "hypic_sdk.errors",
    "ShadowConfig": "hypic_sdk.config",
    "StoreConfig": "hypic_sdk.config",
    "TransferFailed": "hypic_sdk.errors",
    "UnknownModel": "hypic_sdk.errors",
    "UnsupportedError": "hypic_sdk.errors",
    "UnsupportedOption": "hypic_sdk.errors",
    "WorkerError": "hypic_sdk.errors",
    "WorkerLost": "hypic_sdk.errors",
    "segment_id": "hypic_sdk.prompt.segment",
}

# written out, as type checkers and editors read it; tests/test_public_api.py compares the lists
__all__ = [
    "AsyncHypic",
    "AutoSegmenter",
    "BodyTooLarge",
    "CapacityError",
    "ConfigError",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Determinism",
    "EmptyPrompt",
    "EngineConfig",
    "ExternalIdConflict",
    "Hypic",
    "HypicError",
    "InvalidGrammar",
    "JobNotFound",
    "LocalHypic",
    "ModelFileError",
    "NotAuthenticated",
    "NotPermitted",
    "NumericsError",
    "PinBudgetExhausted",
    "PoolExhausted",
    "Prompt",
    "PromptTooLong",
    "QueueFull",
    "QuotaExceeded",
    "RequestCancelled",
    "RequestError",
    "RequestRejected",
    "RequestTimeout",
    "ReuseConfig",
    "ReuseMode",
    "SchedulerConfig",
    "SeamRule",
    "SeamWidths",
    "Segment",
    "SegmentNotFound",
    "SegmentTextMismatch",
    "SegmentsMissing",
    "ShadowConfig",
    "StoreConfig",
    "TransferFailed",
    "UnknownModel",
    "UnsupportedError",
    "UnsupportedOption",
    "WorkerError",
    "WorkerLost",
    "__version__",
    "segment_id",
]


def __getattr__(name: str) -> Any:
    if name not in _OWNERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_OWNERS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
