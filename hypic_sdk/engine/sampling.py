"""From logits to the next token of every reply in a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypic_sdk.engine.batch import Sampled
from hypic_sdk.engine.request import Reply
from hypic_sdk.kernels.sample.edits import LogitEdits
from hypic_sdk.kernels.sample.op import adjust, logprobs, sample
from hypic_sdk.transport.messages import TokenLogprobs

NO_EDITS = LogitEdits()


def sample_replies(
    logits_RV: torch.Tensor, replies: Sequence[Reply], edits: LogitEdits = NO_EDITS
) -> tuple[Sampled, ...]:
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
        torch.tensor([len(reply.token_ids) for reply in replies]),
    )
    # an edit may hide a value that is not finite, or leave nothing: two things to be told apart
    ok = drawn.ok if edits.is_empty else logits_RV.amax(1).isfinite()
    told = token_logprobs(logits_RV, drawn.ids, [p.logprobs for p in params])
    # one copy to the host, so one wait
    columns = torch.stack((drawn.ids, ok.long(), drawn.ok.long())).tolist()
    return tuple(
        Sampled(token_id, bool(is_finite), logprob, is_stuck=bool(is_finite and not is_usable))
        for token_id, is_finite, is_usable, logprob in zip(*columns, told, strict=True)
    )


def token_logprobs(
    logits_RV: torch.Tensor, ids_R: torch.Tensor, wanted: Sequence[int | None]
) -> list[TokenLogprobs | None]:
    """Log-probabilities for the rows that want them, each with as many best as it wants."""
    told: list[TokenLogprobs | None] = [None] * len(wanted)
    rows = [row for row, count in enumerate(wanted) if count is not None]
    if not rows:
        return told
    most = min(max(count for count in wanted if count is not None), logits_RV.shape[1])
    index = torch.tensor(rows, device=logits_RV.device)
    found = logprobs(logits_RV[index], ids_R[index], most)
    columns = (
        ids_R[index].tolist(),
        found.chosen.tolist(),
        found.ranks.tolist(),
        found.top_ids.tolist(),
        found.top.tolist(),
    )
    for row, token_id, chosen, rank, top_ids, top in zip(rows, *columns, strict=True):
        best = tuple(zip(top_ids[: wanted[row]], top[: wanted[row]], strict=True))
        told[row] = TokenLogprobs(token_id, chosen, rank, best)
    return told
