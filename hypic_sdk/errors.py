"""Every way a call can fail.

HypicError
  ConfigError           the operator: settings, or a model folder, that cannot work          500
    ModelFileError      a checkpoint, tokenizer or template that is missing, torn or unknown  500
  RequestError          the caller                                                           400
    PromptTooLong         more tokens than the model or the pool can ever take               400
    EmptyPrompt           nothing to answer                                                  400
    SegmentNotFound       no such segment id                                                 404
    SegmentTextMismatch   text beside an id that belongs to other text                       409
    SegmentsMissing       a prompt names segments whose text is not here                     422
    ExternalIdConflict    an external id that names another text                             409
    QuotaExceeded         a tenant has as much as it may have; waiting does not help         409
    PinBudgetExhausted    as much is pinned as may be                                        409
    UnknownModel          no such model                                                      404
    UnsupportedOption     an option that this server does not offer                          400
    InvalidGrammar        a grammar that no reply can be held to                             400
    RequestRejected       it was there each time that an engine died                         400
    RequestCancelled      the caller went away                                               499
    DeadlineExceeded      the caller's own deadline passed                                   408
    NotAuthenticated      no key, or one that is not known here                              401
    NotPermitted          not from there: a foreign host name or origin                      403
    JobNotFound           no such warm job                                                   404
    BodyTooLarge          more bytes than one request may have                               413
  UnsupportedError      nobody now: no such family, model or op on this machine              501
  CapacityError         wait                                                                 503
    PoolExhausted         can not fit now (retryable) or never (then not retryable)          503
    QueueFull             too many requests wait                                             429
  WorkerError           try again                                                            502
    WorkerLost            the worker that held the request is gone                           502
    TransferFailed        an entry did not come from another worker, or not whole            502
  ConnectionFailed      client side only: no reply came                                      502
    RequestTimeout        client side only: none came in time                                504
  NumericsError         us: a finite check or a composition law broke                        500

Code, HTTP status and whether a retry makes sense are class attributes; numbers are fields in
`details`, not only text.  `to_payload` and `from_payload` carry an error through JSON, so a client
raises the class that the engine raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar


class HypicError(Exception):
    """The root: a message for people, a code for programs, details as numbers."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    retryable: bool = False

    def __init__(self, message: str, *, request_id: str | None = None, **details: Any) -> None:
        """A detail called `retryable` is true of this error and overrules its class."""
        super().__init__(message)
        self.message = message
        self.request_id = request_id
        self.details: dict[str, Any] = {}
        self._add_details(details)

    def _add_details(self, details: Mapping[str, Any]) -> None:
        self.details.update(details)
        if isinstance(details.get("retryable"), bool):
            self.retryable = details["retryable"]

    def to_payload(self) -> dict[str, Any]:
        """The error as JSON-ready values: code, message, request id, details."""
        return {
            "code": self.code,
            "message": self.message,
            "request_id": self.request_id,
            "details": dict(self.details),
        }


class ConfigError(HypicError):
    """Settings that cannot work; the operator must change them."""

    code = "config_error"


class ModelFileError(ConfigError):
    """A checkpoint, tokenizer or template that is missing, torn, unknown or of wrong shape."""

    code = "model_file_error"


class RequestError(HypicError):
    """The caller must change the request."""

    code = "invalid_request"
    http_status = 400


class PromptTooLong(RequestError):
    """Prompt plus answer is more than the model or the pool can ever take."""

    code = "context_length_exceeded"


class EmptyPrompt(RequestError):
    """The prompt has no tokens to answer."""

    code = "empty_prompt"


class SegmentNotFound(RequestError):
    """No segment is registered under that id, and no text came with it."""

    code = "segment_not_found"
    http_status = 404


class SegmentTextMismatch(RequestError):
    """The text beside a segment id is not the text the id was made from."""

    code = "segment_text_mismatch"
    http_status = 409


class SegmentsMissing(RequestError):
    """A prompt names segments that are not registered, and no text came with them.

    `details["segment_ids"]` lists them all: send their texts along, or register them again.
    """

    code = "segment_missing"
    http_status = 422


class ExternalIdConflict(RequestError):
    """The external id names another text; `replace_external` gives it to this one."""

    code = "external_id_conflict"
    http_status = 409


class QuotaExceeded(RequestError):
    """The tenant has as much as it may have; `details` hold both numbers.  Delete something."""

    code = "quota_exceeded"
    http_status = 409


class PinBudgetExhausted(RequestError):
    """As much is pinned as may be; `details` hold both numbers in bytes.  Unpin something."""

    code = "pin_budget_exhausted"
    http_status = 409


class UnknownModel(RequestError):
    """No model of that name is served here."""

    code = "model_not_found"
    http_status = 404


class UnsupportedOption(RequestError):
    """An option, or a value of one, that this engine does not offer."""

    code = "unsupported_option"


class InvalidGrammar(RequestError):
    """A grammar that does not compile, takes too much to, or leaves no token to go on with."""

    code = "invalid_grammar"


class RequestRejected(RequestError):
    """Engines died with it in the batch: two, the second with nothing else there, or three."""

    code = "request_rejected"


class RequestCancelled(RequestError):
    """The caller cancelled, or went away."""

    code = "request_cancelled"
    http_status = 499


class DeadlineExceeded(RequestError):
    """The request's own deadline passed before it ended."""

    code = "deadline_exceeded"
    http_status = 408


class NotAuthenticated(RequestError):
    """The call bears no key, or one that is not known here."""

    code = "authentication_failed"
    http_status = 401


class NotPermitted(RequestError):
    """The call came by a way that is not allowed: a foreign host name, another site's page."""

    code = "permission_denied"
    http_status = 403


class JobNotFound(RequestError):
    """No warm job of that id, or it ended long ago."""

    code = "job_not_found"
    http_status = 404


class BodyTooLarge(RequestError):
    """A body has more bytes than one request may have."""

    code = "body_too_large"
    http_status = 413


class UnsupportedError(HypicError):
    """No such family, model or op here; nobody can act on it now."""

    code = "unsupported_capability"
    http_status = 501


class CapacityError(HypicError):
    """No room now; wait and try again."""

    code = "overloaded"
    http_status = 503
    retryable = True


class PoolExhausted(CapacityError):
    """A pool can not hold what the request needs; `details` holds both numbers in bytes."""

    code = "pool_exhausted"


class QueueFull(CapacityError):
    """As many requests wait as may wait."""

    code = "queue_full"
    http_status = 429


class WorkerError(HypicError):
    """The worker failed; another try may succeed."""

    code = "worker_error"
    http_status = 502
    retryable = True


class WorkerLost(WorkerError):
    """The worker that held the request is gone."""

    code = "worker_lost"


class TransferFailed(WorkerError):
    """An entry did not come from another worker, or not whole."""

    code = "transfer_failed"


class ConnectionFailed(HypicError):
    """Raised by clients: no reply came, or it broke off."""

    code = "connection_failed"
    http_status = 502
    retryable = True


class RequestTimeout(ConnectionFailed):
    """Raised by clients: no reply came within the time that the call gave it."""

    code = "request_timeout"
    http_status = 504


class NumericsError(HypicError):
    """Our fault: a value was not finite, or a composition law broke."""

    code = "numerics_error"


def walk(root: type[HypicError] = HypicError) -> Iterator[type[HypicError]]:
    """Every error class, the root first; what an adapter makes of one has no code of its own."""
    yield root
    for child in root.__subclasses__():
        if "code" in vars(child):
            yield from walk(child)


def from_payload(payload: Mapping[str, Any]) -> HypicError:
    """The error that `to_payload` described; an unknown code becomes the root class."""
    by_code = {error_class.code: error_class for error_class in walk()}
    error_class = by_code.get(str(payload.get("code")), HypicError)
    request_id = payload.get("request_id")
    error = error_class(
        str(payload.get("message", "unknown error")),
        request_id=None if request_id is None else str(request_id),
    )
    details = payload.get("details")
    # a reply from elsewhere may hold anything here
    if isinstance(details, Mapping):
        error._add_details({str(name): value for name, value in details.items()})
    return error
