"""The reader as a training module: same parameters and names as transformers' Qwen3.5 text model.

Besides the plain forward it has the composed one: documents run in isolation, their interiors kept,
the rest recomputed in place over the assembled state and keys. It keeps two hidden streams,
*isolated* and *live*; in each layer the live stream reads the isolated stream's keys, values and
gates at interiors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from hypic_sdk.demo.scan import RESET_LOG_DECAY, chunk_scan


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

    @property
    def layer_types(self) -> list[str]:
        """Kind of every layer, by transformers' names."""
        return [
            "full_attention" if i in self.full_layers else "linear_attention"
            for i in range(self.num_layers)
        ]

    def to_transformers(self, eos: int, pad: int) -> dict[str, Any]:
        """Return the content of config.json."""
        return {
            **self._sizes(),
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "dtype": "bfloat16",
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_output_gate": True,
            "max_position_embeddings": 8192,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "use_cache": True,
            "bos_token_id": None,
            "eos_token_id": eos,
            "pad_token_id": pad,
        }

    def _sizes(self) -> dict[str, Any]:
        half = self.rotary_dim // 2
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
            "partial_rotary_factor": self.rotary_dim / self.head_dim,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": self.rotary_dim / self.head_dim,
                "mrope_interleaved": True,
                "mrope_section": [half - 2 * (half // 3), half // 3, half // 3],
            },
        }


@dataclass(frozen=True, slots=True)
class Layout:
    """How a stream is cut: what each token may see, and where its position counts from."""

    position: torch.Tensor  # [B, L] rotary position
    start: torch.Tensor  # [B, L] bool, the recurrent state is zero before this token
    history: torch.Tensor  # [B, L] earlier tokens the short conv may read
    mask: torch.Tensor  # [B, 1, L, L] bool, what attention sees

    @classmethod
    def of(
        cls, group: torch.Tensor, position: torch.Tensor, visible: torch.Tensor | None = None
    ) -> Layout:
        """Cut where `group` changes; positions count from each cut. `visible` may hide keys."""
        length = group.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=group.device).tril()
        mask = (group[:, :, None] == group[:, None, :]) & causal
        if visible is not None:
            own = torch.eye(length, dtype=torch.bool, device=group.device)
            mask = mask & (visible | own)
        return cls(position, position == 0, position, mask[:, None])


def compute_dtype(x: torch.Tensor) -> torch.dtype:
    """Return the dtype that products of `x` run in: autocast's where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class Norm(nn.Module):
    """Zero-centred RMS norm in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis of x."""
        normed = F.rms_norm(x.float(), (x.shape[-1],), 1.0 + self.weight.float(), self.eps)
        return normed.to(compute_dtype(x))


class GatedNorm(nn.Module):
    """RMS norm over a value head, then times SiLU of the gate."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis of x, then gate; fp32."""
        normed = F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps)
        return normed * F.silu(gate.float())


Mixed = tuple[torch.Tensor, ...]


def merge(interior: torch.Tensor, isolated: Mixed, live: Mixed) -> Mixed:
    """Take the isolated stream's tensors at interiors, the live stream's elsewhere."""
    return tuple(
        torch.where(interior.reshape(*interior.shape, *([1] * (b.dim() - 2))), a, b)
        for a, b in zip(isolated, live, strict=True)
    )


class LinearLayer(nn.Module):
    """Gated delta net. `mix` makes what the scan reads, `read` runs it."""

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        self.config = config
        key_size = config.num_key_heads * config.key_dim
        value_size = config.num_value_heads * config.value_dim
        self.sizes = (key_size, key_size, value_size)
        channels = 2 * key_size + value_size
        width, hidden = config.conv_width, config.hidden_size
        self.conv1d = nn.Conv1d(channels, channels, width, groups=channels, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(config.num_value_heads))
        self.A_log = nn.Parameter(torch.zeros(config.num_value_heads))
        self.norm = GatedNorm(config.value_dim, config.eps)
        self.out_proj = nn.Linear(value_size, hidden, bias=False)
        self.in_proj_qkv = nn.Linear(hidden, channels, bias=False)
        self.in_proj_z = nn.Linear(hidden, value_size, bias=False)
        self.in_proj_b = nn.Linear(hidden, config.num_value_heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, config.num_value_heads, bias=False)

    @property
    def decay_weights(self) -> tuple[torch.Tensor, ...]:
        """What decides a head's decay; the first axis is heads."""
        return self.A_log, self.dt_bias, self.in_proj_a.weight

    def mix(self, x: torch.Tensor, layout: Layout) -> Mixed:
        """Return query, key, value, log decay and beta, all fp32."""
        config = self.config
        mixed = self._conv(self.in_proj_qkv(x), layout.history)
        query, key, value = mixed.split(self.sizes, -1)
        query = query.unflatten(-1, (-1, config.key_dim)).float()
        key = key.unflatten(-1, (-1, config.key_dim)).float()
        query = query * torch.rsqrt(query.square().sum(-1, keepdim=True) + 1e-6)
        key = key * torch.rsqrt(key.square().sum(-1, keepdim=True) + 1e-6)
        value = value.unflatten(-1, (-1, config.value_dim)).float()
        rate = self.in_proj_a(x).float() + self.dt_bias.float()
        log_decay = -self.A_log.float().exp() * F.softplus(rate)
        beta = self.in_proj_b(x).float().sigmoid()
        return query * config.key_dim**-0.5, key, value, log_decay, beta

    def _conv(self, x: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
        taps = self.conv1d.weight[:, 0, :].to(x.dtype)
        width = taps.shape[-1]
        out = x * taps[:, -1]
        for back in range(1, width):
            earlier = F.pad(x, (0, 0, back, 0))[:, : x.shape[1]]
            seen = (history >= back)[..., None].to(x.dtype)
            out = out + earlier * seen * taps[:, width - 1 - back]
        return F.silu(out)

    def read(self, x: torch.Tensor, mixed: Mixed, layout: Layout) -> torch.Tensor:
        """Scan and project; `x` gives the output gate."""
        config = self.config
        query, key, value, log_decay, beta = mixed
        groups = config.num_value_heads // config.num_key_heads
        query, key = (t.repeat_interleave(groups, 2) for t in (query, key))
        log_decay = log_decay + RESET_LOG_DECAY * layout.start[..., None].float()
        output, _ = chunk_scan(query, key, value, log_decay, beta)
        gate = self.in_proj_z(x).unflatten(-1, (-1, config.value_dim))
        return self.out_proj(self.norm(output, gate).flatten(2).to(x.dtype))


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
        query = self._rotate(self.q_norm(query), layout.position)
        key = self._rotate(mixed[0], layout.position)
        groups = config.num_heads // config.num_kv_heads
        query, key, value = (t.transpose(1, 2).to(x.dtype) for t in (query, key, mixed[1]))
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=layout.mask)
        output = output.transpose(1, 2).flatten(2) * gate.flatten(2).sigmoid()
        return self.o_proj(output)

    def _rotate(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        config = self.config
        steps = torch.arange(0, config.rotary_dim, 2, device=x.device, dtype=torch.float32)
        angle = position[..., None].float() * config.rope_theta ** (-steps / config.rotary_dim)
        cos, sin = angle.cos()[:, :, None], angle.sin()[:, :, None]
        half = config.rotary_dim // 2
        one, two, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        turned = torch.cat((one * cos - two * sin, two * cos + one * sin), -1)
        return torch.cat((turned.to(x.dtype), rest), -1)


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
            self.linear_attn = LinearLayer(config)
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
