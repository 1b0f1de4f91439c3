"""Qwen3.5 and 3.6, dense, text: gated delta rule and gated full attention (HYPIC section 6)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.families.gated_delta_rule import gated_delta_rule
from hypic_sdk.layers.context import ForwardContext
from hypic_sdk.layers.embedding import LMHead, TokenEmbedding
from hypic_sdk.layers.full_attention import AttentionLayout, FullAttention
from hypic_sdk.layers.linear import Linear
from hypic_sdk.layers.mlp import GatedMLP
from hypic_sdk.layers.norm import GatedRMSNorm, RMSNorm
from hypic_sdk.layers.short_conv import ShortConv
from hypic_sdk.models.base import (
    AttentionShape,
    LayerKind,
    LinearShape,
    ModelSpec,
    TransitionKind,
)
from hypic_sdk.models.checkpoint import CheckpointPlan, TensorPlace
from hypic_sdk.models.config_fields import FieldReader, Fields

_KINDS = {"linear_attention": LayerKind.LINEAR, "full_attention": LayerKind.ATTENTION}
_ARCHITECTURES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
# the vision tower and the multi-token-prediction head: other computations than ours
_SKIPPED = re.compile(r"^(?:mtp|model\.visual|visual)\.")
_IMAGE_TEXT_PREFIX = "model.language_model."
_MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of one model; the names are those of the dimension key and of style.md."""

    vocab_size: int
    width: int  # D
    inner: int  # of the feed-forward block
    layers: tuple[LayerKind, ...]
    attention: AttentionLayout
    num_key_heads: int  # Hk
    num_heads: int  # H
    key_size: int  # K
    value_size: int  # V
    conv_width: int  # W
    eps: float
    tied: bool
    max_context_tokens: int
    eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def from_hf(cls, fields: Fields) -> Config:
        """Read config.json of the text-only or of the image-text layout.

        Raises:
            ModelFileError: names every field that is wrong, or unknown and not known to be neutral.
        """
        outer = FieldReader(fields)
        outer.optional_names("architectures", _ARCHITECTURES)
        if "text_config" not in outer:
            return cls._from_text(outer, outer.flag("tie_word_embeddings", False))
        outer.fixed("model_type", "qwen3_5")
        outer.ignore("vision_config", "image_token_id", "video_token_id", "language_model_only")
        outer.ignore("vision_start_token_id", "vision_end_token_id")
        text = outer.nested("text_config") or FieldReader({}, problems=outer.problems)
        text.optional_names("architectures", _ARCHITECTURES)
        inner_tie = text.flag("tie_word_embeddings", False)
        # the class of the outer file ties or does not; the inner flag speaks where it is silent
        tied = outer.flag("tie_word_embeddings", inner_tie)
        eos = outer.token_ids("eos_token_id")
        outer.refuse_unknown()
        return cls._from_text(text, tied, eos)

    @classmethod
    def _from_text(cls, text: FieldReader, tied: bool, eos: tuple[int, ...] = ()) -> Config:
        text.fixed("model_type", "qwen3_5_text", "qwen3_5")
        for name, supported in _FIXED_FIELDS.items():
            text.fixed(name, *supported)
        num_key_heads = text.integer("linear_num_key_heads", 16)
        num_heads = text.integer("linear_num_value_heads", 32)
        if num_heads % num_key_heads:
            text.refuse("linear_num_value_heads", f"must be a multiple of {num_key_heads}")
        width = text.integer("hidden_size", 4096)
        eps = text.number("rms_norm_eps", 1e-6, above=0.0, up_to=1.0)
        config = cls(
            vocab_size=text.integer("vocab_size", 248320),
            width=width,
            inner=text.integer("intermediate_size", 12288),
            layers=_layer_kinds(text),
            attention=_attention_layout(text, width, eps),
            num_key_heads=num_key_heads,
            num_heads=num_heads,
            key_size=text.integer("linear_key_head_dim", 128),
            value_size=text.integer("linear_value_head_dim", 128),
            conv_width=text.integer("linear_conv_kernel_dim", 4, minimum=2, maximum=64),
            eps=eps,
            tied=tied,
            max_context_tokens=text.integer("max_position_embeddings", 32768),
            eos_token_ids=tuple(dict.fromkeys((*text.token_ids("eos_token_id"), *eos))),
        )
        text.refuse_unknown(neutral_prefixes=("mtp_", "unsloth_"))
        text.raise_problems()
        return config

    @property
    def mixed_channels(self) -> int:
        """C: query, key and value channels, in this order, that pass the short conv."""
        return 2 * self.num_key_heads * self.key_size + self.num_heads * self.value_size

    @property
    def projected(self) -> tuple[int, int, int, int]:
        """Outputs of the linear layer's projections: q|k|v, output gate, write strength, decay."""
        return (
            self.mixed_channels,
            self.num_heads * self.value_size,
            self.num_heads,
            self.num_heads,
        )

    def spec(self) -> ModelSpec:
        """What the engine must know."""
        attention = self.attention
        return ModelSpec(
            layers=self.layers,
            linear=LinearShape(
                num_heads=self.num_heads,
                key_size=self.key_size,
                value_size=self.value_size,
                transition=TransitionKind.DENSE,
                conv_channels=self.mixed_channels,
                conv_width=self.conv_width,
            ),
            attention=AttentionShape(
                num_query_heads=attention.num_query_heads,
                num_kv_heads=attention.num_kv_heads,
                head_size=attention.head_size,
                rotary=attention.rotary,
            )
            if LayerKind.ATTENTION in self.layers
            else None,
            vocab_size=self.vocab_size,
            max_context_tokens=self.max_context_tokens,
            eos_token_ids=self.eos_token_ids,
        )


# switches of the same code base that this file does not build, at the values it does build
_FIXED_FIELDS: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu", None),
    "mamba_ssm_dtype": ("float32", None),
    "mlp_only_layers": ([], None),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "use_sliding_window": (False,),
    "is_encoder_decoder": (False,),
    "quantization_config": (None,),
    "per_layer_config": (None,),
}


def _layer_kinds(text: FieldReader) -> tuple[LayerKind, ...]:
    num_layers = text.integer("num_hidden_layers", 32, maximum=_MAX_LAYERS)
    interval = text.integer("full_attention_interval", 4, maximum=_MAX_LAYERS)
    names = text.optional_names("layer_types", _KINDS)
    if names is None:
        return tuple(
            LayerKind.LINEAR if (i + 1) % interval else LayerKind.ATTENTION
            for i in range(num_layers)
        )
    if len(names) != num_layers:
        text.refuse("layer_types", f"has {len(names)} entries, num_hidden_layers is {num_layers}")
    return tuple(_KINDS[name] for name in names)


def _attention_layout(text: FieldReader, width: int, eps: float) -> AttentionLayout:
    num_query_heads = text.integer("num_attention_heads", 16)
    num_kv_heads = text.integer("num_key_value_heads", 4)
    if num_query_heads % num_kv_heads:
        text.refuse("num_attention_heads", f"must be a multiple of {num_kv_heads}")
    head_size = text.integer("head_dim", 256)
    return AttentionLayout(
        width=width,
        num_query_heads=num_query_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        rotary=_rotary(text, head_size),
        output_gate=True,
        norm_eps=eps,
        bias=text.flag("attention_bias", False),
    )


def _rotary(text: FieldReader, head_size: int) -> RotarySpec:
    """Plain rotary position; for text the three axes of the image-text model coincide."""
    theta = text.number("rope_theta", 10000.0, above=0.0, up_to=1e15)
    factor = text.number("partial_rotary_factor", 0.25, above=0.0, up_to=1.0)
    rope = text.nested("rope_parameters")
    if rope is not None:
        # other types stretch the angles, some of them by the length of the prompt
        rope.fixed("rope_type", "default")
        rope.fixed("type", "default")
        rope.ignore("mrope_section", "mrope_interleaved")
        theta = rope.number("rope_theta", theta, above=0.0, up_to=1e15)
        factor = rope.number("partial_rotary_factor", factor, above=0.0, up_to=1.0)
        rope.refuse_unknown()
    rotary_dims = int(head_size * factor)
    if rotary_dims < 2 or rotary_dims % 2:
        text.refuse("partial_rotary_factor", f"rotates {rotary_dims} dimensions; must be even")
        return RotarySpec(theta, 2)
    return RotarySpec(theta, rotary_dims)


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
        projected = self.input(hidden_LD, row_independent=context.row_independent)
        mixed_LC, gate, strength_LH, decay_LH = projected.split(config.projected, dim=-1)
        key_channels = config.num_key_heads * config.key_size
        query, key, value = self.conv(mixed_LC, context).split(
            (key_channels, key_channels, config.num_heads * config.value_size), dim=-1
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
        out_LHV = self.norm(out_LHV, gate.unflatten(-1, (config.num_heads, config.value_size)))
        output: torch.Tensor = self.output(
            out_LHV.flatten(1), row_independent=context.row_independent
        )
        return output


class DecoderLayer(nn.Module):
    """Norm, mixer, residual; norm, feed-forward, residual."""

    def __init__(self, config: Config, kind: LayerKind, index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.mixer: nn.Module = (
            GatedDeltaNet(config, index, dtype)
            if kind is LayerKind.LINEAR
            else FullAttention(index, config.attention, dtype=dtype)
        )
        self.mixer_norm = RMSNorm(config.width, eps=config.eps, zero_centred=True, dtype=dtype)
        self.mlp = GatedMLP(config.width, config.inner, dtype=dtype)
        self.mlp_norm = RMSNorm(config.width, eps=config.eps, zero_centred=True, dtype=dtype)

    def forward(self, hidden_LD: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[L, D] -> [L, D]."""
        hidden_LD = hidden_LD + self.mixer(self.mixer_norm(hidden_LD), context)
        output: torch.Tensor = hidden_LD + self.mlp(self.mlp_norm(hidden_LD), context)
        return output


class Model(nn.Module):
    """A CausalLM.  Parameters are not filled here."""

    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.spec = config.spec()
        self.embedding = TokenEmbedding(config.vocab_size, config.width, dtype=dtype)
        self.layers = nn.ModuleList(
            DecoderLayer(config, kind, config.layers[:i].count(kind), dtype)
            for i, kind in enumerate(config.layers)
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
        hidden_LD = self.embedding(ids_L)
        for layer in self.layers:
            hidden_LD = layer(hidden_LD, context)
        hidden_LD = self.norm(hidden_LD)
        return hidden_LD

    @torch.no_grad()
    def logits(self, hidden_ND: torch.Tensor, *, row_independent: bool) -> torch.Tensor:
        """[N, vocab] in fp32 (fp64 for an fp64 model)."""
        output: torch.Tensor = self.head(hidden_ND, row_independent=row_independent)
        return output


def checkpoint_plan(config: Config) -> CheckpointPlan:
    """Names and shapes of the text tensors, as the text-only layout writes them."""
    width = config.width
    places = {
        "model.embed_tokens.weight": TensorPlace("embedding.weight", (config.vocab_size, width)),
        "model.norm.weight": TensorPlace("norm.weight", (width,)),
    }
    tied = {}
    if config.tied:
        tied["lm_head.weight"] = "model.embed_tokens.weight"
    else:
        places["lm_head.weight"] = TensorPlace("head.weight", (config.vocab_size, width))
    for i, kind in enumerate(config.layers):
        mixer = _linear_places if kind is LayerKind.LINEAR else _attention_places
        for name, place in (*_block_places(config), *mixer(config)):
            places[f"model.layers.{i}.{name}"] = TensorPlace(
                f"layers.{i}.{place.parameter}", place.shape, place.row
            )
    return CheckpointPlan(places, tied, _rename)


def _rename(name: str) -> str | None:
    if _SKIPPED.match(name):
        return None
    if name.startswith(_IMAGE_TEXT_PREFIX):
        return "model." + name.removeprefix(_IMAGE_TEXT_PREFIX)
    return name


def _block_places(config: Config) -> Iterator[tuple[str, TensorPlace]]:
    width, inner = config.width, config.inner
    yield "input_layernorm.weight", TensorPlace("mixer_norm.weight", (width,))
    yield "post_attention_layernorm.weight", TensorPlace("mlp_norm.weight", (width,))
    yield "mlp.gate_proj.weight", TensorPlace("mlp.gate_up.weight", (inner, width))
    yield "mlp.up_proj.weight", TensorPlace("mlp.gate_up.weight", (inner, width), inner)
    yield "mlp.down_proj.weight", TensorPlace("mlp.down.weight", (width, inner))


def _linear_places(config: Config) -> Iterator[tuple[str, TensorPlace]]:
    row = 0
    for part, size in zip(("qkv", "z", "b", "a"), config.projected, strict=True):
        shape = (size, config.width)
        yield f"linear_attn.in_proj_{part}.weight", TensorPlace("mixer.input.weight", shape, row)
        row += size
    channels, heads = config.mixed_channels, config.num_heads
    conv_shape = (channels, 1, config.conv_width)
    yield "linear_attn.conv1d.weight", TensorPlace("mixer.conv.weight", conv_shape)
    yield "linear_attn.A_log", TensorPlace("mixer.A_log", (heads,))
    yield "linear_attn.dt_bias", TensorPlace("mixer.dt_bias", (heads,))
    yield "linear_attn.norm.weight", TensorPlace("mixer.norm.weight", (config.value_size,))
    out_shape = (config.width, heads * config.value_size)
    yield "linear_attn.out_proj.weight", TensorPlace("mixer.output.weight", out_shape)


def _attention_places(config: Config) -> Iterator[tuple[str, TensorPlace]]:
    layout, row = config.attention, 0
    kinds = ("weight", "bias") if layout.bias else ("weight",)
    for part, size in zip(("q", "k", "v"), layout.projected, strict=True):
        for kind in kinds:
            shape = (size, config.width) if kind == "weight" else (size,)
            yield f"self_attn.{part}_proj.{kind}", TensorPlace(f"mixer.qkv.{kind}", shape, row)
        row += size
    for kind in kinds:
        out_shape = (config.width, layout.num_query_heads * layout.head_size)
        shape = out_shape if kind == "weight" else out_shape[:1]
        yield f"self_attn.o_proj.{kind}", TensorPlace(f"mixer.output.{kind}", shape)
    for part, name in (("q", "query"), ("k", "key")):
        place = TensorPlace(f"mixer.{name}_norm.weight", (layout.head_size,))
        yield f"self_attn.{part}_norm.weight", place


def _parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
