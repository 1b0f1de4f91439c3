"""Sizes of a tiny model, and how the linear layers of each family make their recurrence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import nn

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.errors import ConfigError, UnsupportedError
from hypic_sdk.families.delta_rule import delta_rule
from hypic_sdk.families.gated_delta_rule import gated_delta_rule
from hypic_sdk.families.gla import gla
from hypic_sdk.families.kda import kda
from hypic_sdk.families.lightning import lightning
from hypic_sdk.families.mamba1 import mamba1
from hypic_sdk.families.mamba2 import mamba2
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.families.retention import retention
from hypic_sdk.kernels.activation import softplus
from hypic_sdk.layers.full_attention import AttentionLayout
from hypic_sdk.models.base import (
    AttentionShape,
    LayerKind,
    LinearShape,
    ModelSpec,
    TransitionKind,
)

_KINDS = {"L": LayerKind.LINEAR, "A": LayerKind.ATTENTION}


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """Sizes of a tiny model; `layers` is a pattern of L (linear) and A (attention)."""

    family: str
    layers: str = "LLA"
    vocab_size: int = 97
    width: int = 16
    inner: int = 24
    num_heads: int = 4  # H
    num_key_heads: int = 2  # Hk
    key_size: int = 6  # K
    value_size: int = 5  # V; 1 for mamba1, whose state heads are channels
    conv_width: int = 4  # W, of the families that have a conv
    num_query_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 8
    rotary: bool = True  # in attention
    key_rotary: bool = True  # in the linear layers of lightning
    max_context_tokens: int = 8192
    eos_token_ids: tuple[int, ...] = (2,)

    def __post_init__(self) -> None:
        if self.family not in _MIXERS:
            raise UnsupportedError(
                f"no family {self.family!r}; there are {', '.join(sorted(_MIXERS))}"
            )
        if not self.layers or set(self.layers) - set(_KINDS):
            raise ConfigError(f"layers is a pattern of L and A, got {self.layers!r}")
        if self.num_heads % self.num_key_heads or self.num_query_heads % self.num_kv_heads:
            raise ConfigError("heads must be a multiple of the heads they share")

    @property
    def mixer(self) -> FamilyMixer:
        """How the linear layers of this family look."""
        return _MIXERS[self.family]

    @property
    def key_channels(self) -> int:
        """Hk K."""
        return self.num_key_heads * self.key_size

    @property
    def value_channels(self) -> int:
        """H V."""
        return self.num_heads * self.value_size

    @property
    def mixed_channels(self) -> int:
        """Query, key and value channels; value channels alone where the others are made late."""
        return self.value_channels + (0 if self.mixer.late else 2 * self.key_channels)

    @property
    def key_rotation(self) -> RotarySpec | None:
        """Rotary position inside the recurrence."""
        if self.family != "lightning" or not self.key_rotary:
            return None
        return RotarySpec(10000.0, 2 * max(1, self.key_size // 3))

    @property
    def attention(self) -> AttentionLayout:
        """Plain grouped attention; half of a head is rotary."""
        rotary = RotarySpec(10000.0, 2 * max(1, self.head_size // 4)) if self.rotary else None
        return AttentionLayout(
            self.width, self.num_query_heads, self.num_kv_heads, self.head_size, rotary
        )

    def spec(self) -> ModelSpec:
        """What the engine must know."""
        has_conv, kinds = self.mixer.conv, tuple(_KINDS[letter] for letter in self.layers)
        return ModelSpec(
            layers=kinds,
            linear=LinearShape(
                num_heads=self.num_heads,
                key_size=self.key_size,
                value_size=self.value_size,
                transition=self.mixer.transition,
                conv_channels=self.mixed_channels if has_conv else 0,
                conv_width=self.conv_width if has_conv else 1,
                key_rotation=self.key_rotation,
            ),
            attention=AttentionShape(
                self.num_query_heads, self.num_kv_heads, self.head_size, self.attention.rotary
            )
            if LayerKind.ATTENTION in kinds
            else None,
            vocab_size=self.vocab_size,
            max_context_tokens=self.max_context_tokens,
            eos_token_ids=self.eos_token_ids,
        )


@dataclass(frozen=True, slots=True)
class MixerInputs:
    """What a linear layer has made of its rows."""

    config: TinyConfig
    gates: nn.ParameterDict  # the family's own parameters
    mixed_LC: torch.Tensor  # query, key and value channels, after the conv
    extras: torch.Tensor  # further projections of the family
    positions: torch.Tensor  # [L]

    def heads(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query [L, Hk, K], key [L, Hk, K] and value [L, H, V]."""
        config = self.config
        sizes = (config.key_channels, config.key_channels, config.value_channels)
        query, key, value = self.mixed_LC.split(sizes, dim=-1)
        keys = (config.num_key_heads, config.key_size)
        return query.unflatten(-1, keys), key.unflatten(-1, keys), self.values(value)

    def values(self, channels: torch.Tensor) -> torch.Tensor:
        """[L, H, V]."""
        return channels.unflatten(-1, (self.config.num_heads, self.config.value_size))

    def strength(self, logits_LH: torch.Tensor) -> torch.Tensor:
        """Erase strengths before the sigmoid, kept weak so that a state lives long."""
        return logits_LH + self.gates["strength_bias"]


# the recurrence, and what passes by the state on its way to the output
_Made = tuple[Recurrence, torch.Tensor | None]


def _retention(m: MixerInputs) -> _Made:
    return retention(*m.heads(), m.gates["log_decay"]), None


def _lightning(m: MixerInputs) -> _Made:
    rotary = m.config.key_rotation
    return lightning(*m.heads(), m.gates["log_decay"], m.positions, rotary=rotary), None


def _gla(m: MixerInputs) -> _Made:
    logits = m.extras.unflatten(-1, (m.config.num_heads, m.config.key_size))
    return gla(*m.heads(), logits + m.gates["gate_bias"]), None


def _delta_rule(m: MixerInputs) -> _Made:
    return delta_rule(*m.heads(), m.strength(m.extras)), None


def _gated_delta_rule(m: MixerInputs) -> _Made:
    strength, decay = m.extras.chunk(2, dim=-1)
    gates = (m.gates["A_log"], m.gates["step_bias"])
    return gated_delta_rule(*m.heads(), m.strength(strength), decay, *gates), None


def _kda(m: MixerInputs) -> _Made:
    heads, keys = m.config.num_heads, m.config.key_size
    strength, gate = m.extras.split((heads, heads * keys), dim=-1)
    gate, gates = gate.unflatten(-1, (heads, keys)), (m.gates["A_log"], m.gates["step_bias"])
    return kda(*m.heads(), m.strength(strength), gate, *gates), None


def _mamba2(m: MixerInputs) -> _Made:
    C, B, x = m.heads()
    gates = (m.gates["A_log"], m.gates["step_bias"])
    return mamba2(x, B, C, m.extras, *gates), _through(x, m.gates["skip"])


def _mamba1(m: MixerInputs) -> _Made:
    config, x = m.config, m.values(m.mixed_LC)
    sizes = (config.num_heads, config.key_channels, config.key_channels)
    step, B, C = m.extras.split(sizes, dim=-1)
    keys = (config.num_key_heads, config.key_size)
    steps = softplus(step + m.gates["step_bias"])
    recurrence = mamba1(x, B.unflatten(-1, keys), C.unflatten(-1, keys), steps, m.gates["A_log"])
    return recurrence, _through(x, m.gates["skip"])


def _through(x_LHV: torch.Tensor, skip_H: torch.Tensor) -> torch.Tensor:
    return (x_LHV * skip_H[:, None]).to(x_LHV.dtype)


@dataclass(frozen=True, slots=True)
class FamilyMixer:
    """What tells the linear layers of one family from another's."""

    transition: TransitionKind
    make: Callable[[MixerInputs], _Made]
    # per state head (and with a key axis where it ends in _K): gates and decays, never below fp32
    names: tuple[str, ...] = ()
    extras_H: int = 0  # projected numbers a state head
    extras_HK: int = 0  # and a key channel of it
    conv: bool = False
    bias: bool = False  # of the conv
    late: bool = False  # further projections read the conv's output

    def num_extras(self, config: TinyConfig) -> int:
        """Outputs of the family's further projections (with `late`, key and query among them)."""
        late = 2 * config.key_channels if self.late else 0
        return config.num_heads * (self.extras_H + self.extras_HK * config.key_size) + late

    def parameters(self, config: TinyConfig) -> dict[str, tuple[int, ...]]:
        """Shapes of the family's own parameters."""
        heads, keys = config.num_heads, config.key_size
        return {
            name.removesuffix("_K"): (heads, keys) if name.endswith("_K") else (heads,)
            for name in self.names
        }


_MIXERS: Mapping[str, FamilyMixer] = MappingProxyType(
    {
        "retention": FamilyMixer(TransitionKind.CONSTANT, _retention, ("log_decay",)),
        "lightning": FamilyMixer(TransitionKind.CONSTANT, _lightning, ("log_decay",)),
        "mamba2": FamilyMixer(
            TransitionKind.SCALAR, _mamba2, ("A_log", "step_bias", "skip"), 1, conv=True, bias=True
        ),
        "mamba1": FamilyMixer(
            TransitionKind.DIAGONAL,
            _mamba1,
            ("A_log_K", "step_bias", "skip"),
            1,
            conv=True,
            bias=True,
            late=True,
        ),
        "gla": FamilyMixer(TransitionKind.DIAGONAL, _gla, ("gate_bias_K",), extras_HK=1),
        "delta_rule": FamilyMixer(TransitionKind.DENSE, _delta_rule, ("strength_bias",), 1),
        "gated_delta_rule": FamilyMixer(
            TransitionKind.DENSE,
            _gated_delta_rule,
            ("A_log", "step_bias", "strength_bias"),
            2,
            conv=True,
        ),
        "kda": FamilyMixer(
            TransitionKind.DENSE,
            _kda,
            ("A_log", "step_bias_K", "strength_bias"),
            1,
            1,
            conv=True,
        ),
    }
)
