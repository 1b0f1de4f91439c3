"""Log-probabilities of a prompt's own tokens, while its rows go through the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hypic_sdk.engine.batch import AssemblyStep
from hypic_sdk.engine.sampling import token_logprobs
from hypic_sdk.transport.messages import TokenLogprobs

if TYPE_CHECKING:
    from hypic_sdk.models.base import CausalLM

# rows whose logits are in memory at once, a multiple of what rows are padded to; a vocabulary of
# 150,000 ids takes 147 MiB then
_ROWS_AT_ONCE = 256


def prompt_logprobs(
    model: CausalLM,
    hidden_LD: torch.Tensor,
    step: AssemblyStep,
    first_row: int,
    *,
    row_independent: bool,
) -> list[TokenLogprobs]:
    """Of the prompt's tokens that follow the rows of this step; the last row's is no prompt token.

    Args:
        hidden_LD: rows of the whole forward, padding included.
        first_row: of the step.
    """
    prompt, start = step.request.layout.prompt.token_ids, step.request.position
    wanted = step.request.message.sampling.prompt_logprobs
    next_ids = prompt[start + 1 : step.position + 1]
    told: list[TokenLogprobs] = []
    for a in range(0, len(next_ids), _ROWS_AT_ONCE):
        ids = torch.tensor(next_ids[a : a + _ROWS_AT_ONCE], device=hidden_LD.device)
        rows_ND = hidden_LD[first_row + a : first_row + a + len(ids)]
        logits_RV = model.logits(rows_ND, row_independent=row_independent)
        found = token_logprobs(logits_RV, ids, [wanted] * len(ids))
        told += [one for one in found if one is not None]
    return told
