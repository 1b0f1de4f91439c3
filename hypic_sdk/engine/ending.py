"""The events of a request, and when it ends."""

from __future__ import annotations

from hypic_sdk.engine.batch import Sampled
from hypic_sdk.engine.request import Request
from hypic_sdk.errors import HypicError
from hypic_sdk.transport.messages import EngineReport, FinishReason, TokenEvent


def finish_of(
    request: Request, token_id: int, eos_token_ids: frozenset[int]
) -> FinishReason | None:
    """Why the request ends with this token, which is not in its reply yet; none: it goes on."""
    sampling = request.message.sampling
    if token_id in sampling.stop_token_ids:
        return FinishReason.STOP
    if token_id in eos_token_ids and not sampling.ignore_eos:
        return FinishReason.STOP
    if len(request.reply) + 1 >= request.max_tokens:
        return FinishReason.LENGTH
    return None


def token_event(
    request: Request,
    sampled: Sampled | None,
    *,
    finish: FinishReason | None = None,
    report: EngineReport | None = None,
) -> TokenEvent:
    """One step of a request that goes well; the end token is not told."""
    if sampled is None or finish is FinishReason.STOP:
        return TokenEvent(request.request_id, finish_reason=finish, report=report)
    logprobs = () if sampled.logprobs is None else (sampled.logprobs,)
    return TokenEvent(
        request.request_id, (sampled.token_id,), logprobs, finish_reason=finish, report=report
    )


def error_event(
    request_id: str, error: HypicError, report: EngineReport | None = None
) -> TokenEvent:
    """The last event of a request that fails."""
    payload = {**error.to_payload(), "request_id": request_id}
    return TokenEvent(request_id, finish_reason=FinishReason.ERROR, report=report, error=payload)
