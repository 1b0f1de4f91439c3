"""Random weights for any family, with or without attention: tests, examples, the scripted path.

Everything matters on purpose: decays are slow (states carry over hundreds of tokens), gates move
with their input, key and value sizes differ, several state heads share a key head.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from hypic_sdk.kernels.activation import silu
from hypic_sdk.layers.context import ForwardContext
from hypic_sdk.layers.embedding import LMHead, TokenEmbedding
from hypic_sdk.layers.full_attention import FullAttention
from hypic_sdk.layers.linear import Linear
from hypic_sdk.layers.mlp import GatedMLP
from hypic_sdk.layers.norm import GatedRMSNorm, RMSNorm
from hypic_sdk.layers.short_conv import ShortConv
from hypic_sdk.models.base import LayerKind
from hypic_sdk.models.tiny_config import MixerInputs, TinyConfig

_EPS = 1e-6


def build_tiny(
    family: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    layers: str = "LLA",
    **sizes: int | bool,
) -> TinyHybrid:
    """A model of a few thousand parameters.

    Args:
        seed: of the weights.  They are drawn in fp64 and rounded, so the same seed gives the same
            model in every precision and on every device.
        sizes: other fields of TinyConfig.
    """
    defaults = {"value_size": 1, "num_heads": 8, "num_key_heads": 1} if family == "mamba1" else {}
    config = TinyConfig(family, layers, **{**defaults, **sizes})  # type: ignore[arg-type]
    with torch.device(device):
        model = TinyHybrid(config, dtype)
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        parameter.copy_(_draw(name, parameter.shape, rng))
    return model.eval()


class TinyHybrid(nn.Module):
    """A CausalLM: pre-norm blocks of a mixer and a gated feed-forward block, untied head."""

    def __init__(self, config: TinyConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.spec = config.spec()
        kinds = self.spec.layers
        self.embedding = TokenEmbedding(config.vocab_size, config.width, dtype=dtype)
        self.layers = nn.ModuleList(
            _Block(config, kind, kinds[:i].count(kind), dtype) for i, kind in enumerate(kinds)
        )
        self.norm = RMSNorm(config.width, eps=_EPS, zero_centred=True, dtype=dtype)
        self.head = LMHead(config.vocab_size, config.width, dtype=dtype)

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


class _Block(nn.Module):
    def __init__(self, config: TinyConfig, kind: LayerKind, index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.mixer: nn.Module = (
            _LinearMixer(config, index, dtype)
            if kind is LayerKind.LINEAR
            else FullAttention(index, config.attention, dtype=dtype)
        )
        self.mixer_norm = RMSNorm(config.width, eps=_EPS, zero_centred=True, dtype=dtype)
        self.mlp = GatedMLP(config.width, config.inner, dtype=dtype)
        self.mlp_norm = RMSNorm(config.width, eps=_EPS, zero_centred=True, dtype=dtype)

    def forward(self, hidden_LD: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        hidden_LD = hidden_LD + self.mixer(self.mixer_norm(hidden_LD), context)
        output: torch.Tensor = hidden_LD + self.mlp(self.mlp_norm(hidden_LD), context)
        return output


class _LinearMixer(nn.Module):
    """One linear layer: projections, conv if the family has one, recurrence, gated output."""

    def __init__(self, config: TinyConfig, index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.index = index
        family = config.mixer
        channels, num_extras = config.mixed_channels, family.num_extras(config)
        self.sizes = (channels, config.value_channels, 0 if family.late else num_extras)
        self.input = Linear(config.width, sum(self.sizes), dtype=dtype)
        self.late = Linear(channels, num_extras, dtype=dtype) if family.late else None
        self.conv = (
            ShortConv(index, channels, config.conv_width, dtype=dtype, bias=family.bias)
            if family.conv
            else None
        )
        wide = torch.promote_types(dtype, torch.float32)
        self.gates = nn.ParameterDict(
            {
                name: nn.Parameter(torch.empty(shape, dtype=wide), requires_grad=False)
                for name, shape in family.parameters(config).items()
            }
        )
        self.value_norm = self._value_norm(dtype)
        self.output = Linear(config.value_channels, config.width, dtype=dtype)

    def _value_norm(self, dtype: torch.dtype) -> GatedRMSNorm | None:
        config = self.config
        # over a single value a norm would leave nothing but the sign
        if config.value_size == 1:
            return None
        return GatedRMSNorm(
            config.value_size,
            eps=_EPS,
            activation="sigmoid" if config.family == "kda" else "silu",
            gate_first=config.family == "mamba2",
            dtype=dtype,
        )

    def forward(self, hidden_LD: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        config, alike = self.config, context.row_independent
        projected = self.input(hidden_LD, row_independent=alike)
        mixed_LC, gate, extras = projected.split(self.sizes, dim=-1)
        if self.conv is not None:
            mixed_LC = self.conv(mixed_LC, context)
        if self.late is not None:
            extras = self.late(mixed_LC, row_independent=alike)
        inputs = MixerInputs(config, self.gates, mixed_LC, extras, context.positions)
        recurrence, through_LHV = config.mixer.make(inputs)
        out_LHV = context.linear_attention(self.index, recurrence)
        if through_LHV is not None:
            out_LHV = out_LHV + through_LHV
        gate_LHV = inputs.values(gate)
        if self.value_norm is None:
            out_LHV = out_LHV * silu(gate_LHV)
        else:
            out_LHV = self.value_norm(out_LHV, gate_LHV)
        output: torch.Tensor = self.output(out_LHV.flatten(1), row_independent=alike)
        return output


def _draw(path: str, shape: torch.Size, rng: torch.Generator) -> torch.Tensor:
    """fp64 values of a parameter, by its name."""
    name = path.rpartition(".")[2]
    uniform = torch.rand(shape, generator=rng, dtype=torch.float64)
    normal = torch.randn(shape, generator=rng, dtype=torch.float64)
    if name == "log_decay":
        # half-lives spread from about 20 to 700 tokens
        return -1.0 / (30.0 * (1000.0 / 30.0) ** uniform)
    if name == "A_log":
        return (0.3 + 0.9 * uniform).log()
    if name == "step_bias":
        # the inverse softplus of step sizes log-uniform in 1e-3 .. 5e-2
        return (1e-3 * 50.0**uniform).expm1().log()
    if name == "gate_bias":
        return 4.0 * uniform
    if name == "strength_bias":
        return 2.0 * uniform - 4.0
    if len(shape) == 1:
        # all norms but the gated one are zero-centred
        return 0.3 * normal + (1.0 if path.endswith("value_norm.weight") else 0.0)
    # what mamba1 makes of its conv's small outputs must still be felt
    gain = 2.0 if path.endswith("late.weight") else 1.0
    return gain * normal / math.sqrt(shape[-1])
