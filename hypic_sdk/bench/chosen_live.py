"""A prompt assembled with any choice of live tokens, for choices that no seam rule can write.

Every segment runs alone once, and what each layer was given at each of its tokens is recorded.
For a choice, the model runs on the live tokens only; in between, a layer finds what was recorded.
A scan over recorded and live tokens in prompt order is the composition itself, since a stretch's
pair is the product of its tokens, so one record serves every choice.  Nothing is rounded for a
store: transitions are as exact as the dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch

from hypic_sdk.algebra.rotary import RotarySpec, rotary_angles, rotate
from hypic_sdk.errors import ConfigError
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.kernels.head_norms import HeadNorms
from hypic_sdk.kernels.items import Item, ItemKind
from hypic_sdk.kernels.live_scan.op import live_scan
from hypic_sdk.kernels.short_conv.op import short_conv
from hypic_sdk.models.base import CausalLM
from hypic_sdk.prompt.segment import Role, SegmentedPrompt

PER_TOKEN = ("query", "key", "value", "log_decay", "erase", "steps")  # fields of a Recurrence


@dataclass(slots=True, eq=False)
class Record:
    """What the layers of one forward were given, by place in the prompt: [N, ..] each."""

    conv_inputs: list[torch.Tensor] = field(default_factory=list)
    recurrences: list[Recurrence] = field(default_factory=list)
    keys: list[torch.Tensor] = field(default_factory=list)  # before rotation
    values: list[torch.Tensor] = field(default_factory=list)


def _filled(
    live: torch.Tensor, places: torch.Tensor, num_tokens: int, recorded: torch.Tensor | None
) -> torch.Tensor:
    """[num_tokens, ..]: the live rows at their places, between them what was recorded, or zeros."""
    whole = live.new_zeros((num_tokens, *live.shape[1:]))
    if recorded is not None:
        whole[: len(recorded)] = recorded
    whole[places] = live
    return whole


@final
class ChosenContext:
    """ForwardContext over live tokens of a prompt; the others were recorded, or do nothing."""

    def __init__(
        self,
        stretches: Sequence[tuple[int, int]],
        places: torch.Tensor,
        recorded: Record | None = None,
        watched_from: int | None = None,
    ) -> None:
        """
        Args:
            stretches: [start, stop) of each sequence, one behind the other from 0 to N; positions
                count from each start, and no sequence sees another.
            places: [L] int64, rising: where the live rows stand.
            watched_from: rows from this place on are asked what they attend to.
        """
        device = places.device
        self.record = Record()
        self.mass_N: list[torch.Tensor] = []  # of each attention layer, if rows are watched
        self._places = places
        self._recorded = recorded
        self._watched_from = watched_from
        self._num_tokens = stretches[-1][1]
        starts = torch.cat([torch.full((b - a,), a) for a, b in stretches]).to(device)
        self._starts = starts
        self._positions_N = torch.arange(self._num_tokens, device=device) - starts
        self._items = [
            item
            for start, stop in stretches
            for item in (Item(ItemKind.LOAD), Item(ItemKind.RUN, start, stop))
        ]

    @property
    def positions(self) -> torch.Tensor:
        """See ForwardContext."""
        return self._positions_N[self._places]

    @property
    def row_count(self) -> torch.Tensor:
        """See ForwardContext."""
        return torch.tensor([len(self._places)], device=self._places.device)

    @property
    def row_independent(self) -> bool:
        """See ForwardContext."""
        return False

    def _whole(self, live: torch.Tensor, recorded: torch.Tensor | None) -> torch.Tensor:
        return _filled(live, self._places, self._num_tokens, recorded)

    def short_conv(
        self, layer: int, inputs_LC: torch.Tensor, weight_CW: torch.Tensor,
        bias_C: torch.Tensor | None, *, activation: str | None,
    ) -> torch.Tensor:  # fmt: skip
        """See ForwardContext."""
        recorded = None if self._recorded is None else self._recorded.conv_inputs[layer]
        inputs_NC = self._whole(inputs_LC, recorded)
        self.record.conv_inputs.append(inputs_NC)
        channels, width = weight_CW.shape
        out_NC = short_conv(
            inputs_NC, weight_CW, bias_C, activation=activation, items=self._items, cold_runs=(),
            tails_SWC=inputs_NC.new_zeros((1, width - 1, channels)),
        )  # fmt: skip
        return out_NC[self._places]

    def linear_attention(self, layer: int, recurrence: Recurrence) -> torch.Tensor:
        """See ForwardContext."""
        if recurrence.key_rotation is not None:
            raise ConfigError("rotary keys in linear layers: their recorded positions are local")
        recurrence = recurrence.written_out()
        before = None if self._recorded is None else self._recorded.recurrences[layer]
        tensors: dict[str, Any] = {
            name: self._whole(live, None if before is None else getattr(before, name))
            for name in PER_TOKEN
            if (live := getattr(recurrence, name)) is not None
        }
        whole = replace(recurrence, **tensors)
        self.record.recurrences.append(whole)
        inputs = whole.scan_inputs()
        state_shape = (1, inputs.num_heads, inputs.key_size, inputs.value.shape[2])
        states = torch.zeros(state_shape, dtype=inputs.work_dtype, device=self._places.device)
        kept = inputs.transition_shapes()[0]  # no gap reads it
        transitions = None if kept is None else states.new_zeros((1, *kept))
        return live_scan(inputs, self._items, states, transitions)[self._places]

    def full_attention(
        self, layer: int, query_LQE: torch.Tensor, key_LGE: torch.Tensor, value_LGE: torch.Tensor,
        *, norms: HeadNorms | None, rotary: RotarySpec | None, scale: float,
    ) -> torch.Tensor:  # fmt: skip
        """See ForwardContext."""
        if norms is not None:
            query_LQE, key_LGE = norms.apply(query_LQE, key_LGE)
        recorded = self._recorded
        keys = self._whole(key_LGE, None if recorded is None else recorded.keys[layer])
        values = self._whole(value_LGE, None if recorded is None else recorded.values[layer])
        self.record.keys.append(keys)
        self.record.values.append(values)
        wide = torch.promote_types(keys.dtype, torch.float32)
        query, keys, values = query_LQE.to(wide), keys.to(wide), values.to(wide)
        if rotary is not None:
            cos, sin = rotary_angles(rotary, self._positions_N, wide)
            keys = rotate(keys, cos, sin, rotary.interleaved)
            query = rotate(query, cos[self._places], sin[self._places], rotary.interleaved)
        groups = query.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(groups, 1).transpose(0, 1) for x in (keys, values))
        scores_QLN = query.transpose(0, 1) @ keys.transpose(1, 2) * scale
        weights_QLN = scores_QLN.masked_fill(~self._seen_LN(), -torch.inf).softmax(-1)
        if self._watched_from is not None:
            watched = self._places >= self._watched_from
            self.mass_N.append(weights_QLN[:, watched].mean((0, 1)))
        return (weights_QLN @ values).transpose(0, 1).to(value_LGE.dtype)

    def _seen_LN(self) -> torch.Tensor:
        """Keys of the own sequence, not after the row."""
        at = torch.arange(self._num_tokens, device=self._places.device)
        rows = self._places[:, None]
        return (at <= rows) & (at >= self._starts[rows])


@final
class ChosenAssembly:
    """One prompt, its segments recorded; then any choice of its live tokens."""

    @torch.no_grad()
    def __init__(self, model: CausalLM, prompt: SegmentedPrompt, device: torch.device) -> None:
        """
        Raises:
            ConfigError: the model turns keys inside linear layers.
        """
        self._model, self._device = model, device
        self.prompt = prompt
        stops = (*prompt.starts[1:], prompt.num_tokens)
        stretches = tuple(zip(prompt.starts, stops, strict=True))
        #: [start, stop) of each inner segment
        self.segments = tuple(
            stretch
            for part, stretch in zip(prompt.parts, stretches, strict=True)
            if part.role is Role.INNER
        )
        self.trailing_start = prompt.starts[-1]
        self._record: Record | None = None
        if self.segments:
            inside = torch.cat([torch.arange(*stretch) for stretch in self.segments])
            context = ChosenContext(stretches, inside.to(device))
            self._forward(prompt.token_ids, context, inside)
            self._record = context.record

    def _forward(
        self, token_ids: Sequence[int], context: ChosenContext, places: torch.Tensor
    ) -> torch.Tensor:
        ids = torch.tensor(token_ids)[places].to(self._device)
        return self._model.forward(ids, context)

    @torch.no_grad()
    def force(self, live_N: torch.Tensor, reply: Sequence[int] = ()) -> torch.Tensor:
        """Logits [1 + reply, V], on the CPU: at the prompt's last token and along a given reply.

        Args:
            live_N: [N] bool, true where a token of the prompt goes through the model; all tokens
                outside of segments do.
        """
        ids = (*self.prompt.token_ids, *reply)
        places = self._places(live_N, len(reply))
        context = ChosenContext(((0, len(ids)),), places.to(self._device), self._record)
        hidden = self._forward(ids, context, places)[-len(reply) - 1 :]
        return self._model.logits(hidden, row_independent=False).cpu()

    @torch.no_grad()
    def trailing_mass(self, live_N: torch.Tensor) -> torch.Tensor:
        """[N] fp64: how much of the trailing part's attention each token gets under a choice.

        The mean over its tokens, heads and attention layers, so the sum is 1; zeros for a model
        without attention layers.
        """
        ids, places = self.prompt.token_ids, self._places(live_N, 0)
        context = ChosenContext(
            ((0, len(ids)),), places.to(self._device), self._record, self.trailing_start
        )
        self._forward(ids, context, places)
        if not context.mass_N:
            return torch.zeros(len(ids), dtype=torch.float64)
        return torch.stack(context.mass_N).double().mean(0).cpu()

    def _places(self, live_N: torch.Tensor, num_reply: int) -> torch.Tensor:
        kept = torch.ones(self.prompt.num_tokens, dtype=torch.bool)
        for start, stop in self.segments:
            kept[start:stop] = False
        assert bool((live_N | ~kept).all()), "only tokens of segments need not be live"
        reply = torch.arange(self.prompt.num_tokens, self.prompt.num_tokens + num_reply)
        return torch.cat([live_N.nonzero()[:, 0], reply])

    def says(self, live_N: torch.Tensor, reply: Sequence[int]) -> bool:
        """Whether the greedy reply under a choice is this one, and ends there."""
        best = self.force(live_N, reply).argmax(-1).tolist()
        return best[:-1] == list(reply) and best[-1] in self._model.spec.eos_token_ids
