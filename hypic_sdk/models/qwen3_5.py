"""Qwen3.5 and 3.6, dense and MoE, and Qwen3-Next, text: gated delta rule and gated full attention.

HYPIC section 6.  They differ in their feed-forward blocks and in how their files are written.
"""

from __future__ import annotations

import torch
from torch import nn

from hypic_sdk.families.gated_delta_rule import gated_delta_rule
from hypic_sdk.layers.context import ForwardContext
from hypic_sdk.layers.embedding import LMHead, TokenEmbedding
from hypic_sdk.layers.full_attention import FullAttention
from hypic_sdk.layers.linear import Linear
from hypic_sdk.layers.mlp import GatedMLP
from hypic_sdk.layers.moe import MixtureOfExperts
from hypic_sdk.layers.norm import GatedRMSNorm, RMSNorm
from hypic_sdk.layers.short_conv import ShortConv
from hypic_sdk.models.base import LayerKind
from hypic_sdk.models.qwen_checkpoint import checkpoint_plan
from hypic_sdk.models.qwen_config import Config

__all__ = ["Config", "DecoderLayer", "GatedDeltaNet", "Model", "checkpoint_plan"]


class GatedDeltaNet(nn.Module):
    """Linear layer `layer` (0-based among linear layers)."""

    def __init__(self, config: Config, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        # decays are exponentials of these: never below fp32
        gate_dtype = torch.promote_types(dtype, torch.float32)
        self.input = Linear(config.width, sum(config.projected), dtype=dtype)
        self.conv = ShortConv(layer, config.mixed_channels, config.conv_width, dtype=dtype)
        self.A_log = _parameter(config.num_heads, dtype=gate_dtype)
        self.dt_bias = _parameter(config.num_heads, dtype=gate_dtype)
        self.norm = GatedRMSNorm(
            config.value_size, eps=config.eps, activation="silu", gate_first=False, dtype=dtype
        )
        self.output = Linear(config.num_heads * config.value_size, config.width, dtype=dtype)

    def forward(self, hidden_LD: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[L, D] -> [L, D]."""
        config = self.config
        alike = context.row_independent
        projected = self.input.forward(hidden_LD, row_independent=alike)
        mixed_LC, gate, strength_LH, decay_LH = projected.split_with_sizes(config.projected, -1)
        key_channels = config.num_key_heads * config.key_size
        query, key, value = self.conv.forward(mixed_LC, context).split_with_sizes(
            (key_channels, key_channels, config.num_heads * config.value_size), -1
        )
        recurrence = gated_delta_rule(
            query.unflatten(-1, (config.num_key_heads, config.key_size)),
            key.unflatten(-1, (config.num_key_heads, config.key_size)),
            value.unflatten(-1, (config.num_heads, config.value_size)),
            strength_LH,
            decay_LH,
            self.A_log,
            self.dt_bias,
        )
        out_LHV = context.linear_attention(self.layer, recurrence)
        gate_LHV = gate.unflatten(-1, (config.num_heads, config.value_size))
        out_LHV = self.norm.forward(out_LHV, gate_LHV)
        return self.output.forward(out_LHV.flatten(1), row_independent=alike)


class DecoderLayer(nn.Module):
    """Norm, mixer, residual; norm, feed-forward, residual: layer `i` of all."""

    def __init__(self, config: Config, i: int, dtype: torch.dtype) -> None:
        super().__init__()
        kind = config.layers[i]
        index = config.layers[:i].count(kind)  # among its kind
        self.mixer: GatedDeltaNet | FullAttention = (
            GatedDeltaNet(config, index, dtype)
            if kind is LayerKind.LINEAR
            else FullAttention(index, config.attention, dtype=dtype)
        )
        self.mixer_norm = RMSNorm(config.width, eps=config.eps, zero_centred=True, dtype=dtype)
        self.mlp: MixtureOfExperts | GatedMLP = (
            MixtureOfExperts(config.width, config.moe, dtype=dtype)
            if config.moe is not None and i in config.sparse_layers
            else GatedMLP(config.width, config.inner, dtype=dtype)
        )
        self.mlp_norm = RMSNorm(config.width, eps=config.eps, zero_centred=True, dtype=dtype)

    def forward(
        self, hidden_LD: torch.Tensor, added_LD: torch.Tensor | None, context: ForwardContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows, and what is still to be added to them, [L, D] each; the same behind the layer.

        A residual goes with the norm behind it, so the last one of a layer is left to the next.
        """
        if added_LD is None:
            normed_LD = self.mixer_norm.forward(hidden_LD)
        else:
            hidden_LD, normed_LD = self.mixer_norm.after(hidden_LD, added_LD)
        mixed_LD = self.mixer.forward(normed_LD, context)
        hidden_LD, normed_LD = self.mlp_norm.after(hidden_LD, mixed_LD)
        return hidden_LD, self.mlp.forward(normed_LD, context)


class Model(nn.Module):
    """A CausalLM.  Parameters are not filled here."""

    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.spec = config.spec()
        self.embedding = TokenEmbedding(config.vocab_size, config.width, dtype=dtype)
        self.layers = nn.ModuleList(
            DecoderLayer(config, i, dtype) for i in range(len(config.layers))
        )
        self.norm = RMSNorm(config.width, eps=config.eps, zero_centred=True, dtype=dtype)
        self.head = LMHead(
            config.vocab_size,
            config.width,
            dtype=dtype,
            tied_to=self.embedding if config.tied else None,
        )

    @torch.no_grad()
    def forward(self, ids_L: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Final-normed hidden rows [L, D]."""
        hidden_LD, added_LD = self.embedding(ids_L), None
        for layer in self.layers:
            hidden_LD, added_LD = layer(hidden_LD, added_LD, context)
        if added_LD is not None:
            _, hidden_LD = self.norm.after(hidden_LD, added_LD)
            return hidden_LD
        normed_LD: torch.Tensor = self.norm(hidden_LD)
        return normed_LD

    @torch.no_grad()
    def logits(self, hidden_ND: torch.Tensor, *, row_independent: bool) -> torch.Tensor:
        """[N, vocab] in fp32 (fp64 for an fp64 model)."""
        output: torch.Tensor = self.head(hidden_ND, row_independent=row_independent)
        return output


def _parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
