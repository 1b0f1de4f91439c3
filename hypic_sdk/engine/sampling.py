"""From logits to the next token of every reply in a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypic_sdk.engine.batch import Sampled
from hypic_sdk.engine.launched import Download, Drawn, DrawnLogprobs
from hypic_sdk.engine.request import Reply
from hypic_sdk.kernels.sample.edits import LogitEdits
from hypic_sdk.kernels.sample.op import adjust, logprobs, sample
from hypic_sdk.kernels.upload import upload
from hypic_sdk.transport.messages import TokenLogprobs

NO_EDITS = LogitEdits()


def sample_replies(
    logits_RV: torch.Tensor, replies: Sequence[Reply], edits: LogitEdits = NO_EDITS
) -> tuple[Sampled, ...]:
    """`draw_replies`, waited for."""
    return draw_replies(logits_RV, replies, edits).read()


def draw_replies(
    logits_RV: torch.Tensor, replies: Sequence[Reply], edits: LogitEdits = NO_EDITS
) -> Drawn:
    """Draw one token for each reply, from its own seed and its length.

    Args:
        logits_RV: [R, vocab], a row for each reply.
        edits: what is done to them first; log-probabilities are told of what came.
    """
    params = [reply.sampling for reply in replies]
    drawn = sample(
        adjust(logits_RV, edits),
        torch.tensor([p.temperature for p in params]),
        torch.tensor([p.min_p for p in params]),
        torch.tensor([p.top_k for p in params]),
        torch.tensor([p.top_p for p in params]),
        torch.tensor([reply.seed for reply in replies]),
        torch.tensor([reply.num_drawn for reply in replies]),
    )
    # an edit may hide a value that is not finite, or leave nothing: two things to be told apart
    ok = drawn.ok if edits.is_empty else logits_RV.amax(1).isfinite()
    columns = torch.stack((drawn.ids, ok.long(), drawn.ok.long()))
    told = drawn_logprobs(logits_RV, drawn.ids, [p.logprobs for p in params])
    return Drawn(drawn.ids, Download(columns), told)


def drawn_logprobs(
    logits_RV: torch.Tensor, ids_R: torch.Tensor, wanted: Sequence[int | None]
) -> DrawnLogprobs | None:
    """Log-probabilities for the rows that want them, each with as many best as it wants."""
    rows = [row for row, count in enumerate(wanted) if count is not None]
    if not rows:
        return None
    counts = [count for count in wanted if count is not None]
    index = upload(rows, logits_RV.device)
    ids = ids_R[index]
    found = logprobs(logits_RV[index], ids, min(max(counts), logits_RV.shape[1]))
    return DrawnLogprobs(
        rows,
        [min(count, found.top.shape[1]) for count in counts],
        Download(torch.cat((ids[:, None], found.ranks[:, None], found.top_ids), 1)),
        Download(torch.cat((found.chosen[:, None], found.top), 1)),
    )


def token_logprobs(
    logits_RV: torch.Tensor, ids_R: torch.Tensor, wanted: Sequence[int | None]
) -> list[TokenLogprobs | None]:
    """`drawn_logprobs`, waited for; none for the rows that want none."""
    found = drawn_logprobs(logits_RV, ids_R, wanted)
    told = {} if found is None else found.read()
    return [told.get(row) for row in range(len(wanted))]
