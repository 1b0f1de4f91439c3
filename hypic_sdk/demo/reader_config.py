"""Sizes of the reader and of its siblings, and the config.json that says them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FAMILIES = ("gated_delta_rule", "lightning", "gla", "kda")
"""What the linear layers may be, by the engine's names; the first is the packaged reader's."""


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """Sizes of the reader."""

    vocab_size: int = 8192
    hidden_size: int = 384
    intermediate_size: int = 1024
    num_layers: int = 8
    full_layers: tuple[int, ...] = (3, 7)  # which layers are full attention
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 32
    rope_theta: float = 100_000.0
    num_key_heads: int = 3
    num_value_heads: int = 6
    key_dim: int = 64
    value_dim: int = 64
    conv_width: int = 4
    eps: float = 1e-6
    family: str = FAMILIES[0]  # of the linear layers; those of one model are alike

    @property
    def layer_types(self) -> list[str]:
        """Kind of every layer, by transformers' names."""
        return [
            "full_attention" if i in self.full_layers else "linear_attention"
            for i in range(self.num_layers)
        ]

    @property
    def key_rotary_dim(self) -> int:
        """How much of a key is rotary in the linear layers of lightning: half, as in Ring."""
        return self.key_dim // 2

    def to_json(self, eos: int, pad: int) -> dict[str, Any]:
        """Return the content of config.json: transformers' Qwen3.5, or for a sibling our own."""
        content = {
            **self._sizes(),
            "dtype": "bfloat16",
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": eos,
            "pad_token_id": pad,
        }
        return content | (self._as_qwen() if self.family == FAMILIES[0] else self._as_sibling())

    def _sizes(self) -> dict[str, Any]:
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "layer_types": self.layer_types,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "linear_conv_kernel_dim": self.conv_width,
            "linear_key_head_dim": self.key_dim,
            "linear_value_head_dim": self.value_dim,
            "linear_num_key_heads": self.num_key_heads,
            "linear_num_value_heads": self.num_value_heads,
            "rms_norm_eps": self.eps,
        }

    def _as_qwen(self) -> dict[str, Any]:
        half, share = self.rotary_dim // 2, self.rotary_dim / self.head_dim
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_output_gate": True,
            "initializer_range": 0.02,
            "use_cache": True,
            "partial_rotary_factor": share,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": share,
                "mrope_interleaved": True,
                "mrope_section": [half - 2 * (half // 3), half // 3, half // 3],
            },
        }

    def _as_sibling(self) -> dict[str, Any]:
        return {
            "architectures": ["TinyHybridForCausalLM"],
            "model_type": "tiny_hybrid",
            "family": self.family,
            "linear_rotary_dim": self.key_rotary_dim if self.family == "lightning" else 0,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": self.rotary_dim / self.head_dim,
            },
        }

    @classmethod
    def of_json(cls, raw: dict[str, Any]) -> ReaderConfig:
        """Read what `to_json` gives."""
        kinds = enumerate(raw["layer_types"])
        return cls(
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_layers=raw["num_hidden_layers"],
            full_layers=tuple(at for at, kind in kinds if kind == "full_attention"),
            num_heads=raw["num_attention_heads"],
            num_kv_heads=raw["num_key_value_heads"],
            head_dim=raw["head_dim"],
            rotary_dim=round(raw["head_dim"] * raw["rope_parameters"]["partial_rotary_factor"]),
            rope_theta=raw["rope_parameters"]["rope_theta"],
            num_key_heads=raw["linear_num_key_heads"],
            num_value_heads=raw["linear_num_value_heads"],
            key_dim=raw["linear_key_head_dim"],
            value_dim=raw["linear_value_head_dim"],
            conv_width=raw["linear_conv_kernel_dim"],
            eps=raw["rms_norm_eps"],
            family=raw.get("family", FAMILIES[0]),
        )
