"""Feed-forward block of routed experts, and one shared expert behind a gate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from hypic_sdk.kernels.experts.op import Shared, experts, route_with_swiglu
from hypic_sdk.layers.context import ForwardContext
from hypic_sdk.layers.linear import Linear

# products whose rows start at multiples of 16 bytes are the faster ones
_ALIGNED_OUTPUTS = 8


@dataclass(frozen=True, slots=True)
class MoELayout:
    """Sizes of one block, all blocks alike.

    `renormalise`: the chosen experts' shares are scaled to a sum of 1.
    """

    num_experts: int
    top_k: int
    inner: int  # of a routed expert
    shared_inner: int  # of the shared expert
    renormalise: bool = True

    @property
    def projected(self) -> tuple[int, int, int]:
        """Outputs of the shared expert's gate and up, the router, and the shared expert's gate.

        In the order of rows.  The last is one number; its row stands there as often as it takes to
        fill all up to a multiple of 8.
        """
        products = 2 * self.shared_inner, self.num_experts
        return *products, _ALIGNED_OUTPUTS - sum(products) % _ALIGNED_OUTPUTS


class MixtureOfExperts(nn.Module):
    """sum of share * expert(x) over the best experts, plus sigmoid(gate(x)) * shared(x)."""

    def __init__(self, width: int, layout: MoELayout, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.layout = layout
        num_experts, inner = layout.num_experts, layout.inner
        self.input = Linear(width, sum(layout.projected), dtype=dtype)
        self.gate_up = _parameter(num_experts, 2 * inner, width, dtype=dtype)
        self.down = _parameter(num_experts, width, inner, dtype=dtype)
        self.shared_down = Linear(layout.shared_inner, width, dtype=dtype)

    def forward(self, hidden_LD: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[L, D] -> [L, D].  The experts of padding are read for another row anyway."""
        alike = context.row_independent
        projected = self.input(hidden_LD, row_independent=alike)
        gate_up_LI, logits, gate = projected.split(self.layout.projected, dim=-1)
        routing, inner_LI = route_with_swiglu(
            logits,
            gate_up_LI,
            top_k=self.layout.top_k,
            renormalise=self.layout.renormalise,
            row_count=context.row_count,
        )
        shared_LD = self.shared_down(inner_LI, row_independent=alike)
        return experts(
            hidden_LD,
            routing,
            self.gate_up,
            self.down,
            row_independent=alike,
            shared=Shared(shared_LD, gate[:, :1]),
        )


def _parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
