"""Our errors as the ones of LangChain's core, on which its agents and fallbacks branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from langchain_core.exceptions import (
    ContextOverflowError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelError,
    ModelInvalidRequestError,
    ModelNotFoundError,
    ModelPermissionDeniedError,
    ModelRateLimitError,
    ModelTimeoutError,
)

from hypic_sdk.errors import (
    CapacityError,
    ConnectionFailed,
    DeadlineExceeded,
    HypicError,
    NotAuthenticated,
    NotPermitted,
    PromptTooLong,
    QueueFull,
    RequestError,
    RequestTimeout,
    UnknownModel,
)

# the first class that fits, so a class stands before its parent
_CORE: Mapping[type[HypicError], type[ModelError]] = MappingProxyType(
    {
        PromptTooLong: ContextOverflowError,
        UnknownModel: ModelNotFoundError,
        NotAuthenticated: ModelAuthenticationError,
        NotPermitted: ModelPermissionDeniedError,
        DeadlineExceeded: ModelTimeoutError,
        RequestError: ModelInvalidRequestError,
        QueueFull: ModelRateLimitError,
        CapacityError: ModelAPIError,
        RequestTimeout: ModelTimeoutError,
        ConnectionFailed: ModelConnectionError,
    }
)


@contextmanager
def core_errors() -> Iterator[None]:
    """Raise core's error in place of ours, which stays its `__cause__`."""
    try:
        yield
    except HypicError as error:
        fitting = (core for ours, core in _CORE.items() if isinstance(error, ours))
        core = next(fitting, ModelAPIError)(f"{error.code}: {error.message}")
        # true of this error: a pool that can never hold the request is no passing failure
        core.is_retryable = error.retryable
        raise core from error
