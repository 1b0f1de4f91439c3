"""The events of a request, and when a reply of it ends."""

from __future__ import annotations

from hypic_sdk.engine.batch import Sampled
from hypic_sdk.engine.cold_job import ColdJob
from hypic_sdk.engine.request import Reply
from hypic_sdk.errors import HypicError, NumericsError
from hypic_sdk.transport.messages import EngineReport, FinishReason, TokenEvent


def is_end_token(reply: Reply, token_id: int, eos_token_ids: frozenset[int]) -> bool:
    """Whether a drawn token ends the reply, and is no part of it."""
    sampling = reply.sampling
    if token_id in sampling.stop_token_ids:
        return True
    return token_id in eos_token_ids and not sampling.ignore_eos


def token_event(
    reply: Reply,
    sampled: Sampled | None,
    *,
    report: EngineReport | None = None,
) -> TokenEvent:
    """One step of a reply that goes well, or its end.

    Args:
        sampled: the token that came; none: no token that is part of the reply.
    """
    request = reply.request
    token_ids = () if sampled is None else (sampled.token_id,)
    logprobs = () if sampled is None or sampled.logprobs is None else (sampled.logprobs,)
    prompt_logprobs, request.prompt_logprobs = tuple(request.prompt_logprobs), []
    return TokenEvent(
        request.request_id,
        token_ids,
        logprobs,
        finish_reason=reply.finish,
        report=report,
        reply_index=reply.index,
        replies_left=len(request.open_replies),
        prompt_logprobs=prompt_logprobs,
    )


def error_event(
    request_id: str, error: HypicError, report: EngineReport | None = None
) -> TokenEvent:
    """The last event of a request that fails."""
    payload = {**error.to_payload(), "request_id": request_id}
    return TokenEvent(request_id, finish_reason=FinishReason.ERROR, report=report, error=payload)


def not_finite(reply: Reply) -> NumericsError:
    """The error of a reply whose logits hold a value that is not finite."""
    number = len(reply.token_ids)
    position = reply.request.num_prompt_tokens + number
    return NumericsError(
        f"the logits of token {number} of reply {reply.index}, at position {position}, are not "
        "finite",
        request_id=reply.request.request_id,
        reply_index=reply.index,
        position=position,
    )


def not_finite_segment(job: ColdJob) -> NumericsError:
    """The error of a segment whose entry would hold a value that is not finite."""
    return NumericsError(
        f"segment {job.segment_id} ({job.num_tokens} tokens) gave values that are not finite; it "
        "is not kept",
        segment_id=job.segment_id,
        num_tokens=job.num_tokens,
    )
