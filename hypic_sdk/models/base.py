"""What a model tells the engine about itself, and what the engine may call."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.layers.context import ForwardContext


class LayerKind(Enum):
    """The mixer of one layer."""

    LINEAR = "linear"
    ATTENTION = "attention"


class TransitionKind(Enum):
    """The form of a segment's transition (design 2)."""

    CONSTANT = "constant"  # a function of length: nothing stored
    SCALAR = "scalar"  # [H] fp32 log-decay
    DIAGONAL = "diagonal"  # [H, K] fp32 log-decay
    DENSE = "dense"  # [H, K, K] matrix


@dataclass(frozen=True, slots=True)
class LinearShape:
    """State of every linear layer (all alike): H state heads of [K, V]; conv of width W over C."""

    num_heads: int  # H
    key_size: int  # K
    value_size: int  # V
    transition: TransitionKind
    conv_channels: int  # C, 0 without a conv
    conv_width: int  # W, 1 without a conv
    key_rotation: RotarySpec | None = None  # Lightning with rotary keys


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """KV of every full-attention layer (all alike)."""

    num_query_heads: int  # Q
    num_kv_heads: int  # G
    head_size: int  # E, of keys and values
    rotary: RotarySpec | None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Kinds of layers in order, and the shapes of what is cached."""

    layers: tuple[LayerKind, ...]
    linear: LinearShape
    attention: AttentionShape | None  # none: a model without full attention
    vocab_size: int
    max_context_tokens: int
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_linear(self) -> int:
        """J."""
        return sum(kind is LayerKind.LINEAR for kind in self.layers)

    @property
    def num_attention(self) -> int:
        """A."""
        return sum(kind is LayerKind.ATTENTION for kind in self.layers)


class CausalLM(Protocol):
    """A model as the engine sees it (an nn.Module in eval mode, no gradients)."""

    @property
    def spec(self) -> ModelSpec: ...

    def forward(self, ids_L: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Final-normed hidden rows [L, D] of the packed ids."""
        ...

    def logits(self, hidden_ND: torch.Tensor, *, row_independent: bool) -> torch.Tensor:
        """[N, vocab] in fp32 (fp64 for an fp64 model)."""
        ...
