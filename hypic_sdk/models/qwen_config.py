"""config.json of Qwen3.5, Qwen3.5 MoE and Qwen3-Next: one model in three ways of writing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from hypic_sdk.layers.full_attention import AttentionLayout
from hypic_sdk.layers.moe import MoELayout
from hypic_sdk.models.base import (
    AttentionShape,
    LayerKind,
    LinearShape,
    ModelSpec,
    TransitionKind,
)
from hypic_sdk.models.config_fields import FieldReader, Fields
from hypic_sdk.models.qwen_fields import (
    FIXED_FIELDS,
    attention_layout,
    expert_layers,
    ignore_repeated,
    layer_kinds,
    state_heads,
    weight_blocks,
)

_NEUTRAL_PREFIXES = ("mtp_", "unsloth_")  # of a head that is not used; of a training library


@dataclass(frozen=True, slots=True)
class Release:
    """What one `model_type` means: transformers' classes and the defaults of its configuration."""

    text_types: tuple[str, ...]  # as the text part may call itself
    architectures: tuple[str, ...]
    defaults: Mapping[str, int]
    image_text: bool = True  # whether there is a layout with a `text_config`
    sparse: bool = False  # whether it may have experts
    every_layer_sparse: bool = True  # no fields that leave some layers dense
    packed: bool = False  # linear projections in two weights, packed by key head

    def inner(self, text: FieldReader) -> int:
        """Width of the dense feed-forward blocks."""
        if "intermediate_size" in self.defaults:
            return text.integer("intermediate_size", self.defaults["intermediate_size"])
        text.ignore("intermediate_size")
        return 0

    def experts(
        self, text: FieldReader, num_layers: int
    ) -> tuple[MoELayout | None, frozenset[int]]:
        """The experts, if there are any, and the layers that have them."""
        if self.sparse:
            return expert_layers(
                text, self.defaults, num_layers, every_layer=self.every_layer_sparse
            )
        text.fixed("mlp_only_layers", [], None)
        return None, frozenset()


DENSE = Release(
    text_types=("qwen3_5_text", "qwen3_5"),
    architectures=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    defaults=MappingProxyType(
        {
            "vocab_size": 248320,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 32,
            "num_key_value_heads": 4,
        }
    ),
)
MOE = Release(
    text_types=("qwen3_5_moe_text", "qwen3_5_moe"),
    architectures=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    defaults=MappingProxyType(
        {
            "vocab_size": 248320,
            "hidden_size": 2048,
            "num_hidden_layers": 40,
            "num_key_value_heads": 2,
            "num_experts": 256,
            "num_experts_per_tok": 8,
        }
    ),
    sparse=True,
)
NEXT = Release(
    text_types=("qwen3_next",),
    architectures=("Qwen3NextForCausalLM",),
    defaults=MappingProxyType(
        {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "num_experts": 512,
            "num_experts_per_tok": 10,
        }
    ),
    image_text=False,
    sparse=True,
    every_layer_sparse=False,
    packed=True,
)
RELEASES: Mapping[str, Release] = MappingProxyType(
    {name: release for release in (DENSE, MOE, NEXT) for name in release.text_types}
)
"""By `model_type`; the image-text layout of a release goes by its last name."""


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of one model; the names are those of the dimension key and of style.md."""

    vocab_size: int
    width: int  # D
    inner: int  # of a dense feed-forward block, 0 without any
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
    moe: MoELayout | None = None
    sparse_layers: frozenset[int] = frozenset()  # layers whose feed-forward block has experts
    # of the checkpoint alone: in memory all models lie alike
    packed: bool = False
    blocks: tuple[int, int] | None = None  # that share a scale, of weights in 8 bits

    @classmethod
    def from_hf(cls, fields: Fields) -> Config:
        """Read config.json of the text-only or of the image-text layout.

        Raises:
            ModelFileError: names every field that is wrong, or unknown and not known to be neutral.
        """
        model_type = fields.get("model_type")
        release = RELEASES.get(model_type, DENSE) if isinstance(model_type, str) else DENSE
        outer = FieldReader(fields)
        outer.optional_names("architectures", release.architectures)
        blocks = weight_blocks(outer)
        if "text_config" not in outer or not release.image_text:
            tied = outer.flag("tie_word_embeddings", False)
            return cls._from_text(outer, release, tied, blocks)
        outer.fixed("model_type", release.text_types[-1])
        outer.ignore("vision_config", "image_token_id", "video_token_id", "language_model_only")
        outer.ignore("vision_start_token_id", "vision_end_token_id", "ignore_index")
        text = outer.nested("text_config") or FieldReader({}, problems=outer.problems)
        text.optional_names("architectures", release.architectures)
        inner_tie = text.flag("tie_word_embeddings", False)
        # the class of the outer file ties or does not; the inner flag speaks where it is silent
        tied = outer.flag("tie_word_embeddings", inner_tie)
        eos = outer.token_ids("eos_token_id")
        ignore_repeated(outer, fields, release.defaults)
        outer.refuse_unknown(neutral_prefixes=_NEUTRAL_PREFIXES)
        text.fixed("quantization_config", None)
        return cls._from_text(text, release, tied, blocks, eos)

    @classmethod
    def _from_text(
        cls,
        text: FieldReader,
        release: Release,
        tied: bool,
        blocks: tuple[int, int] | None,
        eos: tuple[int, ...] = (),
    ) -> Config:
        text.fixed("model_type", *release.text_types)
        for name, supported in FIXED_FIELDS.items():
            text.fixed(name, *supported)
        num_key_heads, num_heads = state_heads(text)
        defaults = release.defaults
        width = text.integer("hidden_size", defaults["hidden_size"])
        eps = text.number("rms_norm_eps", 1e-6, above=0.0, up_to=1.0)
        layers = layer_kinds(text, defaults["num_hidden_layers"])
        moe, sparse = release.experts(text, len(layers))
        config = cls(
            vocab_size=text.integer("vocab_size", defaults["vocab_size"]),
            width=width,
            inner=release.inner(text),
            layers=layers,
            attention=attention_layout(text, width, eps, defaults["num_key_value_heads"]),
            num_key_heads=num_key_heads,
            num_heads=num_heads,
            key_size=text.integer("linear_key_head_dim", 128),
            value_size=text.integer("linear_value_head_dim", 128),
            conv_width=text.integer("linear_conv_kernel_dim", 4, minimum=2, maximum=64),
            eps=eps,
            tied=tied,
            max_context_tokens=text.integer("max_position_embeddings", 32768),
            eos_token_ids=tuple(dict.fromkeys((*text.token_ids("eos_token_id"), *eos))),
            moe=moe,
            sparse_layers=sparse,
            packed=release.packed,
            blocks=blocks,
        )
        text.refuse_unknown(neutral_prefixes=_NEUTRAL_PREFIXES)
        text.raise_problems()
        return config

    @property
    def family(self) -> str:
        """Of the linear layers, by the name in `families.registry`."""
        return "gated_delta_rule"

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

    def describe(self) -> dict[str, str]:
        """In words what the spec does not tell."""
        words = {"width": str(self.width), "embeddings": "tied" if self.tied else "untied"}
        dense = len(self.layers) - len(self.sparse_layers)
        if dense:
            words["feed-forward"] = f"{self.inner} wide in {dense} layers"
        if self.moe is not None and self.sparse_layers:
            moe = self.moe
            words["experts"] = (
                f"{moe.num_experts} of {moe.inner} in {len(self.sparse_layers)} layers, "
                f"{moe.top_k} a token, and a shared one of {moe.shared_inner}"
            )
        if self.blocks is not None:
            words["weights"] = f"8 bits, a scale for each {self.blocks[0]} x {self.blocks[1]}"
        return words

    def trial(self) -> Config:
        """A small model of the same kind, for a trial of ops: layers of both kinds, few heads.

        Sizes that a kernel may be particular about stay: of state and attention heads; others stay
        multiples of 8 where they are.
        """
        group = self.num_heads // self.num_key_heads
        attention = replace(
            self.attention,
            width=_at_most(self.width, 128),
            num_query_heads=self.attention.num_query_heads // self.attention.num_kv_heads,
            num_kv_heads=1,
        )
        moe = self.moe and replace(
            self.moe,
            num_experts=min(self.moe.num_experts, 8),
            top_k=min(self.moe.top_k, 4, self.moe.num_experts),
            inner=_at_most(self.moe.inner, 64),
            shared_inner=_at_most(self.moe.shared_inner, 64),
        )
        kinds = [kind for kind in (LayerKind.ATTENTION, LayerKind.LINEAR) if kind in self.layers]
        layers = tuple(kind for kind in self.layers[:1] + tuple(kinds))
        return replace(
            self,
            vocab_size=min(self.vocab_size, 256),
            width=attention.width,
            inner=_at_most(self.inner, 64),
            layers=layers,
            attention=attention,
            num_key_heads=1,
            num_heads=group,
            max_context_tokens=4096,
            eos_token_ids=(),
            moe=moe,
            sparse_layers=frozenset(range(len(layers))) if moe is not None else frozenset(),
        )


def _at_most(size: int, limit: int) -> int:
    """The size, or one that has the same factors of two up to 8 and is near the limit."""
    return size if size <= limit else limit - limit % 8 + size % 8
