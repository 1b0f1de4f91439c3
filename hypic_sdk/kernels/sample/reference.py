"""Sampling in plain torch, vectorised over rows, every step of it a function of one row.

Softmax runs row by row, cumulative sums run along a row in fp64 and in order, the rest compares and
selects.  So a row's bits depend on that row alone.
"""

from __future__ import annotations

import torch

from hypic_sdk.kernels.sample.noise import uniform

# best logits looked at first for top_p; most distributions reach their mass within these
_CANDIDATES = 256


def sample(
    logits_RV: torch.Tensor,
    temperature_R: torch.Tensor,
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
        rows = drawn.to(device)
        ids_R = ids_R.index_copy(
            0,
            rows,
            _draw(
                logits_RV[rows],
                best_R[rows],
                temperature_R[drawn].to(device),
                top_k_R[drawn],
                top_p_R[drawn],
                uniform(seeds_R[drawn], steps_R[drawn]).to(device),
            ),
        )
    return torch.where(ok_R, ids_R, 0), ok_R


def logprobs(
    logits_RV: torch.Tensor, ids_R: torch.Tensor, n: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probability of each id; ids and log-probabilities of the n best."""
    logprobs_RV = logits_RV.log_softmax(-1)
    chosen_R = logprobs_RV.gather(1, ids_R[:, None])[:, 0]
    top = logits_RV.sort(dim=-1, descending=True, stable=True).indices[:, :n].contiguous()
    return chosen_R, top, logprobs_RV.gather(1, top)


def _draw(
    logits_RV: torch.Tensor,
    best_R: torch.Tensor,
    temperature_R: torch.Tensor,
    top_k_R: torch.Tensor,
    top_p_R: torch.Tensor,
    uniform_R: torch.Tensor,
) -> torch.Tensor:
    """One id for each row of positive temperature; any id for a row that is not ok."""
    # the best first goes to 0: a tiny temperature then sends the others to -inf, never to a NaN
    scaled_RV = (logits_RV - best_R[:, None]) / temperature_R.to(logits_RV.dtype)[:, None]
    mass_RV = scaled_RV.softmax(-1).double()
    filtered = ((top_k_R > 0) | (top_p_R < 1.0)).nonzero()[:, 0]
    if filtered.numel():
        rows = filtered.to(logits_RV.device)
        kept = _kept(
            logits_RV[rows],
            mass_RV[rows],
            top_k_R[filtered].to(logits_RV.device),
            top_p_R[filtered].to(logits_RV.device),
        )
        mass_RV = mass_RV.index_copy(0, rows, mass_RV[rows] * kept)
    cumulative_RV = mass_RV.cumsum(-1)
    target_R = uniform_R * cumulative_RV[:, -1]
    # the first id whose cumulative mass exceeds the target: never one of no mass
    ids_R = torch.searchsorted(cumulative_RV, target_R[:, None], right=True)[:, 0]
    return ids_R.clamp_max(logits_RV.shape[1] - 1)


def _kept(
    logits_RV: torch.Tensor, mass_RV: torch.Tensor, top_k_R: torch.Tensor, top_p_R: torch.Tensor
) -> torch.Tensor:
    """[R, V] bool: the ids that top_k, then top_p leave."""
    num_ids = logits_RV.shape[1]
    top_k_R = torch.where(top_k_R > 0, top_k_R, num_ids).clamp_max(num_ids)
    best, order = logits_RV.sort(dim=-1, descending=True, stable=True)
    ranked = mass_RV.gather(1, order)
    ranked = ranked * (torch.arange(num_ids, device=ranked.device) < top_k_R[:, None])
    before = ranked.cumsum(-1)
    limit_R = top_p_R.double() * before[:, -1]
    before = before - ranked
    kept_ranked = (before < limit_R[:, None]) & (ranked > 0)
    kept_ranked[:, 0] = True
    return torch.zeros_like(kept_ranked).scatter(1, order, kept_ranked)
