"""Logits to token ids.  A row's id depends on its own logits, settings, seed and step alone.

The order is vLLM's (docs.vllm.ai, `vllm.v1.sample.sampler`): `adjust` masks what a grammar does not
allow, forbids end tokens before the least length, adds the biases, then takes the penalties
(repetition, frequency, presence); `sample` divides by the temperature, then drops ids by `min_p`,
by `top_k` and by `top_p`, and draws.  Log-probabilities are of the logits as they came.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.sample import reference
from hypic_sdk.kernels.sample.edits import LogitEdits


class Sampled(NamedTuple):
    """One token for each row."""

    ids: torch.Tensor  # [R] int64; 0 where the logits are not usable
    ok: torch.Tensor  # [R] bool: false where logits hold a NaN or +inf, or nothing above -inf


class Logprobs(NamedTuple):
    """Natural logarithms of probabilities, before temperature and filters."""

    chosen: torch.Tensor  # [R] of the given ids
    ranks: torch.Tensor  # [R] int64, of the given ids: the best has 1, the lower id first in a tie
    top_ids: torch.Tensor  # [R, n] int64, best first, the lower id first in a tie
    top: torch.Tensor  # [R, n]


def adjust(logits_RV: torch.Tensor, edits: LogitEdits) -> torch.Tensor:
    """Logits as they are chosen from: [R, vocab], new; rows that no edit names are as they were.

    Args:
        logits_RV: [R, vocab] fp32 or fp64.
        edits: on the device of the logits.  Masked and forbidden ids become -inf, which no later
            edit undoes.  With l the logit, s whether the id stands in prompt or reply, c how often
            it stands in the reply: l := l / repetition if l > 0 else l * repetition, where s; then
            l := l - frequency * c - presence * (c > 0).
    Source:
        order and formulas of vLLM; the repetition penalty is that of CTRL (Keskar et al. 2019).
    """
    _check_logits(logits_RV)
    num_ids = logits_RV.shape[1]
    if edits.penalties is not None and edits.penalties.counts_PV.shape[1] != num_ids:
        raise ValueError(f"counts of {edits.penalties.counts_PV.shape[1]} ids for {num_ids}")
    if edits.masks is not None and edits.masks.allowed_bits.shape[1] != -(-num_ids // 32):
        words = edits.masks.allowed_bits.shape[1]
        raise ValueError(f"{words} words of 32 bits are no mask of {num_ids} ids")
    if edits.is_empty:
        return logits_RV
    run = backend.select("adjust", reference.adjust, None, device=logits_RV.device)
    return run(logits_RV, edits)


def _check_logits(logits_RV: torch.Tensor) -> None:
    if logits_RV.ndim != 2 or logits_RV.shape[1] == 0:
        raise ValueError(f"logits {tuple(logits_RV.shape)} are no rows over a vocabulary")
    if logits_RV.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"logits are fp32 or fp64, got {logits_RV.dtype}")


def sample(
    logits_RV: torch.Tensor,
    temperature_R: torch.Tensor,
    min_p_R: torch.Tensor,
    top_k_R: torch.Tensor,
    top_p_R: torch.Tensor,
    seeds_R: torch.Tensor,
    steps_R: torch.Tensor,
) -> Sampled:
    """Draw one id a row: temperature, then `min_p`, the `top_k` best, the smallest set of `top_p`.

    Args:
        logits_RV: [R, vocab] fp32 or fp64 (V is the vocabulary here); -inf forbids an id.
        temperature_R: [R] float; 0 takes the best id, the lowest in a tie.
        min_p_R: [R] float in 0..1; ids of less than this share of the likeliest's probability go.
        top_k_R: [R] int64; 0 keeps all.  Of ids that tie for the last place the lower ones stay.
        top_p_R: [R] float in 0..1, of what is left; 1 keeps all, and one id always stays.  Ties as
            for top_k.
        seeds_R, steps_R: [R] int64; a row's noise is a hash of this pair, so that batches, cuts and
            retries draw the same ids.
        All six may lie on the host: then the choice of path waits for no device.
    Source:
        inverse of the cumulative distribution in the order of ids, so a small change of the logits
        seldom changes the id.
    """
    _check_logits(logits_RV)
    for name, setting in (
        ("temperature", temperature_R),
        ("min_p", min_p_R),
        ("top_k", top_k_R),
        ("top_p", top_p_R),
        ("seeds", seeds_R),
        ("steps", steps_R),
    ):
        if setting.shape != logits_RV.shape[:1]:
            raise ValueError(f"{name} {tuple(setting.shape)} for {logits_RV.shape[0]} rows")
    run = backend.select("sample", reference.sample, None, device=logits_RV.device)
    return Sampled(*run(logits_RV, temperature_R, min_p_R, top_k_R, top_p_R, seeds_R, steps_R))


def logprobs(logits_RV: torch.Tensor, ids_R: torch.Tensor, n: int) -> Logprobs:
    """Log-probabilities of the given ids and of the `n` best of each row.

    Args:
        logits_RV: [R, vocab] fp32 or fp64.
        ids_R: [R] int64.
        n: 0 or more, at most the vocabulary.
    """
    if ids_R.shape != logits_RV.shape[:1]:
        raise ValueError(f"ids {tuple(ids_R.shape)} for logits {tuple(logits_RV.shape)}")
    if not 0 <= n <= logits_RV.shape[1]:
        raise ValueError(f"the best {n} of {logits_RV.shape[1]}")
    run = backend.select("logprobs", reference.logprobs, None, device=logits_RV.device)
    return Logprobs(*run(logits_RV, ids_R, n))
