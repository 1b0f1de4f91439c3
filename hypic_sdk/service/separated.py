"""Replies in the shape of the reference's `/generate`."""

from __future__ import annotations

from typing import final

from hypic_sdk.service.growing_reply import GrowingReply
from hypic_sdk.service.reply import ReplyDelta
from hypic_sdk.service.shapes import report_of, usage_of
from hypic_sdk.wire.generate import GenerateReply, MetaInfo


def whole_generate(reply: GrowingReply) -> GenerateReply:
    """A reply that is over."""
    reply.ending()
    return _reply(reply)


@final
class GenerateChunks:
    """Chunks of one reply; each says the whole text so far, as the reference's do."""

    def __init__(self, reply: GrowingReply) -> None:
        self._reply = reply

    def __call__(self, delta: ReplyDelta) -> list[GenerateReply]:
        """The chunk of the next delta."""
        return [_reply(self._reply)]


def _reply(reply: GrowingReply) -> GenerateReply:
    usage, report = usage_of(reply), report_of(reply)
    finish = None
    if reply.finish_reason is not None:
        finish = {"type": reply.finish_reason, "length": reply.num_tokens}
    return GenerateReply(
        text=reply.text,
        output_ids=list(reply.token_ids),
        meta_info=MetaInfo(
            id=reply.prepared.request_id,
            finish_reason=finish,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.prompt_tokens_details.cached_tokens,
            hypic=None if report is None else report.model_dump(),
        ),
    )
