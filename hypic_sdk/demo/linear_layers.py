"""The reader's linear layers, one class a family, in the mathematics of the engine's families.

`mix` makes what may be kept of a token (without positions), `read` scans it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from hypic_sdk.demo.reader_config import ReaderConfig
from hypic_sdk.demo.reader_parts import GatedNorm, Layout, Mixed, rotate
from hypic_sdk.demo.scan import RESET_LOG_DECAY, chunk_scan

GATE_DIVISOR = 16.0  # of gla: a decay is the sixteenth root of a sigmoid


class ScanInputs(NamedTuple):
    """What `chunk_scan` takes, but for its start; fp32."""

    query: torch.Tensor  # [B, L, H, K]
    key: torch.Tensor  # [B, L, H, K]
    value: torch.Tensor  # [B, L, H, V]
    log_decay: torch.Tensor  # [B, L, H] or [B, L, H, K]
    beta: torch.Tensor | None  # [B, L, H]


class LinearLayer(nn.Module):
    """Projections, short conv where the family has one, scan and gated output."""

    has_conv: ClassVar[bool] = True
    unit_keys: ClassVar[bool] = True
    sigmoid_gate: ClassVar[bool] = False

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        self.config = config
        key_size = config.num_key_heads * config.key_dim
        value_size = config.num_value_heads * config.value_dim
        self.sizes = (key_size, key_size, value_size)
        channels = 2 * key_size + value_size
        width, hidden = config.conv_width, config.hidden_size
        if self.has_conv:
            self.conv1d = nn.Conv1d(channels, channels, width, groups=channels, bias=False)
        self.norm = GatedNorm(config.value_dim, config.eps, sigmoid=self.sigmoid_gate)
        self.out_proj = nn.Linear(value_size, hidden, bias=False)
        self.in_proj_qkv = nn.Linear(hidden, channels, bias=False)
        self.in_proj_z = nn.Linear(hidden, value_size, bias=False)

    @property
    def decay_weights(self) -> tuple[torch.Tensor, ...]:
        """What is learned of a head's decay; the first axis is heads, or their rows in order."""
        raise NotImplementedError

    def mix(self, x: torch.Tensor, layout: Layout) -> Mixed:
        """Return query, key and value, [B, L, heads, size], and what else the family scans."""
        raise NotImplementedError

    def scan_inputs(self, mixed: Mixed, layout: Layout) -> ScanInputs:
        """Return what is scanned, for every state head; decays do not yet know of starts."""
        del layout
        query, key, value, log_decay, *beta = mixed
        query, key = self._each_head(query, key)
        return ScanInputs(query, key, value, log_decay, beta[0] if beta else None)

    def heads(self, x: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, ...]:
        """Return query (scaled), key and value, fp32."""
        config = self.config
        mixed = self.in_proj_qkv(x)
        if self.has_conv:
            mixed = self._conv(mixed, layout.history)
        query, key, value = mixed.split(self.sizes, -1)
        query = query.unflatten(-1, (-1, config.key_dim)).float()
        key = key.unflatten(-1, (-1, config.key_dim)).float()
        if self.unit_keys:
            query = query * torch.rsqrt(query.square().sum(-1, keepdim=True) + 1e-6)
            key = key * torch.rsqrt(key.square().sum(-1, keepdim=True) + 1e-6)
        value = value.unflatten(-1, (-1, config.value_dim)).float()
        return query * config.key_dim**-0.5, key, value

    def _conv(self, x: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
        taps = self.conv1d.weight[:, 0, :].to(x.dtype)
        width = taps.shape[-1]
        out = x * taps[:, -1]
        for back in range(1, width):
            earlier = F.pad(x, (0, 0, back, 0))[:, : x.shape[1]]
            seen = (history >= back)[..., None].to(x.dtype)
            out = out + earlier * seen * taps[:, width - 1 - back]
        return F.silu(out)

    def _each_head(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        groups = self.config.num_value_heads // self.config.num_key_heads
        return tuple(t.repeat_interleave(groups, 2) for t in tensors)

    def read(self, x: torch.Tensor, mixed: Mixed, layout: Layout) -> torch.Tensor:
        """Scan and project; `x` gives the output gate."""
        query, key, value, log_decay, beta = self.scan_inputs(mixed, layout)
        start = layout.start.reshape(*layout.start.shape, *([1] * (log_decay.dim() - 2)))
        log_decay = log_decay + RESET_LOG_DECAY * start.float()
        output, _ = chunk_scan(query, key, value, log_decay, beta)
        gate = self.in_proj_z(x).unflatten(-1, (-1, self.config.value_dim))
        return self.out_proj(self.norm(output, gate).flatten(2).to(x.dtype))


class GatedDeltaNet(LinearLayer):
    """A decay a head, then erase; names as in transformers' Qwen3.5."""

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__(config)
        self.dt_bias = nn.Parameter(torch.ones(config.num_value_heads))
        self.A_log = nn.Parameter(torch.zeros(config.num_value_heads))
        self.in_proj_b = nn.Linear(config.hidden_size, config.num_value_heads, bias=False)
        self.in_proj_a = nn.Linear(config.hidden_size, config.num_value_heads, bias=False)

    @property
    def decay_weights(self) -> tuple[torch.Tensor, ...]:
        """See LinearLayer."""
        return self.A_log, self.dt_bias, self.in_proj_a.weight

    def mix(self, x: torch.Tensor, layout: Layout) -> Mixed:
        """Return query, key, value, log decay and beta, all fp32."""
        rate = self.in_proj_a(x).float() + self.dt_bias.float()
        log_decay = -self.A_log.float().exp() * F.softplus(rate)
        beta = self.in_proj_b(x).float().sigmoid()
        return *self.heads(x, layout), log_decay, beta


class Lightning(LinearLayer):
    """A constant decay a head and rotary keys: no erase, no conv, nothing learned of its decay."""

    has_conv = False
    unit_keys = False

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__(config)
        # at 256 tokens half of the heads keep more than a tenth; powers of two are exact in bf16
        exponents = torch.linspace(-11.0, -1.0, config.num_value_heads)
        self.register_buffer("log_decay", -torch.exp2(exponents))

    @property
    def decay_weights(self) -> tuple[torch.Tensor, ...]:
        """See LinearLayer."""
        return ()

    def mix(self, x: torch.Tensor, layout: Layout) -> Mixed:
        """Return query, key and value before rotation."""
        return self.heads(x, layout)

    def scan_inputs(self, mixed: Mixed, layout: Layout) -> ScanInputs:
        """See LinearLayer; here keys are turned to where they stand."""
        query, key, value = mixed
        dims, theta = self.config.key_rotary_dim, self.config.rope_theta
        query, key = (rotate(t, layout.position, dims, theta) for t in (query, key))
        query, key = self._each_head(query, key)
        log_decay = self.get_buffer("log_decay").float().expand(*value.shape[:3])
        return ScanInputs(query, key, value, log_decay, None)


class Gla(LinearLayer):
    """A decay a key channel from a gate: no erase, no conv."""

    has_conv = False
    unit_keys = False

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__(config)
        heads, key_dim = config.num_value_heads, config.key_dim
        self.gate_bias = nn.Parameter(torch.zeros(heads, key_dim))
        self.in_proj_a = nn.Linear(config.hidden_size, heads * key_dim, bias=False)

    @property
    def decay_weights(self) -> tuple[torch.Tensor, ...]:
        """See LinearLayer."""
        return self.gate_bias, self.in_proj_a.weight

    def mix(self, x: torch.Tensor, layout: Layout) -> Mixed:
        """Return query, key, value and log decay [B, L, H, K]."""
        gate = self.in_proj_a(x).unflatten(-1, self.gate_bias.shape).float()
        log_decay = -F.softplus(-(gate + self.gate_bias.float())) / GATE_DIVISOR
        return *self.heads(x, layout), log_decay


class Kda(LinearLayer):
    """A decay a key channel, then erase; the output gate is a sigmoid."""

    sigmoid_gate = True

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__(config)
        heads, key_dim = config.num_value_heads, config.key_dim
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.step_bias = nn.Parameter(torch.ones(heads, key_dim))
        self.strength_bias = nn.Parameter(torch.zeros(heads))
        self.in_proj_b = nn.Linear(config.hidden_size, heads, bias=False)
        self.in_proj_a = nn.Linear(config.hidden_size, heads * key_dim, bias=False)

    @property
    def decay_weights(self) -> tuple[torch.Tensor, ...]:
        """See LinearLayer."""
        return self.A_log, self.step_bias, self.in_proj_a.weight

    def mix(self, x: torch.Tensor, layout: Layout) -> Mixed:
        """Return query, key, value, log decay [B, L, H, K] and beta."""
        rate = self.in_proj_a(x).unflatten(-1, self.step_bias.shape).float()
        rate = F.softplus(rate + self.step_bias.float())
        log_decay = -self.A_log.float().exp()[:, None] * rate
        beta = (self.in_proj_b(x).float() + self.strength_bias.float()).sigmoid()
        return *self.heads(x, layout), log_decay, beta


LINEAR_LAYERS: Mapping[str, type[LinearLayer]] = MappingProxyType(
    {"gated_delta_rule": GatedDeltaNet, "lightning": Lightning, "gla": Gla, "kda": Kda}
)
"""By the name of their family."""
