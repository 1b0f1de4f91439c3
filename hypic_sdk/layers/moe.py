"""Feed-forward block of routed experts, and one shared expert behind a gate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from hypic_sdk.kernels.experts.op import Routing, experts, route
from hypic_sdk.kernels.mlp.op import add_gated
from hypic_sdk.layers.context import ForwardContext
from hypic_sdk.layers.linear import Linear
from hypic_sdk.layers.mlp import GatedMLP


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


class MixtureOfExperts(nn.Module):
    """sum of share * expert(x) over the best experts, plus sigmoid(gate(x)) * shared(x)."""

    def __init__(self, width: int, layout: MoELayout, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.layout = layout
        num_experts, inner = layout.num_experts, layout.inner
        self.router = Linear(width, num_experts, dtype=dtype)
        self.gate_up = _parameter(num_experts, 2 * inner, width, dtype=dtype)
        self.down = _parameter(num_experts, width, inner, dtype=dtype)
        self.shared = GatedMLP(width, layout.shared_inner, dtype=dtype)
        self.shared_gate = Linear(width, 1, dtype=dtype)

    def route(self, hidden_LD: torch.Tensor, context: ForwardContext) -> Routing:
        """The experts of each row; those of padding are read for another row anyway."""
        logits = self.router(hidden_LD, row_independent=context.row_independent)
        return route(
            logits,
            top_k=self.layout.top_k,
            renormalise=self.layout.renormalise,
            row_count=context.row_count,
        )

    def forward(self, hidden_LD: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[L, D] -> [L, D]."""
        alike = context.row_independent
        routing = self.route(hidden_LD, context)
        routed_LD = experts(hidden_LD, routing, self.gate_up, self.down, row_independent=alike)
        gate_L1 = self.shared_gate(hidden_LD, row_independent=alike)
        return add_gated(routed_LD, self.shared(hidden_LD, context), gate_L1)


def _parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
