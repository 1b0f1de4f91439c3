"""A ForwardContext for one sequence, all of it live: token by token, no cache, no kernels.

The oracle of model tests.  It shares no code with the package beyond the types, continues from its
own earlier state, and can be copied at any point.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.kernels.head_norms import HeadNorms
from hypic_sdk.models.base import CausalLM


class PlainContext:
    """One sequence from `position` on; each `extend` continues where the last one ended."""

    def __init__(self, *, position: int = 0) -> None:
        self.position = position
        self.row_independent = False
        self.num_rows = 0
        self.positions = torch.empty(0, dtype=torch.long)
        self.states: dict[int, torch.Tensor] = {}  # by linear layer, [H, K, V]
        self.tails: dict[int, torch.Tensor] = {}  # by linear layer, [W-1, C]
        self.keys: dict[int, torch.Tensor] = {}  # by attention layer, [position, G, E], rotated
        self.values: dict[int, torch.Tensor] = {}

    @property
    def row_count(self) -> torch.Tensor:
        return torch.tensor([self.num_rows])

    def extend(self, model: CausalLM, token_ids: Sequence[int]) -> torch.Tensor:
        """Final hidden rows [L, D] of the next tokens."""
        stop = self.position + len(token_ids)
        self.positions = torch.arange(self.position, stop)
        self.num_rows = len(token_ids)
        hidden = model.forward(torch.tensor(token_ids, dtype=torch.long), self)
        self.position = stop
        return hidden

    def logits(self, model: CausalLM, token_ids: Sequence[int]) -> torch.Tensor:
        """Logits [L, vocab] of the next tokens."""
        return model.logits(self.extend(model, token_ids), row_independent=False)

    def copy(self) -> PlainContext:
        """The same past, to be continued apart."""
        return copy.deepcopy(self)

    def short_conv(
        self,
        layer: int,
        inputs_LC: torch.Tensor,
        weight_CW: torch.Tensor,
        bias_C: torch.Tensor | None,
        *,
        activation: str | None,
    ) -> torch.Tensor:
        width = weight_CW.shape[1]
        zeros = inputs_LC.new_zeros(width - 1, inputs_LC.shape[1])
        window = torch.cat((self.tails.get(layer, zeros), inputs_LC))
        self.tails[layer] = window[len(window) - (width - 1) :]
        out = sum(window[i : i + len(inputs_LC)] * weight_CW[:, i] for i in range(width))
        out = out if bias_C is None else out + bias_C
        return torch.nn.functional.silu(out) if activation == "silu" else out

    def linear_attention(self, layer: int, recurrence: Recurrence) -> torch.Tensor:
        r = recurrence.written_out()
        wide = torch.promote_types(r.value.dtype, torch.float32)
        num_tokens, H, V = r.value.shape
        value = r.value.to(wide)
        query, key = (_heads(x, H, wide, r.unit_keys) for x in (r.query, r.key))
        decay = _decay(r, key).to(wide)
        state = self.states.get(layer, value.new_zeros(H, key.shape[2], V))
        out = []
        for i in range(num_tokens):
            state = decay[i, :, :, None] * state
            write = value[i]
            if r.erase is not None:
                seen = torch.einsum("hk,hkv->hv", key[i], state)
                write = r.erase[i].to(wide)[:, None] * (value[i] - seen)
            state = state + key[i, :, :, None] * write[:, None, :]
            out.append(r.scale * torch.einsum("hk,hkv->hv", query[i], state))
        self.states[layer] = state
        return torch.stack(out).to(r.value.dtype)

    def full_attention(
        self,
        layer: int,
        query_LQE: torch.Tensor,
        key_LGE: torch.Tensor,
        value_LGE: torch.Tensor,
        *,
        norms: HeadNorms | None,
        rotary: RotarySpec | None,
        scale: float,
    ) -> torch.Tensor:
        query_LQE, key_LGE = normed(query_LQE, key_LGE, norms)
        query, key = (rotated(x, rotary, self.positions) for x in (query_LQE, key_LGE))
        keys = torch.cat((self.keys.get(layer, key[:0]), key))
        values = torch.cat((self.values.get(layer, value_LGE[:0]), value_LGE))
        self.keys[layer], self.values[layer] = keys, values
        repeat = query.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(repeat, dim=1) for x in (keys, values))
        scores = torch.einsum("lqe,pqe->lqp", query, keys) * scale
        first = len(keys) - len(query)
        later = torch.ones(len(query), len(keys), dtype=torch.bool).triu(first + 1)
        scores = scores.masked_fill(later[:, None, :], -torch.inf)
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
        return torch.einsum("lqp,pqe->lqe", weights.to(values.dtype), values)


def _heads(x: torch.Tensor, H: int, dtype: torch.dtype, unit: bool) -> torch.Tensor:
    """[L, Hk, K] -> [L, H, K]: state head h reads key head h // (H / Hk)."""
    x = x.to(dtype)
    if unit:
        x = x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    return x.repeat_interleave(H // x.shape[1], dim=1)


def _decay(r: Recurrence, key_LHK: torch.Tensor) -> torch.Tensor:
    """Factor of every state row at every token, [L, H, K]."""
    if r.steps is not None and r.rates is not None:
        log_decay = r.steps[:, :, None] * r.rates
    elif r.constant_log_decay is not None:
        log_decay = r.constant_log_decay[None, :, None]
    elif r.log_decay is None:
        return torch.ones_like(key_LHK)
    else:
        log_decay = r.log_decay if r.log_decay.ndim == 3 else r.log_decay[:, :, None]
    return log_decay.exp().expand(key_LHK.shape)


def normed(
    query_LQE: torch.Tensor, key_LGE: torch.Tensor, norms: HeadNorms | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each head by its root mean square, times its weight or 1 + weight, rounded last."""
    if norms is None:
        return query_LQE, key_LGE
    found = []
    for x, weight in ((query_LQE, norms.query_E), (key_LGE, norms.key_E)):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        size = (wide.square().mean(-1, keepdim=True) + norms.eps).sqrt()
        factor = weight.to(wide.dtype) + float(norms.zero_centred)
        found.append((wide / size * factor).to(x.dtype))
    return found[0], found[1]


def rotated(x: torch.Tensor, rotary: RotarySpec | None, positions: torch.Tensor) -> torch.Tensor:
    """Multiply the pairs of the first rotary dims, read as complex numbers, by exp(i angle)."""
    if rotary is None:
        return x
    half = rotary.rotary_dims // 2
    angles = positions.double()[:, None] * rotary.theta ** (-torch.arange(half).double() / half)
    turned = x[..., : 2 * half].double()
    # pairs (i, i + half), or with `interleaved` (2i, 2i + 1)
    pairs = turned.unflatten(-1, (half, 2) if rotary.interleaved else (2, half))
    pairs = pairs if rotary.interleaved else pairs.transpose(-1, -2)
    unit = torch.polar(torch.ones_like(angles), angles)[:, None]
    pairs = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * unit)
    pairs = pairs if rotary.interleaved else pairs.transpose(-1, -2)
    return torch.cat((pairs.flatten(-2).to(x.dtype), x[..., 2 * half :]), dim=-1)
