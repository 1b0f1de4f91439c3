"""What the replies of a batch ask to be done to their logits, as tensors on the device."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, wait

import torch

from hypic_sdk.engine.request import Reply, TokenCounts
from hypic_sdk.kernels.sample.edits import Bans, Biases, LogitEdits, Masks, Penalties
from hypic_sdk.kernels.upload import upload
from hypic_sdk.transport.messages import SamplingParams

# how long a step in which nobody else takes part waits for masks before it looks around
MASK_WAIT_S = 0.02


def split_late(replies: Sequence[Reply], *, may_wait: bool) -> tuple[list[int], list[int]]:
    """Places of the replies whose masks are there (or that need none), and of the others.

    The mask of a reply whose last token the host has not read is late, too.

    Args:
        may_wait: a little, if all would have to, since nobody else waits in this step.
    """
    masks = [None if reply.grammar is None else reply.grammar.mask for reply in replies]
    unread = [reply.pending_row is not None for reply in replies]
    if may_wait and not any(unread) and all(mask is not None and not mask.done() for mask in masks):
        wait([mask for mask in masks if mask is not None], MASK_WAIT_S, FIRST_COMPLETED)
    is_late = [
        mask is not None and (is_unread or not mask.done())
        for mask, is_unread in zip(masks, unread, strict=True)
    ]
    places = range(len(replies))
    return [p for p in places if not is_late[p]], [p for p in places if is_late[p]]


def edits_of(
    replies: Sequence[Reply],
    *,
    vocab_size: int,
    eos_token_ids: frozenset[int],
    drawn_R: torch.Tensor,
) -> LogitEdits:
    """Edits in the order of the replies; a reply that asks for nothing has no part in them.

    Args:
        drawn_R: [any] int64 on the device, what the forward before drew: where a reply has a
            pending row, its last token is there.
    """
    device = drawn_R.device
    return LogitEdits(
        masks=_masks(replies, device),
        bans=_bans(replies, eos_token_ids, device),
        biases=_biases(replies, device),
        penalties=_penalties(replies, vocab_size, drawn_R),
    )


def _masks(replies: Sequence[Reply], device: torch.device) -> Masks | None:
    """What the grammars allow; their end tokens are theirs to forbid."""
    rows: list[int] = []
    bits: list[torch.Tensor] = []
    for row, reply in enumerate(replies):
        if reply.grammar is not None:
            is_long_enough = reply.num_drawn >= reply.sampling.min_tokens
            rows.append(row)
            bits.append(reply.grammar.allowed_bits(may_end=is_long_enough))
    if not rows:
        return None
    return Masks(upload(rows, device), upload(torch.stack(bits), device))


def _bans(
    replies: Sequence[Reply], eos_token_ids: frozenset[int], device: torch.device
) -> Bans | None:
    """End and stop tokens of replies that are not long enough yet."""
    pairs = [
        (row, token_id)
        for row, reply in enumerate(replies)
        if reply.grammar is None and reply.num_drawn < reply.sampling.min_tokens
        for token_id in sorted({*eos_token_ids, *reply.sampling.stop_token_ids})
    ]
    if not pairs:
        return None
    rows, ids = upload(pairs, device).unbind(1)
    return Bans(rows, ids)


def _biases(replies: Sequence[Reply], device: torch.device) -> Biases | None:
    triples = [
        (row, token_id, value)
        for row, reply in enumerate(replies)
        for token_id, value in reply.sampling.logit_bias
    ]
    if not triples:
        return None
    rows, ids, values = zip(*triples, strict=True)
    return Biases(
        upload(rows, device),
        upload(ids, device),
        upload(torch.tensor(values, dtype=torch.float64), device),
    )


def _is_penalised(sampling: SamplingParams) -> bool:
    costs = (sampling.presence_penalty, sampling.frequency_penalty)
    return sampling.repetition_penalty != 1.0 or costs != (0.0, 0.0)


def _penalties(
    replies: Sequence[Reply], vocab_size: int, drawn_R: torch.Tensor
) -> Penalties | None:
    rows = [row for row, reply in enumerate(replies) if _is_penalised(reply.sampling)]
    if not rows:
        return None
    counts = [_counts_of(replies[row], vocab_size, drawn_R) for row in rows]
    params = [replies[row].sampling for row in rows]

    def numbers(values: list[float]) -> torch.Tensor:
        return upload(torch.tensor(values, dtype=torch.float64), drawn_R.device)

    return Penalties(
        rows=upload(rows, drawn_R.device),
        in_prompt_PV=torch.stack([count.in_prompt_V for count in counts]),
        counts_PV=torch.stack([count.counts_V for count in counts]),
        repetition_P=numbers([p.repetition_penalty for p in params]),
        presence_P=numbers([p.presence_penalty for p in params]),
        frequency_P=numbers([p.frequency_penalty for p in params]),
    )


def _counts_of(reply: Reply, vocab_size: int, drawn_R: torch.Tensor) -> TokenCounts:
    """The reply's counts, brought up to date."""
    if reply.counts is None:
        counts_V = torch.zeros(vocab_size, dtype=torch.int32, device=drawn_R.device)
        reply.counts = TokenCounts(_in_prompt(reply, vocab_size, drawn_R.device), counts_V)
    counts, row = reply.counts, reply.pending_row
    new = reply.token_ids[counts.num_counted :]
    ids = upload(new, drawn_R.device) if new else drawn_R[:0]
    if row is not None:
        ids = torch.cat((ids, drawn_R[row : row + 1]))
    counts.counts_V.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))
    counts.num_counted = reply.num_drawn
    return counts


def _in_prompt(reply: Reply, vocab_size: int, device: torch.device) -> torch.Tensor:
    """Shared with the request's other replies."""
    first = reply.request.replies[0].counts
    if first is not None:
        return first.in_prompt_V
    in_prompt_V = torch.zeros(vocab_size, dtype=torch.bool, device=device)
    return in_prompt_V.index_fill_(0, upload(reply.request.layout.prompt.token_ids, device), True)
