"""Checkpoints of `tiny_hybrid` models with the reader's attention, for the loader.

What the training program writes for a sibling: lightning, gla or kda layers as in `TinyHybrid`,
full attention as in Qwen3.5.  No released model of these families is small enough to be trained
here, and their published layouts (Ring's experts, Kimi's latent attention) are not built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.layers.embedding import LMHead
from hypic_sdk.layers.full_attention import AttentionLayout
from hypic_sdk.models.base import LayerKind
from hypic_sdk.models.checkpoint import CheckpointPlan, TensorPlace
from hypic_sdk.models.config_fields import FieldReader, Fields
from hypic_sdk.models.qwen_checkpoint import attention_places, mlp_places
from hypic_sdk.models.qwen_fields import attention_layout, layer_kinds, state_heads
from hypic_sdk.models.tiny_config import TinyConfig
from hypic_sdk.models.tiny_hybrid import TinyHybrid

__all__ = ["Config", "Model", "checkpoint_plan"]

FAMILIES = ("lightning", "gla", "kda")
_LETTERS = {LayerKind.LINEAR: "L", LayerKind.ATTENTION: "A"}
_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TinyConfig):
    """Sizes of a tiny model whose attention and rotation are given."""

    layout: AttentionLayout
    turn: RotarySpec | None  # of keys in the linear layers

    @property
    def attention(self) -> AttentionLayout:
        """Full attention as the checkpoint has it."""
        return self.layout

    @property
    def key_rotation(self) -> RotarySpec | None:
        """Rotary position inside the recurrence."""
        return self.turn

    @classmethod
    def from_hf(cls, fields: Fields) -> Config:
        """Read config.json.

        Raises:
            ModelFileError: names every field that is wrong, or unknown and not known to be neutral.
        """
        text = FieldReader(fields)
        text.fixed("model_type", "tiny_hybrid")
        text.optional_names("architectures", ("TinyHybridForCausalLM",))
        text.fixed("family", *FAMILIES)
        text.fixed("rms_norm_eps", _EPS)
        text.fixed("tie_word_embeddings", True)
        family = str(fields.get("family", FAMILIES[0]))
        num_key_heads, num_heads = state_heads(text)
        layout = attention_layout(text, text.integer("hidden_size", 384), _EPS, 2)
        key_size = text.integer("linear_key_head_dim", 64)
        sizes: dict[str, Any] = {
            "vocab_size": text.integer("vocab_size", 8192),
            "width": layout.width,
            "inner": text.integer("intermediate_size", 1024),
            "num_heads": num_heads,
            "num_key_heads": num_key_heads,
            "key_size": key_size,
            "value_size": text.integer("linear_value_head_dim", 64, minimum=2),
            "conv_width": text.integer("linear_conv_kernel_dim", 4, minimum=2, maximum=64),
            "num_query_heads": layout.num_query_heads,
            "num_kv_heads": layout.num_kv_heads,
            "head_size": layout.head_size,
            "max_context_tokens": text.integer("max_position_embeddings", 8192),
        }
        layers = "".join(_LETTERS[kind] for kind in layer_kinds(text, 8))
        turn = _key_turn(text, family, key_size, layout)
        eos = text.token_ids("eos_token_id")
        text.refuse_unknown()
        text.raise_problems()
        return cls(family, layers, eos_token_ids=eos, **sizes, layout=layout, turn=turn)

    def describe(self) -> dict[str, str]:
        """In words what the spec does not tell."""
        return {
            "width": str(self.width),
            "embeddings": "tied",
            "feed-forward": f"{self.inner} wide in {len(self.layers)} layers",
        }

    def trial(self) -> Config:
        """A small model of the same kind, for a trial of ops: one layer of each, few heads."""
        layout = replace(
            self.layout,
            width=64,
            num_query_heads=self.num_query_heads // self.num_kv_heads,
            num_kv_heads=1,
        )
        return replace(
            self,
            layers=self.layers[:1] + "".join(kind for kind in "AL" if kind in self.layers),
            vocab_size=min(self.vocab_size, 256),
            width=64,
            inner=64,
            num_heads=self.num_heads // self.num_key_heads,
            num_key_heads=1,
            num_query_heads=layout.num_query_heads,
            num_kv_heads=1,
            max_context_tokens=4096,
            eos_token_ids=(),
            layout=layout,
        )


def _key_turn(
    text: FieldReader, family: str, key_size: int, layout: AttentionLayout
) -> RotarySpec | None:
    dims = text.integer("linear_rotary_dim", 0, minimum=0, maximum=key_size)
    if dims % 2 or (dims and family != "lightning"):
        text.refuse("linear_rotary_dim", f"must be even, and 0 but for lightning, got {dims}")
        return None
    return RotarySpec(layout.rotary.theta, dims) if dims and layout.rotary is not None else None


class Model(TinyHybrid):
    """A CausalLM whose head is its embedding.  Parameters are not filled here."""

    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        super().__init__(config, dtype)
        self.head = LMHead(config.vocab_size, config.width, dtype=dtype, tied_to=self.embedding)


def checkpoint_plan(config: Config, stored: Iterable[str] = ()) -> CheckpointPlan:
    """Names and shapes of the tensors."""
    del stored
    width = config.width
    places = {
        "model.embed_tokens.weight": TensorPlace("embedding.weight", (config.vocab_size, width)),
        "model.norm.weight": TensorPlace("norm.weight", (width,)),
    }
    for i, kind in enumerate(config.spec().layers):
        named = (
            _linear_places(config)
            if kind is LayerKind.LINEAR
            else attention_places(config.attention)
        )
        for name, place in (*_block_places(config), *named):
            parameter = f"layers.{i}.{place.parameter}"
            places[f"model.layers.{i}.{name}"] = replace(place, parameter=parameter)
    tied = {"lm_head.weight": "model.embed_tokens.weight"}
    return CheckpointPlan(places, tied, lambda name: name)


def _block_places(config: Config) -> Iterator[tuple[str, TensorPlace]]:
    yield "input_layernorm.weight", TensorPlace("mixer_norm.weight", (config.width,))
    yield "post_attention_layernorm.weight", TensorPlace("mlp_norm.weight", (config.width,))
    yield from mlp_places("mlp", "mlp", config.inner, config.width)


def _linear_places(config: Config) -> Iterator[tuple[str, TensorPlace]]:
    family, heads, row = config.mixer, config.num_heads, 0
    sizes = {
        "qkv": config.mixed_channels,
        "z": config.value_channels,
        "b": heads * family.extras_H,
        "a": heads * family.extras_HK * config.key_size,
    }
    for part, size in sizes.items():
        if size:
            shape = (size, config.width)
            yield (
                f"linear_attn.in_proj_{part}.weight",
                TensorPlace("mixer.input.weight", shape, row),
            )
        row += size
    if family.conv:
        conv_shape = (config.mixed_channels, 1, config.conv_width)
        yield "linear_attn.conv1d.weight", TensorPlace("mixer.conv.weight", conv_shape)
    for name, sizes_of_gate in family.parameters(config).items():
        yield f"linear_attn.{name}", TensorPlace(f"mixer.gates.{name}", sizes_of_gate)
    yield "linear_attn.norm.weight", TensorPlace("mixer.value_norm.weight", (config.value_size,))
    out_shape = (config.width, config.value_channels)
    yield "linear_attn.out_proj.weight", TensorPlace("mixer.output.weight", out_shape)
