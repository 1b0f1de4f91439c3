"""Work memory of cold segments that take several forwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from hypic_sdk.engine.settings import EngineSettings
from hypic_sdk.models.base import ModelSpec, TransitionKind

MAX_UNFINISHED = 4


@dataclass(frozen=True, slots=True, eq=False)
class ColdMemory:
    """What one segment of several grid chunks keeps between forwards, besides its entry."""

    work_slot: int
    keys: (
        torch.Tensor
    )  # [A, n, G, E], rotated at local positions: the segment's own queries read it
    values: torch.Tensor  # [A, n, G, E]


@final
class ColdArea:
    """Work memory of unfinished cold segments: fixed slabs of fp32 states, KV as long as needed.

    At most `MAX_UNFINISHED` segments of more than one chunk, with at most one full context of
    tokens among them, are unfinished at once (a longer one has the area to itself).
    """

    def __init__(self, spec: ModelSpec, settings: EngineSettings) -> None:
        linear, self._spec, self._settings = spec.linear, spec, settings
        rows = (MAX_UNFINISHED, spec.num_linear, linear.num_heads)
        key_axes = {TransitionKind.DIAGONAL: 1, TransitionKind.DENSE: 2}.get(linear.transition, 0)

        def slab(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=settings.device)

        self.states = slab(
            *rows, linear.key_size, linear.value_size, dtype=settings.state_dtype
        )  # [X, J, H, K, V]
        self.transitions = None  # [X, J, H, ..]
        if linear.transition is not TransitionKind.CONSTANT:
            axes = (linear.key_size,) * key_axes
            self.transitions = slab(*rows, *axes, dtype=settings.state_dtype)
        self.heads: torch.Tensor | None = None  # [X, J, H, K, V], states after head seams
        if settings.pair == "int8":
            # else they wait in the entry's own row, which does not hold a state then
            self.heads = torch.empty_like(self.states)
        tails = (linear.conv_width - 1, linear.conv_channels)
        self.tails = slab(MAX_UNFINISHED, spec.num_linear, *tails, dtype=settings.dtype)
        self._free = list(range(MAX_UNFINISHED))
        self._tokens_in_use = 0

    @property
    def num_in_use(self) -> int:
        """Segments that hold memory now."""
        return MAX_UNFINISHED - len(self._free)

    def take(self, num_tokens: int) -> ColdMemory | None:
        """Memory for a segment of this length; none while others use too much."""
        limit = self._settings.max_context_tokens
        crowded = self._tokens_in_use and self._tokens_in_use + num_tokens > limit
        if not self._free or crowded:
            return None
        self._tokens_in_use += num_tokens
        attention = self._spec.attention
        heads = (attention.num_kv_heads, attention.head_size) if attention is not None else (0, 0)
        shape = (self._spec.num_attention, num_tokens, *heads)
        keys, values = (
            torch.empty(shape, dtype=self._settings.dtype, device=self._settings.device)
            for _ in range(2)
        )
        return ColdMemory(self._free.pop(), keys, values)

    def give_back(self, memory: ColdMemory, num_tokens: int) -> None:
        """The segment ended, well or not."""
        self._tokens_in_use -= num_tokens
        self._free.append(memory.work_slot)
