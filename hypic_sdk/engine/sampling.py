"""From logits to the next token of every request in a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypic_sdk.engine.batch import Sampled
from hypic_sdk.engine.request import Request
from hypic_sdk.kernels.sample.op import logprobs, sample
from hypic_sdk.transport.messages import TokenLogprobs


def sample_requests(logits_RV: torch.Tensor, requests: Sequence[Request]) -> tuple[Sampled, ...]:
    """Draw one token for each request, from its own seed and the length of its reply."""
    params = [request.message.sampling for request in requests]
    drawn = sample(
        logits_RV,
        torch.tensor([p.temperature for p in params]),
        torch.tensor([p.top_k for p in params]),
        torch.tensor([p.top_p for p in params]),
        torch.tensor([request.seed for request in requests]),
        torch.tensor([len(request.reply) for request in requests]),
    )
    told = _logprobs(logits_RV, drawn.ids, [p.logprobs for p in params])
    ids, ok = drawn.ids.tolist(), drawn.ok.tolist()
    return tuple(Sampled(*values) for values in zip(ids, ok, told, strict=True))


def _logprobs(
    logits_RV: torch.Tensor, ids_R: torch.Tensor, wanted: Sequence[int | None]
) -> list[TokenLogprobs | None]:
    """Log-probabilities for the requests that want them, each with as many best as it wants."""
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
        found.top_ids.tolist(),
        found.top.tolist(),
    )
    for row, token_id, chosen, top_ids, top in zip(rows, *columns, strict=True):
        best = tuple(zip(top_ids[: wanted[row]], top[: wanted[row]], strict=True))
        told[row] = TokenLogprobs(token_id, chosen, best)
    return told
