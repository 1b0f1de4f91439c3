"""ForwardContext for one token at a time: the simplest right answer to a layer."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.models.base import ModelSpec
from tests.plain_context import normed

Vectors = dict[int, torch.Tensor]  # by position


def rotate(x: torch.Tensor, spec: RotarySpec | None, position: int) -> torch.Tensor:
    """Turn the first rotary dims of the last axis by the angles of `position`."""
    if spec is None:
        return x
    half = spec.rotary_dims // 2
    index = torch.arange(half, dtype=torch.float64)
    angle = position * spec.theta ** (-index / half)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if spec.interleaved
        else (slice(0, half), slice(half, 2 * half))
    )
    turned = x.clone()
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., second] * cos + x[..., first] * sin
    return turned


def token_matrices(r: Recurrence) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """T_i [H, K, K], u_i [H, K, V] and scaled query [H, K] of the only token of `r`."""
    value = r.value[0]
    heads, (key_heads, size) = value.shape[0], r.key.shape[1:]
    query, key = (x[0].repeat_interleave(heads // key_heads, 0) for x in (r.query, r.key))
    if r.unit_keys:
        query, key = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (query, key))
    if r.steps is not None:
        log_decay = r.steps[0][:, None] * r.rates
    elif r.constant_log_decay is not None:
        log_decay = r.constant_log_decay[:, None].expand(heads, size)
    elif r.log_decay is not None:
        log_decay = r.log_decay[0].reshape(heads, -1).expand(heads, size)
    else:
        log_decay = value.new_zeros(heads, size)
    decay = torch.diag_embed(log_decay.exp().to(value.dtype))
    if r.erase is None:
        return decay, key[:, :, None] * value[:, None, :], query * r.scale
    strength = r.erase[0].to(value.dtype)[:, None, None]
    projector = torch.eye(size, dtype=value.dtype) - strength * key[:, :, None] * key[:, None, :]
    return projector @ decay, strength * key[:, :, None] * value[:, None, :], query * r.scale


@dataclass
class TokenContext:
    """ForwardContext for one token at a time; holds all that came before."""

    spec: ModelSpec
    dtype: torch.dtype
    position: int = 0
    row_independent: bool = False
    num_rows: int = 1
    recording: bool = False
    states: list[torch.Tensor] = field(default_factory=list)
    history: list[list[torch.Tensor]] = field(default_factory=list)
    keys: list[Vectors] = field(default_factory=list)
    values: list[Vectors] = field(default_factory=list)
    raw_keys: list[Vectors] = field(default_factory=list)
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape, J, A = self.spec.linear, self.spec.num_linear, self.spec.num_attention
        zero = torch.zeros(shape.num_heads, shape.key_size, shape.value_size, dtype=self.dtype)
        unit = torch.eye(shape.key_size, dtype=self.dtype).expand(shape.num_heads, -1, -1)
        self.states = [zero.clone() for _ in range(J)]
        self.pairs = [(unit.clone(), zero.clone()) for _ in range(J)]
        blank = torch.zeros(shape.conv_channels, dtype=self.dtype)
        self.history = [[blank] * (shape.conv_width - 1) for _ in range(J)]
        self.keys, self.values, self.raw_keys = ([{} for _ in range(A)] for _ in range(3))

    @property
    def row_count(self) -> torch.Tensor:
        return torch.tensor([self.num_rows])

    @property
    def positions(self) -> torch.Tensor:
        return torch.tensor([self.position])

    def short_conv(self, layer, inputs_LC, weight_CW, bias_C, *, activation):
        window = [*self.history[layer], inputs_LC[0]]
        self.history[layer] = window[1:]
        out = sum(x * weight_CW[:, i] for i, x in enumerate(window))
        out = out if bias_C is None else out + bias_C
        return (torch.nn.functional.silu(out) if activation == "silu" else out)[None]

    def linear_attention(self, layer, recurrence):
        step, write, query = token_matrices(recurrence.written_out())
        self.states[layer] = step @ self.states[layer] + write
        if self.recording:
            transition, end_state = self.pairs[layer]
            self.pairs[layer] = (step @ transition, step @ end_state + write)
        return torch.einsum("hk,hkv->hv", query, self.states[layer])[None]

    def full_attention(self, layer, query_LQE, key_LGE, value_LGE, *, norms, rotary, scale):
        query_LQE, key_LGE = normed(query_LQE, key_LGE, norms)
        self.raw_keys[layer][self.position] = key_LGE[0]
        self.keys[layer][self.position] = rotate(key_LGE[0], rotary, self.position)
        self.values[layer][self.position] = value_LGE[0]
        visible = [p for p in self.keys[layer] if p <= self.position]
        keys = torch.stack([self.keys[layer][p] for p in visible])
        values = torch.stack([self.values[layer][p] for p in visible])
        repeat = query_LQE.shape[1] // key_LGE.shape[1]
        query = rotate(query_LQE[0], rotary, self.position)
        scores = torch.einsum("qe,pqe->qp", query, keys.repeat_interleave(repeat, 1)) * scale
        return torch.einsum("qp,pqe->qe", scores.softmax(-1), values.repeat_interleave(repeat, 1))[
            None
        ]
