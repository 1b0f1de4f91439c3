"""Token ids to rows, and rows to logits."""

from __future__ import annotations

import torch
from torch import nn

from hypic_sdk.kernels.linear.op import ROW_MULTIPLE, linear


class TokenEmbedding(nn.Module):
    """One row a token."""

    def __init__(self, vocab_size: int, width: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, width, dtype=dtype), requires_grad=False)

    def forward(self, ids_L: torch.Tensor) -> torch.Tensor:
        """[L] -> [L, D]."""
        return torch.nn.functional.embedding(ids_L, self.weight)


class LMHead(nn.Module):
    """Logits of final-normed rows.  Tied: `weight` is the embedding's own parameter."""

    def __init__(
        self,
        vocab_size: int,
        width: int,
        *,
        dtype: torch.dtype,
        tied_to: TokenEmbedding | None = None,
    ) -> None:
        super().__init__()
        self.weight = (
            nn.Parameter(torch.empty(vocab_size, width, dtype=dtype), requires_grad=False)
            if tied_to is None
            else tied_to.weight
        )

    def forward(self, hidden_ND: torch.Tensor, *, row_independent: bool) -> torch.Tensor:
        """[N, vocab] in fp32 (fp64 for fp64), for any number of rows N."""
        num_rows = hidden_ND.shape[0]
        if row_independent:
            missing = -num_rows % ROW_MULTIPLE
            hidden_ND = torch.nn.functional.pad(hidden_ND, (0, 0, 0, missing))
        logits = linear(hidden_ND, self.weight, row_independent=row_independent)[:num_rows]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))
