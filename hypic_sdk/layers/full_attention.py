"""Softmax attention: grouped heads, optional head norms, rotary position and output gate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.kernels.head_norms import HeadNorms
from hypic_sdk.kernels.mlp.op import gate_heads
from hypic_sdk.layers.context import ForwardContext
from hypic_sdk.layers.linear import Linear
from hypic_sdk.layers.norm import RMSNorm


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """What one attention layer looks like.

    `output_gate`: the query projection yields [query | gate] for each head, and the head's output
    is multiplied by sigmoid(gate).  `norm_eps`: zero-centred norms over the head size of query and
    key, before rotation; none without.
    """

    width: int  # D
    num_query_heads: int  # Q
    num_kv_heads: int  # G
    head_size: int  # E
    rotary: RotarySpec | None
    output_gate: bool = False
    norm_eps: float | None = None
    bias: bool = False

    @property
    def projected(self) -> tuple[int, int, int]:
        """Outputs of the query (with gate), key and value projections, in the order of rows."""
        query = self.num_query_heads * self.head_size * (2 if self.output_gate else 1)
        return query, self.num_kv_heads * self.head_size, self.num_kv_heads * self.head_size


class FullAttention(nn.Module):
    """Attention layer `layer` (0-based among attention layers)."""

    def __init__(self, layer: int, layout: AttentionLayout, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        self.layout = layout
        self.qkv = Linear(layout.width, sum(layout.projected), dtype=dtype, bias=layout.bias)
        self.output = Linear(
            layout.num_query_heads * layout.head_size, layout.width, dtype=dtype, bias=layout.bias
        )
        self.query_norm = self._head_norm(dtype)
        self.key_norm = self._head_norm(dtype)

    def _head_norm(self, dtype: torch.dtype) -> RMSNorm | None:
        eps = self.layout.norm_eps
        if eps is None:
            return None
        return RMSNorm(self.layout.head_size, eps=eps, zero_centred=True, dtype=dtype)

    def forward(self, hidden_LD: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[L, D] -> [L, D]."""
        query_LQE, gate_LQE, key_LGE, value_LGE = self._project(hidden_LD, context)
        out_LQE = context.full_attention(
            self.layer,
            query_LQE,
            key_LGE,
            value_LGE,
            norms=self._norms(),
            rotary=self.layout.rotary,
            scale=self.layout.head_size**-0.5,
        )
        if gate_LQE is not None:
            out_LQE = gate_heads(out_LQE, gate_LQE)
        return self.output.forward(out_LQE.flatten(1), row_independent=context.row_independent)

    def _norms(self) -> HeadNorms | None:
        if self.query_norm is None or self.key_norm is None:
            return None
        weights = self.query_norm.weight, self.key_norm.weight
        return HeadNorms(*weights, eps=self.key_norm.eps, zero_centred=self.key_norm.zero_centred)

    def _project(
        self, hidden_LD: torch.Tensor, context: ForwardContext
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
        layout = self.layout
        qkv = self.qkv.forward(hidden_LD, row_independent=context.row_independent)
        query, key, value = qkv.split_with_sizes(layout.projected, -1)
        query = query.unflatten(-1, (layout.num_query_heads, -1))
        key_LGE = key.unflatten(-1, (layout.num_kv_heads, -1))
        value_LGE = value.unflatten(-1, (layout.num_kv_heads, -1))
        if not layout.output_gate:
            return query, None, key_LGE, value_LGE
        query_LQE, gate_LQE = query.chunk(2, dim=-1)
        return query_LQE, gate_LQE, key_LGE, value_LGE
