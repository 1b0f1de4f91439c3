"""Sampling in plain torch, vectorised over rows, every step of it a function of one row.

Softmax runs row by row, cumulative sums run along a row in fp64 and in order, the rest compares and
selects.  So a row's bits depend on that row alone.
"""

from __future__ import annotations

import math

import torch

from hypic_sdk.kernels.sample.edits import LogitEdits, Penalties
from hypic_sdk.kernels.sample.noise import uniform
from hypic_sdk.kernels.upload import upload

# best logits looked at first for top_p; most distributions reach their mass within these
_CANDIDATES = 256


def adjust(logits_RV: torch.Tensor, edits: LogitEdits) -> torch.Tensor:
    """Masks, bans, biases, penalties, in this order."""
    logits_RV = logits_RV.clone()
    masks, bans, biases, penalties = edits.masks, edits.bans, edits.biases, edits.penalties
    if masks is not None:
        shifts = torch.arange(32, device=logits_RV.device, dtype=torch.int32)
        bits = (masks.allowed_bits[:, :, None] >> shifts) & 1
        allowed_AV = bits.flatten(1)[:, : logits_RV.shape[1]] == 1
        logits_RV[masks.rows] = logits_RV[masks.rows].masked_fill(~allowed_AV, -math.inf)
    if bans is not None:
        # a number of the host's would be waited for
        logits_RV.index_put_((bans.rows, bans.ids), logits_RV.new_full((), -math.inf))
    if biases is not None:
        logits_RV[biases.rows, biases.ids] += biases.values.to(logits_RV.dtype)
    if penalties is not None:
        logits_RV[penalties.rows] = _penalised(logits_RV[penalties.rows], penalties)
    return logits_RV


def _penalised(logits_PV: torch.Tensor, penalties: Penalties) -> torch.Tensor:
    def column(values_P: torch.Tensor) -> torch.Tensor:
        return values_P.to(logits_PV.dtype)[:, None]

    counts_PV, repetition = penalties.counts_PV, column(penalties.repetition_P)
    said_PV = counts_PV > 0
    repeated_PV = torch.where(logits_PV > 0, logits_PV / repetition, logits_PV * repetition)
    logits_PV = torch.where(said_PV | penalties.in_prompt_PV, repeated_PV, logits_PV)
    logits_PV = logits_PV - column(penalties.frequency_P) * counts_PV
    return logits_PV - column(penalties.presence_P) * said_PV


def sample(
    logits_RV: torch.Tensor,
    temperature_R: torch.Tensor,
    min_p_R: torch.Tensor,
    top_k_R: torch.Tensor,
    top_p_R: torch.Tensor,
    seeds_R: torch.Tensor,
    steps_R: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """ids [R] and ok [R]."""
    best_R, ids_R = logits_RV.max(dim=1)
    # max passes a NaN on, so one look at it finds NaN, +inf and a row of -inf
    ok_R = best_R.isfinite()
    drawn = (temperature_R > 0.0).nonzero()[:, 0]
    if drawn.numel():
        device = logits_RV.device
        rows = _there(drawn, device)
        ids_R = ids_R.index_copy(
            0,
            rows,
            _draw(
                logits_RV[rows],
                best_R[rows],
                _there(temperature_R[drawn], device),
                min_p_R[drawn],
                top_k_R[drawn],
                top_p_R[drawn],
                _there(uniform(seeds_R[drawn], steps_R[drawn]), device),
            ),
        )
    return torch.where(ok_R, ids_R, 0), ok_R


def logprobs(
    logits_RV: torch.Tensor, ids_R: torch.Tensor, n: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probability and rank of each id; ids and log-probabilities of the n best."""
    logprobs_RV = logits_RV.log_softmax(-1)
    chosen_R = logprobs_RV.gather(1, ids_R[:, None])[:, 0]
    ordered_RV = logits_RV.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    ranks_R = _ranks(ordered_RV, ids_R)
    if n == 0:
        none = ids_R.new_empty(len(ids_R), 0)
        return chosen_R, ranks_R, none, none.to(chosen_R.dtype)
    border_R = ordered_RV.topk(n).values[:, -1]
    kept_RV = _down_to(border_R, torch.full_like(ids_R, n), ordered_RV)
    top = _places(kept_RV, n)  # by rising id: a stable sort keeps that in ties
    order = ordered_RV.gather(1, top).sort(dim=-1, descending=True, stable=True).indices
    top = top.gather(1, order)
    return chosen_R, ranks_R, top, logprobs_RV.gather(1, top)


def _places(kept_RV: torch.Tensor, n: int) -> torch.Tensor:
    """[R, n] int64: the columns, rising, of rows in which n are kept.

    Without a size that depends on values, which a host would wait for.
    """
    num_ids = kept_RV.shape[1]
    behind_V = num_ids - torch.arange(num_ids, device=kept_RV.device)  # the last one has 1
    return num_ids - torch.where(kept_RV, behind_V, 0).topk(n).values


def _ranks(ordered_RV: torch.Tensor, ids_R: torch.Tensor) -> torch.Tensor:
    """Places of the ids in their rows, the best at 1."""
    own_R1 = ordered_RV.gather(1, ids_R[:, None])
    all_ids = torch.arange(ordered_RV.shape[1], device=ordered_RV.device)
    before_RV = (ordered_RV > own_R1) | ((ordered_RV == own_R1) & (all_ids < ids_R[:, None]))
    return before_RV.sum(1) + 1


def _draw(
    logits_RV: torch.Tensor,
    best_R: torch.Tensor,
    temperature_R: torch.Tensor,
    min_p_R: torch.Tensor,
    top_k_R: torch.Tensor,
    top_p_R: torch.Tensor,
    uniform_R: torch.Tensor,
) -> torch.Tensor:
    """One id for each row of positive temperature; any id for a row that is not ok."""
    # the best first goes to 0: a tiny temperature then sends the others to -inf, never to a NaN
    scaled_RV = (logits_RV - best_R[:, None]) / temperature_R.to(logits_RV.dtype)[:, None]
    mass_RV = scaled_RV.softmax(-1).double()
    limited = (min_p_R > 0.0).nonzero()[:, 0]
    if limited.numel():
        rows = _there(limited, logits_RV.device)
        likely = _likely(mass_RV[rows], _there(min_p_R[limited], logits_RV.device))
        mass_RV = mass_RV.index_copy(0, rows, mass_RV[rows] * likely)
    filtered = ((top_k_R > 0) | (top_p_R < 1.0)).nonzero()[:, 0]
    if filtered.numel():
        rows = _there(filtered, logits_RV.device)
        kept = _kept(
            logits_RV[rows],
            mass_RV[rows],
            _there(top_k_R[filtered], logits_RV.device),
            _there(top_p_R[filtered], logits_RV.device),
        )
        mass_RV = mass_RV.index_copy(0, rows, mass_RV[rows] * kept)
    cumulative_RV = mass_RV.cumsum(-1)
    target_R = uniform_R * cumulative_RV[:, -1]
    # the first id whose cumulative mass exceeds the target: never one of no mass
    ids_R = torch.searchsorted(cumulative_RV, target_R[:, None], right=True)[:, 0]
    return ids_R.clamp_max(logits_RV.shape[1] - 1)


def _there(setting: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the device, from wherever it lies; the host does not wait."""
    return setting if setting.device == device else upload(setting, device)


def _likely(mass_RV: torch.Tensor, min_p_R: torch.Tensor) -> torch.Tensor:
    """[R, V] bool: the ids of at least that share of the likeliest one's probability."""
    return mass_RV >= (mass_RV.amax(-1) * min_p_R.double())[:, None]


def _kept(
    logits_RV: torch.Tensor, mass_RV: torch.Tensor, top_k_R: torch.Tensor, top_p_R: torch.Tensor
) -> torch.Tensor:
    """[R, V] bool: the ids that top_k, then top_p leave."""
    num_ids = logits_RV.shape[1]
    top_k_R = torch.where(top_k_R > 0, top_k_R, num_ids).clamp_max(num_ids)
    all_stay_R, total_R = top_k_R == num_ids, mass_RV.cumsum(-1)[:, -1]
    # what the candidates decide, all ids would decide alike: sums run in order.  (On a GPU they run
    # in blocks, so there all ids are looked at.)
    sizes = (num_ids,) if logits_RV.is_cuda else (min(_CANDIDATES, num_ids), num_ids)
    for num_candidates in sizes:
        best, order = logits_RV.topk(num_candidates)
        within = torch.arange(num_candidates, device=best.device) < top_k_R[:, None]
        ranked = mass_RV.gather(1, order) * within
        reached = ranked.cumsum(-1)
        limit_R = torch.where(all_stay_R, total_R, reached[:, -1]) * top_p_R.double()
        # an id stays while the better ones have not reached the limit
        stays = within & (reached - ranked < limit_R[:, None])
        num_kept_R = stays.sum(1).clamp_min(1)
        decided = (top_k_R <= num_candidates) | (all_stay_R & (num_kept_R < num_candidates))
        if num_candidates == num_ids or decided.all():  # the first: no look at the device
            break
    return _down_to(best.gather(1, num_kept_R[:, None] - 1)[:, 0], num_kept_R, logits_RV)


def _down_to(
    border_R: torch.Tensor, num_kept_R: torch.Tensor, logits_RV: torch.Tensor
) -> torch.Tensor:
    """[R, V] bool: ids above the border and, of those that tie with it, the lower ones."""
    above = logits_RV > border_R[:, None]
    ties = logits_RV == border_R[:, None]
    places_R = num_kept_R - above.sum(1)
    return above | (ties & (ties.cumsum(1) <= places_R[:, None]))
