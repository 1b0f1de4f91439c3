"""Our errors as those of LangChain's core as well, on which its agents and fallbacks branch."""

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


def of_both_kinds(ours: type[HypicError]) -> type[HypicError]:
    """A class that is both, ours and the one of core that fits it; each time the same class."""
    made = (one for one in ours.__subclasses__() if issubclass(one, ModelError))
    found = next(made, None)
    if found is not None:
        return found
    fitting = (core for one, core in _CORE.items() if issubclass(ours, one))
    return type(ours.__name__, (ours, next(fitting, ModelAPIError)), {"__doc__": ours.__doc__})


@contextmanager
def core_errors() -> Iterator[None]:
    """Raise, in place of our error, one that is core's as well; ours is its `__cause__`."""
    try:
        yield
    except HypicError as error:
        if isinstance(error, ModelError):
            raise
        told = of_both_kinds(type(error))(
            error.message, request_id=error.request_id, **error.details
        )
        # true of this error: a pool that can never hold the request is no passing failure
        told.is_retryable = error.retryable  # type: ignore[attr-defined]
        raise told from error
