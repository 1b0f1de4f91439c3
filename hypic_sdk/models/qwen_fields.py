"""Groups of fields that the configurations of the Qwen hybrids share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.layers.full_attention import AttentionLayout
from hypic_sdk.layers.moe import MoELayout
from hypic_sdk.models.base import LayerKind
from hypic_sdk.models.config_fields import FieldReader, Fields

_KINDS = {"linear_attention": LayerKind.LINEAR, "full_attention": LayerKind.ATTENTION}
_MAX_LAYERS = 4096

FIXED_FIELDS: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "hidden_act": ("silu", "swish"),
        "attn_output_gate": (True,),
        "output_gate_type": ("swish", "silu", None),
        "mamba_ssm_dtype": ("float32", None),
        "sliding_window": (None,),
        "use_sliding_window": (False,),
        "is_encoder_decoder": (False,),
        "per_layer_config": (None,),
    }
)
"""Switches of the same code base that are not built here, at the values that are."""


def ignore_repeated(outer: FieldReader, fields: Fields, defaults: Mapping[str, int]) -> None:
    """Outer fields of an image-text file that only say again what its `text_config` says."""
    inner = fields["text_config"]
    said = {**defaults, **inner} if isinstance(inner, dict) else {}
    outer.ignore(
        *(
            name
            for name, value in fields.items()
            if name in said and type(value) is type(said[name]) and value == said[name]
        )
    )


def layer_kinds(text: FieldReader, default_layers: int) -> tuple[LayerKind, ...]:
    """Mixers by `layer_types`, or every n-th one attention."""
    num_layers = text.integer("num_hidden_layers", default_layers, maximum=_MAX_LAYERS)
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


def state_heads(text: FieldReader) -> tuple[int, int]:
    """Key heads and state heads of the linear layers."""
    num_key_heads = text.integer("linear_num_key_heads", 16)
    num_heads = text.integer("linear_num_value_heads", 32)
    if num_heads % num_key_heads:
        text.refuse("linear_num_value_heads", f"must be a multiple of {num_key_heads}")
    return num_key_heads, num_heads


def attention_layout(
    text: FieldReader, width: int, eps: float, default_kv_heads: int
) -> AttentionLayout:
    """The full-attention layers: head norms, output gate, part of the head rotated."""
    num_query_heads = text.integer("num_attention_heads", 16)
    num_kv_heads = text.integer("num_key_value_heads", default_kv_heads)
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


def expert_layers(
    text: FieldReader, defaults: Mapping[str, int], num_layers: int, *, every_layer: bool
) -> tuple[MoELayout | None, frozenset[int]]:
    """The experts, and the layers that have them.

    Args:
        every_layer: all layers have experts whose shares sum to 1; else fields say both.
    """
    if every_layer:
        text.fixed("decoder_sparse_step", 1)
        text.fixed("mlp_only_layers", [], None)
        text.fixed("norm_topk_prob", True)
        return _moe_layout(text, defaults, renormalise=True), frozenset(range(num_layers))
    step = text.integer("decoder_sparse_step", 1)
    dense = text.integers("mlp_only_layers")
    moe = _moe_layout(text, defaults, renormalise=text.flag("norm_topk_prob", True))
    sparse = frozenset(i for i in range(num_layers) if i not in dense and (i + 1) % step == 0)
    return (moe, sparse) if moe.num_experts and sparse else (None, frozenset())


def _moe_layout(text: FieldReader, defaults: Mapping[str, int], *, renormalise: bool) -> MoELayout:
    num_experts = text.integer("num_experts", defaults["num_experts"], minimum=0)
    top_k = text.integer("num_experts_per_tok", defaults["num_experts_per_tok"])
    if top_k > num_experts > 0:
        text.refuse("num_experts_per_tok", f"must be at most {num_experts}, got {top_k}")
    return MoELayout(
        num_experts=num_experts,
        top_k=top_k,
        inner=text.integer("moe_intermediate_size", 512),
        shared_inner=text.integer("shared_expert_intermediate_size", 512),
        renormalise=renormalise,
    )


def weight_blocks(fields: FieldReader) -> tuple[int, int] | None:
    """Rows and columns that share a scale in a checkpoint of 8-bit weights; none in any other.

    Which modules are stored in 8 bits is read from the files.  Rows are not rounded to 8 bits, as
    they are where such a product runs in 8 bits: that loses accuracy for speed.
    """
    stored = fields.nested("quantization_config")
    if stored is None:
        return None
    stored.fixed("quant_method", "fp8")
    stored.fixed("fmt", "e4m3")
    stored.fixed("activation_scheme", "dynamic")
    stored.fixed("dequantize", False, True)
    stored.fixed("scale_fmt", None, "float")
    stored.fixed("kv_cache_scheme", None)
    stored.ignore("modules_to_not_convert", "ignored_layers")
    blocks = stored.integers("weight_block_size")
    if len(blocks) != 2 or 0 in blocks:
        stored.refuse("weight_block_size", "must be two numbers above 0")
        return None
    stored.refuse_unknown()
    return blocks[0], blocks[1]


def _rotary(text: FieldReader, head_size: int) -> RotarySpec:
    """Plain rotary position; for text the three axes of the image-text model coincide."""
    theta = text.number("rope_theta", 10000.0, above=0.0, up_to=1e15)
    factor = text.number("partial_rotary_factor", 0.25, above=0.0, up_to=1.0)
    rope = text.nested("rope_scaling")  # the older name, which goes first in transformers
    if rope is None or rope.is_empty:
        rope = text.nested("rope_parameters")
    else:
        text.fixed("rope_parameters", None)
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
