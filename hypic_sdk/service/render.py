"""From deltas and an engine's report to the shapes of the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service.conversation import DOCUMENTS
from hypic_sdk.transport.messages import EngineReport, SegmentReport, TokenLogprobs
from hypic_sdk.wire.replies import CompletionLogprobs, Logprobs, TokenLogprob, TopLogprob
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


def cache_report(report: EngineReport | None, level: str) -> CacheReport | None:
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
) -> CompletionLogprobs | None:
    """Log-probabilities in the shape of plain completions; `start`: offset of the first token."""
    if num_top is None:
        return None
    tokens = [tokenizer.token_text(one.token_id) for one in logprobs]
    offsets = [start]
    for token in tokens:
        offsets.append(offsets[-1] + len(token))
    return CompletionLogprobs(
        tokens=tokens,
        token_logprobs=[one.logprob for one in logprobs],
        top_logprobs=[
            {tokenizer.token_text(token_id): logprob for token_id, logprob in one.top[:num_top]}
            for one in logprobs
        ],
        text_offset=offsets[:-1],
    )
