"""A linear layer: one weight, which may hold several projections of the same rows."""

from __future__ import annotations

import torch
from torch import nn

from hypic_sdk.kernels.linear.op import linear


class Linear(nn.Module):
    """rows @ weight^T + bias.  Projections of the same rows share one weight, so one product."""

    def __init__(
        self, num_inputs: int, num_outputs: int, *, dtype: torch.dtype, bias: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(num_outputs, num_inputs, dtype=dtype), requires_grad=False
        )
        self.bias = (
            nn.Parameter(torch.empty(num_outputs, dtype=dtype), requires_grad=False)
            if bias
            else None
        )

    def forward(self, rows_LD: torch.Tensor, *, row_independent: bool) -> torch.Tensor:
        """[L, num_outputs] in the dtype of the rows."""
        return linear(rows_LD, self.weight, self.bias, row_independent=row_independent)
