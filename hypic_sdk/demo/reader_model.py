"""The reader as a training module: same parameters and names as transformers' Qwen3.5 text model.

Its siblings differ in their linear layers alone. Besides the plain forward there is the composed
one: documents run in isolation, their interiors kept, the rest recomputed in place over the
assembled state and keys. It keeps two hidden streams, *isolated* and *live*; in each layer the live
stream reads the isolated stream's keys, values and gates at interiors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from hypic_sdk.demo.linear_layers import LINEAR_LAYERS, LinearLayer
from hypic_sdk.demo.reader_config import ReaderConfig
from hypic_sdk.demo.reader_parts import Layout, Mixed, Norm, merge, rotate

__all__ = ["FullLayer", "Layer", "Layout", "LinearLayer", "Reader", "ReaderConfig", "load_state"]


class FullLayer(nn.Module):
    """Softmax attention with normed queries and keys, partial rotary and an output gate."""

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        self.config = config
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, 2 * heads * dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(heads * dim, config.hidden_size, bias=False)
        self.q_norm = Norm(dim, config.eps)
        self.k_norm = Norm(dim, config.eps)

    def mix(self, x: torch.Tensor, layout: Layout) -> Mixed:
        """Return keys before rotation, and values, [B, L, heads, dim]."""
        del layout
        dim = self.config.head_dim
        return self.k_norm(self.k_proj(x).unflatten(-1, (-1, dim))), self.v_proj(x).unflatten(
            -1, (-1, dim)
        )

    def read(self, x: torch.Tensor, mixed: Mixed, layout: Layout) -> torch.Tensor:
        """Attend and project; `x` gives queries and gates."""
        config = self.config
        query, gate = self.q_proj(x).unflatten(-1, (config.num_heads, -1)).chunk(2, -1)
        turn = (layout.position, config.rotary_dim, config.rope_theta)
        query, key = rotate(self.q_norm(query), *turn), rotate(mixed[0], *turn)
        groups = config.num_heads // config.num_kv_heads
        query, key, value = (t.transpose(1, 2).to(x.dtype) for t in (query, key, mixed[1]))
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=layout.mask)
        output = output.transpose(1, 2).flatten(2) * gate.flatten(2).sigmoid()
        return self.o_proj(output)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., hidden] to [..., hidden]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Mixer and MLP with pre-norms."""

    def __init__(self, config: ReaderConfig, kind: str) -> None:
        super().__init__()
        if kind == "linear_attention":
            self.linear_attn = LINEAR_LAYERS[config.family](config)
        else:
            self.self_attn = FullLayer(config)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size)
        self.input_layernorm = Norm(config.hidden_size, config.eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.eps)

    @property
    def mixer(self) -> LinearLayer | FullLayer:
        """The layer's sequence mixer."""
        return self.linear_attn if hasattr(self, "linear_attn") else self.self_attn

    def finish(self, hidden: torch.Tensor, mixed_out: torch.Tensor) -> torch.Tensor:
        """Add the mixer's output and the MLP's."""
        hidden = hidden + mixed_out
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Decoder(nn.Module):
    """Embedding, layers, last norm."""

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, kind) for kind in config.layer_types)
        self.norm = Norm(config.hidden_size, config.eps)


class Reader(nn.Module):
    """The whole model; logits through the tied embedding."""

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)

    @property
    def layers(self) -> list[Layer]:
        """The layers, in order."""
        return [cast("Layer", layer) for layer in self.model.layers]

    def forward(self, tokens: torch.Tensor, layout: Layout) -> torch.Tensor:
        """One plain causal forward; returns the last hidden states, [B, L, hidden]."""
        hidden = self.model.embed_tokens(tokens)
        for layer in self.layers:
            x = layer.input_layernorm(hidden)
            hidden = layer.finish(hidden, layer.mixer.read(x, layer.mixer.mix(x, layout), layout))
        return self.model.norm(hidden)

    def composed(
        self, tokens: torch.Tensor, isolated: Layout, live: Layout, interior: torch.Tensor
    ) -> torch.Tensor:
        """Forward with isolated interiors; of the result only the tokens outside them count."""
        alone = together = self.model.embed_tokens(tokens)
        for layer in self.layers:
            mixer = layer.mixer
            x_alone = layer.input_layernorm(alone)
            together = torch.where(interior[..., None], alone, together)
            x_together = layer.input_layernorm(together)
            mixed_alone = mixer.mix(x_alone, isolated)
            mixed = merge(interior, mixed_alone, mixer.mix(x_together, live))
            alone = layer.finish(alone, mixer.read(x_alone, mixed_alone, isolated))
            together = layer.finish(together, mixer.read(x_together, mixed, live))
        return self.model.norm(together)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Project hidden states on the vocabulary."""
        return F.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))


def load_state(reader: Reader, state: Mapping[str, torch.Tensor]) -> None:
    """Load weights under transformers' names; the tied head is left out."""
    reader.load_state_dict({k: v for k, v in state.items() if k != "lm_head.weight"})
