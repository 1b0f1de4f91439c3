"""From deltas and an engine's report to the shapes of the wire."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service.conversation import DOCUMENTS
from hypic_sdk.transport.messages import EngineReport, SegmentReport, TokenLogprobs
from hypic_sdk.wire.replies import (
    CompletionLogprobs,
    Logprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from hypic_sdk.wire.report import CacheReport, PromptTokensDetails, SegmentUse, Timing, Usage


def usage(report: EngineReport | None, *, prompt_tokens: int, completion_tokens: int) -> Usage:
    """Tokens of a request; without a report nothing was taken from the cache."""
    details = PromptTokensDetails()
    if report is not None:
        details = PromptTokensDetails(
            cached_tokens=report.cached_tokens,
            prefix_cached_tokens=report.chain_tokens,
            segment_cached_tokens=report.cached_tokens - report.chain_tokens,
            seam_tokens=report.seam_tokens,
            cache_write_tokens=report.cold_tokens,
        )
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=details,
    )


def cache_report(
    report: EngineReport | None, level: str, *, degraded: str | None = None
) -> CacheReport | None:
    """The report as the caller asked for it: `segments`, `summary` or `none`."""
    if report is None or level == "none":
        return None
    segments = None
    if level == "segments":
        segments = tuple(map(_segment_use, report.segments))
    return CacheReport(
        exactness="exact" if report.exact else "composed",
        prompt_tokens=report.prompt_tokens,
        cached_tokens=report.cached_tokens,
        prefix_tokens=report.chain_tokens,
        segment_tokens=report.segment_tokens,
        live_tokens=report.live_tokens,
        seam_tokens=report.seam_tokens,
        cold_tokens=report.cold_tokens,
        segments=segments,
        degraded=report.degraded or degraded,
        timing_ms=Timing(queue=report.queue_ms, cold=report.cold_ms, ttft=report.ttft_ms),
    )


def _segment_use(segment: SegmentReport) -> SegmentUse:
    is_document = segment.message_index == DOCUMENTS
    return SegmentUse(
        segment_id=segment.segment_id,
        part=None if is_document else (segment.message_index, segment.content_index),
        document=segment.content_index if is_document else None,
        status=segment.status.value,
        miss_reason=None if segment.miss_reason is None else segment.miss_reason.value,
        tier=segment.tier,
        start=segment.start,
        tokens=segment.num_tokens,
        reused_tokens=segment.reused_tokens,
        seam_tokens=segment.seam_tokens,
        cold_ms=segment.cold_ms,
    )


def chat_logprobs(
    logprobs: Sequence[TokenLogprobs], tokenizer: PromptTokenizer, num_top: int | None
) -> Logprobs | None:
    """Log-probabilities in the shape of chat replies."""
    if num_top is None:
        return None
    return Logprobs(
        content=[
            TokenLogprob(
                **_token(one.token_id, tokenizer),
                logprob=one.logprob,
                top_logprobs=tuple(
                    TopLogprob(**_token(token_id, tokenizer), logprob=logprob)
                    for token_id, logprob in one.top[:num_top]
                ),
            )
            for one in logprobs
        ]
    )


def _token(token_id: int, tokenizer: PromptTokenizer) -> dict[str, Any]:
    text = tokenizer.token_text(token_id)
    return {"token": text, "bytes": list(text.encode())}


def completion_logprobs(
    logprobs: Sequence[TokenLogprobs],
    tokenizer: PromptTokenizer,
    num_top: int | None,
    start: int,
    *,
    first_token_id: int | None = None,
) -> CompletionLogprobs | None:
    """Log-probabilities in the shape of plain completions; `start`: offset of the first token.

    Args:
        first_token_id: of a prompt, before all others, of which nothing can be told.
    """
    if num_top is None:
        return None
    token_ids = [one.token_id for one in logprobs]
    values: list[float | None] = [one.logprob for one in logprobs]
    best: list[dict[str, float] | None] = [
        {
            tokenizer.token_text(token_id): logprob
            # the token itself too, as OpenAI has it: up to one more than was asked for
            for token_id, logprob in (*one.top[:num_top], (one.token_id, one.logprob))
        }
        for one in logprobs
    ]
    if first_token_id is not None:
        token_ids, values, best = [first_token_id, *token_ids], [None, *values], [None, *best]
    tokens = [tokenizer.token_text(token_id) for token_id in token_ids]
    offsets = [start]
    for token in tokens:
        offsets.append(offsets[-1] + len(token))
    return CompletionLogprobs(
        tokens=tokens, token_logprobs=values, top_logprobs=best, text_offset=offsets[:-1]
    )


def prompt_logprobs(
    logprobs: Sequence[TokenLogprobs], tokenizer: PromptTokenizer
) -> PromptLogprobs:
    """Log-probabilities of a prompt's tokens, by vLLM's field; nothing of the first."""
    return [None, *(_alternatives(one, tokenizer) for one in logprobs)]


def _alternatives(one: TokenLogprobs, tokenizer: PromptTokenizer) -> dict[str, PromptLogprob]:
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(one.top, 1)}
    ranks[one.token_id] = one.rank
    told = {one.token_id: one.logprob, **dict(one.top)}
    return {
        str(token_id): PromptLogprob(
            logprob=logprob,
            rank=ranks[token_id],
            decoded_token=tokenizer.token_text(token_id),
        )
        for token_id, logprob in told.items()
    }


def call_id(request_id: str, reply_index: int, call_index: int) -> str:
    """The id of a call: the same whole and streamed, and nobody else's."""
    named = f"{request_id} {reply_index} {call_index}".encode()
    return f"call_{hashlib.sha256(named).hexdigest()[:24]}"
